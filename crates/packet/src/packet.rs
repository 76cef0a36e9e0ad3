//! A packet: a head and the fragments chained behind it.
//!
//! ```text
//!   Packet ──► head                        fragment            fragment
//!              headroom │ linear │ tailroom  ──►  bytes  ──►  bytes (perhaps foreign)
//!                       └ may be empty
//! ```
//!
//! The *linear part* is where headers live: always memory of a pool, always writable. Fragments are read only, and
//! each has at least one byte. A packet handed over by value is owned; every refusal hands it back.

use crate::buf::Buf;
use crate::chunk::Chunk;
use crate::meta::{Meta, Stamp, flag};
use crate::offload::{Csum, Gso, GsoKind, Vlan};
use crate::pool::{Cache, Shared};
use std::ptr::NonNull;

/// Fragments that a packet can have behind its head: enough for 64 KiB in pieces of 256 bytes.
pub const MAX_FRAGS: usize = 256;

/// There is less room than the operation needs; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room in the packet's chunk")]
pub struct NoRoom;

/// An owned packet: one handle of eight bytes. Dropping it gives all its chunks home.
pub struct Packet(NonNull<Meta>);

// SAFETY: the handle owns its chain alone, and pools take chunks back from any thread.
unsafe impl Send for Packet {}
// SAFETY: `&Packet` only reads.
unsafe impl Sync for Packet {}

impl Packet {
    /// # Safety
    /// The caller owns the chunk, prepared as a head of a pool's own memory (and the chain behind it), and gives it up.
    #[inline]
    pub(crate) unsafe fn from_meta(meta: NonNull<Meta>) -> Packet {
        Packet(meta)
    }

    #[inline]
    pub(crate) fn into_meta(self) -> NonNull<Meta> {
        let meta = self.0;
        std::mem::forget(self);
        meta
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut Meta {
        self.0.as_ptr()
    }

    #[inline]
    pub(crate) fn as_meta(&self) -> &Meta {
        self.meta()
    }

    #[inline]
    fn meta(&self) -> &Meta {
        // SAFETY: the handle owns the chunk, and its pool lives as long as the chunk is away.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn meta_mut(&mut self) -> &mut Meta {
        // SAFETY: as in `meta`, and the handle is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }

    /// A packet with a copy of `bytes`, in as many chunks as it takes; `None` when the pool is dry or the bytes would need
    /// more than [`MAX_FRAGS`] fragments.
    pub fn copy_from(cache: &mut Cache, bytes: &[u8]) -> Option<Packet> {
        let mut packet = cache.alloc()?;
        let (first, mut rest) = bytes.split_at(bytes.len().min(packet.tailroom()));
        packet.push_back(first.len()).ok()?.copy_from_slice(first);
        while !rest.is_empty() {
            let mut next = cache.alloc()?;
            let (piece, after) = rest.split_at(rest.len().min(next.tailroom()));
            if piece.is_empty() {
                return None;
            }
            next.push_back(piece.len()).ok()?.copy_from_slice(piece);
            packet.append(next).ok()?;
            rest = after;
        }
        Some(packet)
    }

    /// Bytes in the whole packet.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // an empty packet is only ever one that is being built
    pub fn len(&self) -> usize {
        self.meta().total as usize
    }

    /// The linear part: the first bytes of the packet, or nothing when all of it is in fragments.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        let meta = self.meta();
        // SAFETY: data and len describe initialised bytes inside the head's chunk, which a pool owns and only this packet
        // uses.
        unsafe { std::slice::from_raw_parts(meta.data, usize::from(meta.room.len)) }
    }

    /// The linear part, writable.
    #[inline]
    pub fn linear_mut(&mut self) -> &mut [u8] {
        let meta = self.meta_mut();
        // SAFETY: as in `linear`; the packet is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(meta.data, usize::from(meta.room.len)) }
    }

    /// Free bytes in front of the linear part.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.meta().room.headroom)
    }

    /// Free bytes behind the linear part.
    #[inline]
    pub fn tailroom(&self) -> usize {
        usize::from(self.meta().room.tailroom)
    }

    /// Number of fragments.
    #[inline]
    pub fn frags(&self) -> usize {
        usize::from(self.meta().room.frags)
    }

    /// All contiguous pieces in order: the linear part if it has bytes, then the fragments.
    #[inline]
    pub fn chunks(&self) -> Chunks<'_> {
        let first = self.meta();
        let next = if first.room.len > 0 { Some(first) } else { chained(first) };
        Chunks { next }
    }

    /// Memory that the packet keeps busy, in bytes: whole chunks and their metadata, however few bytes are used.
    pub fn truesize(&self) -> usize {
        let mut at = Some(self.meta());
        let mut sum = 0;
        while let Some(meta) = at {
            sum += usize::from(meta.size()) + size_of::<Meta>();
            at = chained(meta);
        }
        sum
    }

    /// Adds `n` bytes in front and returns them to be written (they hold whatever was there).
    ///
    /// # Errors
    /// [`NoRoom`] when the headroom is smaller.
    #[inline]
    pub fn push_front(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        let meta = self.meta_mut();
        let short = u16::try_from(n).ok().filter(|&n| n <= meta.room.headroom).ok_or(NoRoom)?;
        if meta.flags & (flag::CSUM_PARTIAL | flag::GSO) != 0 {
            meta.csum_start = meta.csum_start.checked_add(short).ok_or(NoRoom)?;
            meta.hdr_len = meta.hdr_len.saturating_add(short);
        }
        meta.room.headroom -= short;
        meta.room.len += short;
        meta.total += u32::from(short);
        meta.data = meta.data.wrapping_sub(n);
        Ok(&mut self.linear_mut()[..n])
    }

    /// Takes `n` bytes off the front, fragments included; false, and nothing changed, when there are not as many. A
    /// partial checksum that began in those bytes is forgotten.
    #[inline]
    pub fn pull_front(&mut self, n: usize) -> bool {
        if n > self.len() {
            return false;
        }
        let meta = self.meta_mut();
        let linear = n.min(usize::from(meta.room.len));
        meta.pull(linear as u16);
        meta.total -= linear as u32;
        if meta.flags & (flag::CSUM_PARTIAL | flag::GSO) != 0 {
            meta.hdr_len = meta.hdr_len.saturating_sub(n.min(usize::from(u16::MAX)) as u16);
            match usize::from(meta.csum_start).checked_sub(n) {
                Some(start) => meta.csum_start = start as u16,
                None => meta.flags &= !flag::CSUM_PARTIAL,
            }
        }
        if linear < n {
            self.pull_frags(n - linear);
        }
        true
    }

    /// Takes `n` bytes (at most those in the fragments) off the first fragments, and frees those that it empties.
    #[cold]
    fn pull_frags(&mut self, mut n: usize) {
        let head = self.meta_mut();
        while n > 0
            && let Some(mut first) = NonNull::new(head.next)
        {
            // SAFETY: the chain is owned by this packet.
            let frag = unsafe { first.as_mut() };
            let take = n.min(usize::from(frag.room.len));
            frag.pull(take as u16);
            n -= take;
            head.total -= take as u32;
            if frag.room.len == 0 {
                head.next = frag.next;
                head.room.frags -= 1;
                if let Some(mut second) = NonNull::new(frag.next) {
                    // SAFETY: the chain is owned by this packet; the second fragment becomes the first.
                    unsafe { second.as_mut().stamp = frag.stamp };
                }
                frag.next = std::ptr::null_mut();
                // SAFETY: the fragment was unlinked, so nothing refers to it any more.
                unsafe { Shared::give_home(first) };
            }
        }
    }

    /// Adds `n` bytes behind the linear part of a packet without fragments and returns them to be written (they hold
    /// whatever was there).
    ///
    /// # Errors
    /// [`NoRoom`] when the tailroom is smaller, or when fragments follow.
    #[inline]
    pub fn push_back(&mut self, n: usize) -> Result<&mut [u8], NoRoom> {
        let meta = self.meta_mut();
        let short = u16::try_from(n).ok().filter(|&n| n <= meta.room.tailroom && meta.room.frags == 0).ok_or(NoRoom)?;
        let old = usize::from(meta.room.len);
        meta.room.tailroom -= short;
        meta.room.len += short;
        meta.total += u32::from(short);
        Ok(&mut self.linear_mut()[old..])
    }

    /// Cuts the packet to its first `len` bytes; does nothing if it has no more. Fragments that lie behind are freed.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        let (mut keep, mut frags, mut last) = (len, 0, self.0);
        loop {
            // SAFETY: the chain is owned by this packet.
            let meta = unsafe { last.as_mut() };
            let stay = keep.min(usize::from(meta.room.len)) as u16;
            meta.room.tailroom += meta.room.len - stay;
            meta.room.len = stay;
            keep -= usize::from(stay);
            match NonNull::new(meta.next) {
                Some(next) if keep > 0 => last = next,
                rest => {
                    meta.next = std::ptr::null_mut();
                    if let Some(rest) = rest {
                        // SAFETY: what follows was unlinked from this packet.
                        unsafe { Shared::give_home(rest) };
                    }
                    break;
                }
            }
            frags += 1;
        }
        let meta = self.meta_mut();
        meta.total = len as u32;
        meta.room.frags = frags;
        if let Some(mut first) = NonNull::new(meta.next) {
            // SAFETY: the chain is owned by this packet.
            unsafe { first.as_mut().stamp = Stamp { last: last.as_ptr() } };
        }
    }

    /// Makes the first `n` bytes contiguous in the linear part, by copying them out of the fragments.
    ///
    /// # Errors
    /// [`NoRoom`] when the packet is shorter than `n`, or when the head's chunk has not enough room behind the linear part.
    pub fn make_linear(&mut self, n: usize) -> Result<(), NoRoom> {
        let missing = n.saturating_sub(usize::from(self.meta().room.len));
        if missing == 0 {
            return Ok(());
        }
        if n > self.len() || missing > self.tailroom() {
            return Err(NoRoom);
        }
        let (mut at, mut left) = (chained(self.meta()), missing);
        let mut to = self.meta().data.wrapping_add(usize::from(self.meta().room.len));
        while left > 0
            && let Some(frag) = at
        {
            let take = left.min(usize::from(frag.room.len));
            // SAFETY: `to` is the start of the unused tailroom, of which at least `left` bytes remain; the fragment is
            // readable for `take` bytes and lies in another chunk.
            unsafe { std::ptr::copy_nonoverlapping(frag.data, to, take) };
            to = to.wrapping_add(take);
            left -= take;
            at = chained(frag);
        }
        self.pull_frags(missing);
        let meta = self.meta_mut();
        meta.room.len += missing as u16;
        meta.room.tailroom -= missing as u16;
        meta.total += missing as u32;
        Ok(())
    }

    /// Chains another packet's bytes behind this one's, without copying. What the other asked for (checksum,
    /// segmentation, …) is forgotten.
    ///
    /// # Errors
    /// Hands the other packet back when the two have more than [`MAX_FRAGS`] fragments together.
    #[inline]
    pub fn append(&mut self, other: Packet) -> Result<(), Packet> {
        let added = other.frags() + usize::from(other.meta().room.len > 0);
        if self.frags() + added > MAX_FRAGS {
            return Err(other);
        }
        let bytes = other.meta().total;
        let mut first = other.into_meta();
        // SAFETY: the chain was the other packet's, and now is ours.
        let head = unsafe { first.as_mut() };
        let rest = NonNull::new(head.next);
        // SAFETY: in a first fragment the field is the last one of the chain.
        let last = rest.map_or(first.as_ptr(), |rest| unsafe { rest.as_ref().stamp.last });
        if head.room.len == 0 {
            head.next = std::ptr::null_mut();
            // SAFETY: an empty head carries nothing; it was unlinked above.
            unsafe { Shared::give_home(first) };
            match rest {
                Some(rest) => first = rest,
                None => return Ok(()),
            }
        }
        self.link(first, last, added as u16, bytes);
        Ok(())
    }

    /// Chains a single chunk behind this packet's bytes; one without bytes is freed.
    ///
    /// # Errors
    /// Hands the chunk back when the packet has [`MAX_FRAGS`] fragments already.
    #[inline]
    pub fn append_buf(&mut self, buf: Buf) -> Result<(), Buf> {
        if self.frags() == MAX_FRAGS {
            return Err(buf);
        }
        if !buf.is_empty() {
            let bytes = buf.len() as u32;
            let meta = buf.into_meta();
            self.link(meta, meta.as_ptr(), 1, bytes);
        }
        Ok(())
    }

    /// Links the owned chunks `first ..= last` behind what is there.
    #[inline]
    fn link(&mut self, mut first: NonNull<Meta>, last: *mut Meta, frags: u16, bytes: u32) {
        let meta = self.meta_mut();
        meta.room.frags += frags;
        meta.total += bytes;
        match NonNull::new(meta.next) {
            None => {
                meta.next = first.as_ptr();
                // SAFETY: the chunk is owned, and is the first fragment now.
                unsafe { first.as_mut().stamp = Stamp { last } };
            }
            Some(mut front) => {
                // SAFETY: the chain is owned by this packet; the first fragment knows the last.
                unsafe {
                    (*front.as_ref().stamp.last).next = first.as_ptr();
                    front.as_mut().stamp = Stamp { last };
                }
            }
        }
    }

    /// The head's chunk alone, to be [shared](crate::SharedBuf) by views.
    ///
    /// # Errors
    /// Hands the packet back if it has fragments.
    pub fn into_linear_buf(self) -> Result<Buf, Packet> {
        if self.frags() > 0 {
            return Err(self);
        }
        // SAFETY: the packet owned its head, which has no successor.
        Ok(unsafe { Buf::from_meta(self.into_meta()) })
    }

    /// Copies the bytes from `offset` on into `out`, each read once; returns how many there were.
    pub fn copy_to(&self, mut offset: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        for chunk in self.chunks() {
            done += chunk.copy_to(offset, &mut out[done..]);
            offset = offset.saturating_sub(chunk.len());
        }
        done
    }

    /// All bytes in one vector; for tests and tools, not for hot paths.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// Asks the processor to fetch the metadata's line; the packet will be looked at soon.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.0.as_ptr().cast());
    }

    /// Asks the processor to fetch the first line of the linear part.
    #[inline]
    pub fn prefetch_data(&self) {
        prefetch(self.meta().data);
    }

    /// What is known about the transport checksum.
    #[inline]
    pub fn csum(&self) -> Csum {
        let meta = self.meta();
        if meta.flags & flag::CSUM_PARTIAL != 0 {
            Csum::Partial { start: meta.csum_start, offset: meta.csum_offset }
        } else if meta.flags & flag::CSUM_VERIFIED != 0 {
            Csum::Verified
        } else {
            Csum::Unknown
        }
    }

    /// Sets what is known about the transport checksum.
    #[inline]
    pub fn set_csum(&mut self, csum: Csum) {
        let meta = self.meta_mut();
        meta.flags &= !(flag::CSUM_PARTIAL | flag::CSUM_VERIFIED);
        match csum {
            Csum::Unknown => {}
            Csum::Verified => meta.flags |= flag::CSUM_VERIFIED,
            Csum::Partial { start, offset } => {
                meta.flags |= flag::CSUM_PARTIAL;
                meta.csum_start = start;
                meta.csum_offset = offset;
            }
        }
    }

    /// How the packet is to be segmented, if it is a super-packet.
    #[inline]
    pub fn gso(&self) -> Option<Gso> {
        let meta = self.meta();
        if meta.flags & flag::GSO == 0 {
            return None;
        }
        let kind = match meta.gso_kind {
            1 => GsoKind::Tcp4,
            4 => GsoKind::Tcp6,
            _ => GsoKind::Udp,
        };
        let ecn = meta.flags & flag::GSO_ECN != 0;
        Some(Gso { kind, ecn, size: meta.gso_size, segs: meta.gso_segs, hdr_len: meta.hdr_len })
    }

    /// Makes the packet a super-packet, or an ordinary one.
    #[inline]
    pub fn set_gso(&mut self, gso: Option<Gso>) {
        let meta = self.meta_mut();
        meta.flags &= !(flag::GSO | flag::GSO_ECN);
        if let Some(gso) = gso {
            meta.flags |= flag::GSO | if gso.ecn { flag::GSO_ECN } else { 0 };
            meta.gso_kind = gso.kind as u8;
            meta.gso_size = gso.size;
            meta.gso_segs = gso.segs;
            meta.hdr_len = gso.hdr_len;
        }
    }

    /// Whether the packet asks for anything that a plain port cannot do: a partial checksum, segmentation, a tag beside it.
    #[inline]
    pub fn wants_offload(&self) -> bool {
        self.meta().flags & (flag::CSUM_PARTIAL | flag::GSO | flag::VLAN) != 0
    }

    /// The VLAN tag beside the packet.
    #[inline]
    pub fn vlan(&self) -> Option<Vlan> {
        let meta = self.meta();
        let service = meta.flags & flag::VLAN_SERVICE != 0;
        (meta.flags & flag::VLAN != 0).then_some(Vlan { tci: meta.vlan_tci, service })
    }

    /// Sets or removes the VLAN tag beside the packet.
    #[inline]
    pub fn set_vlan(&mut self, vlan: Option<Vlan>) {
        let meta = self.meta_mut();
        meta.flags &= !(flag::VLAN | flag::VLAN_SERVICE);
        if let Some(Vlan { tci, service }) = vlan {
            meta.flags |= flag::VLAN | if service { flag::VLAN_SERVICE } else { 0 };
            meta.vlan_tci = tci;
        }
    }

    /// Hash of the packet's flow, if somebody computed one.
    #[inline]
    pub fn flow_hash(&self) -> Option<u32> {
        let meta = self.meta();
        (meta.flags & flag::HASH != 0).then_some(meta.hash)
    }

    /// Notes the hash of the packet's flow.
    #[inline]
    pub fn set_flow_hash(&mut self, hash: u32) {
        let meta = self.meta_mut();
        meta.flags |= flag::HASH;
        meta.hash = hash;
    }

    /// Lane that a verdict chose for the packet.
    #[inline]
    pub fn lane(&self) -> Option<u8> {
        self.meta().lane.checked_sub(1)
    }

    /// Chooses a lane, 0 to 254.
    #[inline]
    pub fn set_lane(&mut self, lane: Option<u8>) {
        self.meta_mut().lane = lane.map_or(0, |lane| lane.saturating_add(1));
    }

    /// Number of the port that received the packet, and the queue.
    #[inline]
    pub fn ingress(&self) -> (u8, u8) {
        (self.meta().port, self.meta().rx_queue)
    }

    /// Notes where the packet came from.
    #[inline]
    pub fn set_ingress(&mut self, port: u8, queue: u8) {
        let meta = self.meta_mut();
        meta.port = port;
        meta.rx_queue = queue;
    }

    /// Time of arrival in nanoseconds since the epoch; 0 when nobody took it.
    #[inline]
    pub fn timestamp(&self) -> u64 {
        // SAFETY: this is a head, where the field is the time; any bits are a number.
        unsafe { self.meta().stamp.time }
    }

    /// Notes the time of arrival, in nanoseconds since the epoch.
    #[inline]
    pub fn set_timestamp(&mut self, ns: u64) {
        self.meta_mut().stamp = Stamp { time: ns };
    }
}

impl Meta {
    /// Takes `n` bytes (at most `len`) off the front.
    #[inline]
    fn pull(&mut self, n: u16) {
        self.data = self.data.wrapping_add(usize::from(n));
        self.room.len -= n;
        self.room.headroom += n;
    }
}

#[inline]
fn chained(meta: &Meta) -> Option<&Meta> {
    // SAFETY: chunks of a chain are owned by the packet that `meta` is borrowed from.
    unsafe { meta.next.as_ref() }
}

#[inline]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Iterator over the contiguous pieces of a packet.
#[derive(Clone)]
pub struct Chunks<'a> {
    next: Option<&'a Meta>,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Chunk<'a>;

    #[inline]
    fn next(&mut self) -> Option<Chunk<'a>> {
        let meta = self.next?;
        self.next = chained(meta);
        // SAFETY: data and len describe bytes inside the chunk, which the borrowed packet owns; what may change under
        // us is marked foreign.
        Some(unsafe { Chunk::new(meta.data, usize::from(meta.room.len), meta.flags & flag::FOREIGN != 0) })
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle owned the chain and is going away.
        unsafe { Shared::give_home(self.0) };
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet")
            .field("len", &self.len())
            .field("linear", &self.linear().len())
            .field("frags", &self.frags())
            .field("csum", &self.csum())
            .field("gso", &self.gso())
            .finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

//! The fragments behind a packet's head: linking, unlinking, walking.
//!
//! ```text
//!   head ── next ──► first fragment ── next ──► … ──► last fragment
//!                    └─ stamp.last ───────────────────▲   so that appending does not walk
//! ```

use super::{MAX_FRAGS, NoRoom, Packet};
use crate::buf::{Buf, Chunk};
use crate::meta::{Meta, Stamp, flag};
use crate::pool::PoolShared;
use crate::region::RegionHandle;
use crate::untrusted;
use std::ptr::NonNull;

impl Packet {
    /// All contiguous pieces in order: the linear part if it has bytes, then the fragments. DPDK:
    /// the segments of an mbuf.
    #[inline]
    pub fn chunks(&self) -> Chunks<'_> {
        let first = self.meta();
        let next = if first.room.len > 0 || self.is_extbuf() { Some(first) } else { chained(first) };
        Chunks { next }
    }

    /// Its bytes if they are in one contiguous piece, and there are any.
    #[inline]
    pub fn only_chunk(&self) -> Option<Chunk<'_>> {
        let (meta, len) = (self.meta(), self.len());
        if len > 0 && (usize::from(meta.room.len) == len || meta.is_extbuf_head()) {
            // SAFETY: all bytes of the packet begin at `data`, inside the chunk that the borrowed
            // packet owns; bytes that others may write are marked as untrusted.
            return Some(unsafe { Chunk::new(meta.data, len, meta.is_untrusted()) });
        }
        self.chunks().next().filter(|chunk| chunk.len() == len)
    }

    /// The regions of its [external buffers](crate::ExtBufPool), one per buffer: for drivers that
    /// map memory on first use. [Owned](Packet::from_owner) buffers have none.
    pub fn extbuf_regions(&self) -> impl Iterator<Item = &RegionHandle> {
        std::iter::successors(Some(self.meta()), |meta| chained(meta))
            .filter(|meta| meta.flags & flag::EXTERNAL != 0)
            // SAFETY: a chunk in use keeps its pool alive, and this packet owns the chain.
            .filter_map(|meta| unsafe { meta.owner.as_ref() }.region())
    }

    /// Memory that the packet occupies, in bytes: whole chunks and their metadata, however few
    /// bytes are used.
    pub fn truesize(&self) -> usize {
        let mut at = Some(self.meta());
        let mut sum = 0;
        while let Some(meta) = at {
            sum += usize::from(meta.size()) + size_of::<Meta>();
            at = chained(meta);
        }
        if self.is_extbuf() { sum + self.len() } else { sum }
    }

    /// Removes `n` bytes (at most those in the fragments) from the first fragments, and frees those
    /// that become empty.
    #[cold]
    pub(super) fn pull_frags(&mut self, mut n: usize) {
        let is_extbuf = self.is_extbuf();
        let head = self.meta_mut();
        if is_extbuf {
            head.data = head.data.wrapping_add(n);
            head.total -= n as u32;
            return;
        }
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
                    // SAFETY: the chain is owned by this packet; the second fragment becomes the
                    // first.
                    unsafe { second.as_mut().stamp = frag.stamp };
                }
                frag.next = std::ptr::null_mut();
                // SAFETY: the fragment was unlinked, so nothing refers to it any more.
                unsafe { PoolShared::free_chain(first) };
            }
        }
    }

    /// Cuts the packet to its first `len` bytes; does nothing if it is not longer. Fragments behind
    /// them are freed.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        if self.is_extbuf() {
            self.meta_mut().total = len as u32;
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
                        // SAFETY: the rest was unlinked from this packet.
                        unsafe { PoolShared::free_chain(rest) };
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

    /// Makes the first `n` bytes contiguous in the linear part, by copying them out of the
    /// fragments.
    ///
    /// # Errors
    /// [`NoRoom`] if the packet is shorter than `n`, or if the head's chunk has too little room
    /// behind the linear part.
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
            // SAFETY: `to` is the start of the unused tailroom, of which at least `left` bytes
            // remain; the fragment is readable for `take` bytes.
            unsafe { untrusted::copy(frag.data, to, take) };
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

    /// Chains another packet's bytes behind this one's without a copy. The offloads of the other
    /// packet are dropped.
    ///
    /// # Errors
    /// Returns the other packet if the two have more than [`MAX_FRAGS`] fragments together, or if
    /// this one is a single [external buffer](Packet::is_extbuf).
    #[inline]
    pub fn append(&mut self, mut other: Packet) -> Result<(), Packet> {
        let added = other.frags() + usize::from(other.meta().room.len > 0);
        if self.frags() + added > MAX_FRAGS || self.is_extbuf() {
            return Err(other);
        }
        if other.is_extbuf() {
            other.meta_mut().set_fragment();
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
            unsafe { PoolShared::free_chain(first) };
            match rest {
                Some(rest) => first = rest,
                None => return Ok(()),
            }
        }
        self.link(first, last, added as u16, bytes);
        Ok(())
    }

    /// [`append`](Self::append), without the first `skip` bytes of the other packet.
    ///
    /// # Errors
    /// As there, and if the other packet is not longer than `skip`. The returned packet is
    /// unchanged.
    #[inline(always)]
    pub fn append_from(&mut self, mut other: Packet, skip: usize) -> Result<(), Packet> {
        let head = other.meta_mut();
        if head.room.frags > 0 || skip >= usize::from(head.room.len) {
            return self.append_chain_from(other, skip);
        }
        if self.is_full() {
            return Err(other);
        }
        head.pull(skip as u16);
        let bytes = u32::from(head.room.len);
        let meta = other.into_meta();
        self.link(meta, meta.as_ptr(), 1, bytes);
        Ok(())
    }

    /// [`append_from`](Self::append_from) with a packet that is a chain.
    #[cold]
    #[inline(never)]
    fn append_chain_from(&mut self, mut other: Packet, skip: usize) -> Result<(), Packet> {
        if skip >= other.len() || self.frags() + other.frags() + 1 > MAX_FRAGS || self.is_extbuf() {
            return Err(other);
        }
        other.pull_front(skip);
        self.append(other)
    }

    /// Chains a single chunk behind this packet's bytes; a chunk without bytes is freed.
    ///
    /// # Errors
    /// Returns the chunk if the packet has [`MAX_FRAGS`] fragments already, or is a single
    /// [external buffer](Packet::is_extbuf).
    #[inline]
    pub fn append_buf(&mut self, buf: Buf) -> Result<(), Buf> {
        if self.is_full() {
            return Err(buf);
        }
        if !buf.is_empty() {
            let bytes = buf.len() as u32;
            let meta = buf.into_meta();
            self.link(meta, meta.as_ptr(), 1, bytes);
        }
        Ok(())
    }

    /// Whether no fragment can be added.
    #[inline]
    fn is_full(&self) -> bool {
        self.frags() == MAX_FRAGS || self.is_extbuf()
    }

    /// Links the owned chunks `first ..= last` behind the present ones.
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
}

impl Meta {
    /// Removes `n` bytes (at most `len`) from the front.
    #[inline]
    pub(super) fn pull(&mut self, n: u16) {
        self.data = self.data.wrapping_add(usize::from(n));
        self.room.len -= n;
        self.room.headroom += n;
    }
}

#[inline]
pub(super) fn chained(meta: &Meta) -> Option<&Meta> {
    // SAFETY: chunks of a chain are owned by the packet that `meta` is borrowed from.
    unsafe { meta.next.as_ref() }
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
        // Only an external buffer that is head and fragment in one has no length of its own.
        let len = if meta.room.len > 0 { usize::from(meta.room.len) } else { meta.total as usize };
        // SAFETY: data and len describe bytes inside the chunk, which the borrowed packet owns;
        // bytes that others may write are marked as untrusted.
        Some(unsafe { Chunk::new(meta.data, len, meta.is_untrusted()) })
    }
}

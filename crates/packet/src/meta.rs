//! The 64 bytes that describe one chunk: one cache line, separate from the bytes.
//!
//! ```text
//!  0        8        16    18    20   22     24     32          40      44     48 … 64
//!  owner    data     head  tail  len  frags  next   timestamp   total   hash   offload fields
//!                    room  room                     or last
//!  └─ never cleared ─┘                       └─ zero in a new packet: three wide stores ─┘
//! ```
//!
//! Allocation, drivers and GRO touch nothing but this line. Data of shared chunks only (a reference
//! count, the parent of an indirect buffer) lies in side arrays of the pool, so that ordinary
//! packets do not pay for it.
//!
//! Invariant: `data - headroom` is the first byte of the chunk and `headroom + len + tailroom` its
//! size, at all times.

use crate::pool::PoolShared;
use std::ptr::{NonNull, null_mut};

/// Flag bits of [`Meta::flags`].
pub(crate) mod flag {
    /// The checksum was verified.
    pub(crate) const CSUM_VERIFIED: u8 = 1;
    /// The checksum is partial: `csum_start` and `csum_offset` hold.
    pub(crate) const CSUM_PARTIAL: u8 = 2;
    /// `vlan_tci` holds.
    pub(crate) const VLAN: u8 = 4;
    /// The tag is a service tag (802.1ad).
    pub(crate) const VLAN_SERVICE: u8 = 8;
    /// `gso_*` hold.
    pub(crate) const GSO: u8 = 16;
    /// The super-packet carries CWR on its first segment.
    pub(crate) const GSO_ECN: u8 = 32;
    /// `hash` holds.
    pub(crate) const HASH: u8 = 64;
    /// An external buffer, or a piece of one: nothing writes to its bytes through the packet.
    pub(crate) const EXTERNAL: u8 = 128;
}

/// The position of the data in its chunk, and the number of chunks behind it: written as one word
/// when a packet is made.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Room {
    pub(crate) headroom: u16,
    pub(crate) tailroom: u16,
    pub(crate) len: u16,
    /// Chunks behind the head. Head only.
    pub(crate) frags: u16,
}

impl Room {
    /// An empty chunk of `size` bytes with `headroom` bytes (at most `size`) in front.
    pub(crate) fn empty(size: u16, headroom: u16) -> Room {
        Room { headroom, tailroom: size - headroom, len: 0, frags: 0 }
    }
}

/// A word with different meanings in a head and in a first fragment.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Stamp {
    /// In a head: nanoseconds since the epoch, 0 = unknown.
    pub(crate) time: u64,
    /// In the first fragment of a chain: the last one, so that appending does not walk the chain.
    pub(crate) last: *mut Meta,
}

#[repr(C, align(64))]
pub(crate) struct Meta {
    /// The pool of the chunk. Never changes.
    pub(crate) owner: NonNull<PoolShared>,
    /// First byte of the data.
    pub(crate) data: *mut u8,
    pub(crate) room: Room,
    /// Next chunk of the chain; when free: next free chunk in the pool's list of returned chunks.
    pub(crate) next: *mut Meta,
    pub(crate) stamp: Stamp,
    /// Bytes in the whole chain. Head only.
    pub(crate) total: u32,
    /// Flow hash. Head only.
    pub(crate) hash: u32,
    pub(crate) csum_start: u16,
    pub(crate) gso_size: u16,
    pub(crate) gso_segs: u16,
    pub(crate) hdr_len: u16,
    pub(crate) vlan_tci: u16,
    /// Ingress port, in the numbers of the application.
    pub(crate) port: u8,
    /// Lane of the packet plus one; 0 if none was chosen.
    pub(crate) lane: u8,
    pub(crate) csum_offset: u8,
    pub(crate) gso_kind: u8,
    pub(crate) flags: u8,
    pub(crate) rx_queue: u8,
}

const _: () = assert!(size_of::<Meta>() == 64 && align_of::<Meta>() == 64);

impl Meta {
    /// A free chunk of `size` bytes at `data`.
    pub(crate) fn free(owner: NonNull<PoolShared>, data: *mut u8, size: u16) -> Meta {
        Meta {
            owner,
            data,
            next: null_mut(),
            stamp: Stamp { time: 0 },
            total: 0,
            hash: 0,
            room: Room::empty(size, 0),
            csum_start: 0,
            gso_size: 0,
            gso_segs: 0,
            hdr_len: 0,
            vlan_tci: 0,
            port: 0,
            lane: 0,
            csum_offset: 0,
            gso_kind: 0,
            flags: 0,
            rx_queue: 0,
        }
    }

    /// Size of the chunk in bytes.
    #[inline]
    pub(crate) fn size(&self) -> u16 {
        self.room.headroom + self.room.len + self.room.tailroom
    }

    /// Makes the Meta an external buffer as a fragment. Fields of heads stay as they are.
    #[inline]
    pub(crate) fn set_extbuf(&mut self, at: NonNull<u8>, len: u16) {
        self.data = at.as_ptr();
        self.room = Room { headroom: 0, tailroom: 0, len, frags: 0 };
        self.next = null_mut();
        self.flags = flag::EXTERNAL;
    }

    /// Makes the Meta an external buffer that is a packet: an empty head and its only fragment in
    /// one. The fragment's bytes begin at `data`, and are as many as the whole packet has.
    #[inline]
    pub(crate) fn set_extbuf_head(&mut self, at: NonNull<u8>, len: u16) {
        self.data = at.as_ptr();
        self.clear(Room { headroom: 0, tailroom: 0, len: 0, frags: 1 });
        self.total = len.into();
        self.flags = flag::EXTERNAL;
    }

    /// Whether a head is an external buffer as well.
    #[inline]
    pub(crate) fn is_extbuf_head(&self) -> bool {
        self.flags & flag::EXTERNAL != 0
    }

    /// Whether another process may write to the bytes at any moment, so that no reference to them
    /// may exist: those of an external buffer that is not an owned one.
    #[inline]
    pub(crate) fn is_untrusted(&self) -> bool {
        // SAFETY: a chunk in use keeps its pool alive.
        self.flags & flag::EXTERNAL != 0 && !unsafe { self.owner.as_ref() }.is_owned()
    }

    /// Makes an external buffer that was a packet a fragment.
    #[inline]
    pub(crate) fn set_fragment(&mut self) {
        // At most as long as it was attached.
        self.room = Room { headroom: 0, tailroom: 0, len: self.total as u16, frags: 0 };
    }

    /// Makes the chunk an empty packet. `room` is that of an empty chunk of this size.
    #[inline]
    pub(crate) fn reset(&mut self, room: Room) {
        // The chunk begins `headroom` bytes before the data, so both steps stay inside it.
        let base = self.data.wrapping_sub(usize::from(self.room.headroom));
        self.data = base.wrapping_add(usize::from(room.headroom));
        self.clear(room);
    }

    /// Clears all but the data of a new head.
    #[inline]
    fn clear(&mut self, room: Room) {
        self.room = room;
        self.next = null_mut();
        self.stamp = Stamp { time: 0 };
        self.total = 0;
        self.hash = 0;
        self.csum_start = 0;
        self.gso_size = 0;
        self.gso_segs = 0;
        self.hdr_len = 0;
        self.vlan_tci = 0;
        self.port = 0;
        self.lane = 0;
        self.csum_offset = 0;
        self.gso_kind = 0;
        self.flags = 0;
        self.rx_queue = 0;
    }
}

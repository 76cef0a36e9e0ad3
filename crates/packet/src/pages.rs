//! Pages: fragments whose bytes lie in memory that belongs to somebody who is not trusted, and who wants to know when they are free again.
//!
//! ```text
//!   application's memory (Region)
//!   ├── page 7 ◄── attach(…, 7) ──► Buf, a fragment of a packet ──► … any thread, any cache ──► dropped
//!   │                                                                                              │
//!   └── Pages::take_back: "7" ◄──────────── a list, pushed a burst at a time ◄─────────────────────┘
//! ```
//!
//! A page on its way costs one 64-byte Meta and no copy. Its token travels in that Meta, so that coming home is to be linked into
//! a list: packets that are freed together cost one compare-and-swap together, and nobody is called but for the first.
//!
//! A page can be a fragment of a packet, never its head: the head's linear part is where headers are written. Its bytes are *foreign*:
//! whoever owns them may write at any moment (see [`Chunk::bytes`](crate::Chunk::bytes)).

use crate::buf::Buf;
use crate::meta::Meta;
use crate::packet::Packet;
use crate::pool::{Handle, Kind, PoolConfig, PoolError, Shared};
use crate::region::Region;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Who waits for pages to come home.
pub trait Owner: Send + Sync {
    /// Pages have come home where none were waiting to be taken back. Called on whatever thread dropped them, so it must neither
    /// block nor panic. It may be called once too often.
    fn came_home(&self);

    /// A page came home after its [`Pages`] were gone. Under the same terms.
    fn came_late(&self, token: u64) {
        let _ = token;
    }
}

/// One thread's right to show pages of a region; it can be sent to another.
pub struct Pages {
    /// Metas of pages that are not on their way.
    stock: Vec<NonNull<Meta>>,
    /// Came home, and not taken back yet; linked.
    home: *mut Meta,
    capacity: usize,
    region: Arc<Region>,
    handle: Arc<Handle>,
}

// SAFETY: the Metas in stock and at home are free ones of a pool that the handle keeps alive, and nobody else knows of them.
unsafe impl Send for Pages {}

impl Pages {
    /// Up to `capacity` pages of `region` at a time.
    ///
    /// # Errors
    /// [`PoolError::Config`] for a capacity of 0 or beyond 2^24; [`PoolError::Region`] when memory can't be had.
    pub fn new(capacity: usize, region: Arc<Region>, owner: Arc<dyn Owner>) -> Result<Pages, PoolError> {
        if !(1..=1 << 24).contains(&capacity) {
            return Err(PoolError::Config { field: "capacity", value: capacity, rule: "from 1 to 2^24" });
        }
        let config = PoolConfig { capacity, max_caches: 0, ..PoolConfig::default() };
        let shared = Shared::new(&config, Kind::Page(owner), Some(region.clone()))?;
        let handle = Arc::new(Handle::new(shared));
        let (mut stock, mut at) = (Vec::with_capacity(capacity), handle.shared().take_returned());
        while let Some(meta) = NonNull::new(at) {
            stock.push(meta);
            // SAFETY: taking the list made its chunks ours.
            at = unsafe { meta.as_ref().next };
        }
        // The first addresses are used first.
        stock.reverse();
        Ok(Pages { stock, home: null_mut(), capacity, region, handle })
    }

    /// Pages that can be attached now. Those that came home count once they were [taken back](Pages::take_back).
    #[inline]
    pub fn free(&self) -> usize {
        self.stock.len()
    }

    /// Pages that are on their way, or came home and were not taken back.
    #[inline]
    pub fn away(&self) -> usize {
        self.capacity - self.stock.len()
    }

    /// A fragment of `len` bytes at `offset` of the region. When its last user is gone, `token` can be taken back.
    ///
    /// `None` if the bytes do not all lie in the region, if `len` is 0 or more than 65535, or if no page is [free](Pages::free).
    #[inline]
    pub fn attach(&mut self, offset: usize, len: usize, token: u64) -> Option<Buf> {
        let at = self.region.at(offset, len)?;
        let len = u16::try_from(len).ok().filter(|&len| len > 0)?;
        let mut meta = self.stock.pop()?;
        // SAFETY: the Meta was in stock, so it is free and ours.
        unsafe {
            meta.as_mut().show(at, len, token);
            Some(Buf::from_meta(meta))
        }
    }

    /// Appends a copy of `len` bytes at `offset` of the region to the linear part of a packet without fragments; false, and nothing is
    /// changed, if they do not lie in the region or there is no room for them.
    #[inline]
    pub fn copy(&self, offset: usize, len: usize, to: &mut Packet) -> bool {
        let Some(at) = self.region.at(offset, len) else { return false };
        let Ok(room) = to.push_back(len) else { return false };
        // SAFETY: the source lies in the region, of which no reference exists, and a packet's linear part in memory of a pool.
        unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), room.as_mut_ptr(), len) };
        true
    }

    /// Hands over the tokens of pages that came home, with the lengths that they were attached with, at most `most`; returns how many
    /// there were. What was dropped together comes in the order in which it was dropped.
    #[inline]
    pub fn take_back(&mut self, most: usize, mut each: impl FnMut(u64, u16)) -> usize {
        let (mut n, mut home) = (0, self.home);
        while n < most {
            if home.is_null() {
                home = self.handle.shared().take_returned();
            }
            let Some(mut meta) = NonNull::new(home) else { break };
            // SAFETY: taking the list made its chunks ours.
            let m = unsafe { meta.as_mut() };
            let (token, len) = m.token();
            // From here on it stands for no page.
            m.flags = 0;
            home = m.next;
            // There is room: it has that of every Meta of the pool.
            self.stock.push(meta);
            each(token, len);
            n += 1;
        }
        self.home = home;
        n
    }

    /// Whether pages came home that were not taken back.
    pub fn has_back(&self) -> bool {
        !self.home.is_null() || self.handle.shared().has_returned()
    }
}

impl Drop for Pages {
    /// Gives the free Metas back, so that the last page that is still on its way frees the pool.
    fn drop(&mut self) {
        for meta in self.stock.drain(..) {
            // SAFETY: free and ours; linked in front of those that are at home.
            unsafe { (*meta.as_ptr()).next = self.home };
            self.home = meta.as_ptr();
        }
        if let Some(first) = NonNull::new(self.home) {
            // SAFETY: all of them are ours, linked, and of this pool.
            unsafe { Shared::give_home(first) };
        }
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("capacity", &self.capacity).field("free", &self.free()).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Backing, Batch, Cache, Direction, Pool};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Calls(AtomicUsize, Mutex<Vec<u64>>);
    impl Owner for Calls {
        fn came_home(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn came_late(&self, token: u64) {
            self.1.lock().unwrap().push(token);
        }
    }

    struct Rig {
        pages: Pages,
        calls: Arc<Calls>,
        cache: Cache,
    }

    impl Rig {
        fn new(capacity: usize) -> Rig {
            let region = Arc::new(Region::new(8192, Backing::Memfd).unwrap());
            let calls = Arc::new(Calls::default());
            let pages = Pages::new(capacity, region, calls.clone()).unwrap();
            let config = PoolConfig { capacity: 256, backing: Backing::Anonymous, ..Default::default() };
            Rig { pages, calls, cache: Pool::new(config).unwrap().cache(Direction::Tx).unwrap() }
        }

        fn packet(&mut self, tokens: impl IntoIterator<Item = u64>) -> Packet {
            let mut packet = self.cache.alloc().unwrap();
            for token in tokens {
                packet.append_buf(self.pages.attach(token as usize, 1, token).unwrap()).unwrap();
            }
            packet
        }

        fn back(&mut self) -> Vec<u64> {
            let mut tokens = Vec::new();
            self.pages.take_back(usize::MAX, |token, len| {
                assert_eq!(len, 1);
                tokens.push(token);
            });
            tokens
        }
    }

    #[test]
    fn a_page_becomes_a_fragment_and_its_token_comes_back_when_it_is_dropped() {
        let mut rig = Rig::new(4);
        // SAFETY: inside the region; the test is the only user.
        unsafe { rig.pages.region.base().add(100).write(42) };
        let packet = rig.packet([100]);
        assert_eq!((packet.len(), packet.linear().len()), (1, 0));
        assert!(packet.chunks().next().unwrap().bytes().is_none(), "no reference into foreign memory");
        assert_eq!(packet.to_vec(), [42]);
        assert!(!rig.pages.has_back() && rig.back().is_empty());
        drop(packet);
        assert!(rig.pages.has_back());
        assert_eq!(rig.back(), [100]);
        assert_eq!((rig.pages.free(), rig.pages.away()), (4, 0));
    }

    #[test]
    fn what_is_freed_together_comes_home_together_in_order_and_with_one_call() {
        let mut rig = Rig::new(64);
        let mut batch = Batch::<64>::new();
        for token in 0..20 {
            // Packets of one page, of several, and of none.
            let packet = rig.packet(3 * token..3 * token + token % 4);
            batch.push(packet).unwrap();
        }
        let expected: Vec<_> = (0..20).flat_map(|token| 3 * token..3 * token + token % 4).collect();
        rig.cache.free_bulk(&mut batch);
        assert_eq!(rig.calls.0.load(Ordering::Relaxed), 1);
        assert_eq!(rig.back(), expected);
        assert_eq!(rig.pages.away(), 0);
    }

    #[test]
    fn pages_of_two_owners_in_one_batch_each_come_home_to_theirs() {
        let (mut a, mut b) = (Rig::new(32), Rig::new(32));
        let mut batch = Batch::<64>::new();
        for token in 0..24 {
            let packet = if token % 3 == 0 { b.packet([token]) } else { a.packet([token]) };
            batch.push(packet).unwrap();
        }
        // A packet with pages of both.
        let mut mixed = a.packet([100]);
        mixed.append(b.packet([200])).unwrap();
        batch.push(mixed).unwrap();
        a.cache.free_bulk(&mut batch);
        let sorted = |mut tokens: Vec<u64>| {
            tokens.sort_unstable();
            tokens
        };
        let (of_b, of_a): (Vec<u64>, Vec<u64>) = (0..24).partition(|token| token % 3 == 0);
        assert_eq!(sorted(a.back()), [of_a, vec![100]].concat());
        assert_eq!(sorted(b.back()), [of_b, vec![200]].concat());
    }

    #[test]
    fn no_more_are_taken_back_than_asked_for_and_the_others_wait() {
        let mut rig = Rig::new(8);
        drop((0..8).map(|token| rig.packet([token])).collect::<Vec<_>>());
        let mut tokens = Vec::new();
        assert_eq!(rig.pages.take_back(3, |token, _| tokens.push(token)), 3);
        assert_eq!((rig.pages.free(), rig.pages.has_back()), (3, true));
        tokens.extend(rig.back());
        tokens.sort_unstable();
        assert_eq!(tokens, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_outside_the_region_and_pages_beyond_the_capacity_are_refused() {
        let mut rig = Rig::new(4);
        assert!(rig.pages.attach(8192, 1, 0).is_none());
        assert!(rig.pages.attach(usize::MAX, 2, 0).is_none());
        assert!(rig.pages.attach(0, 0, 0).is_none());
        let held: Vec<_> = (0..5).map(|token| rig.pages.attach(0, 1, token)).collect();
        assert_eq!(held.iter().flatten().count(), 4);
        drop(held);
        assert!(rig.pages.attach(0, 1, 9).is_none(), "not before it was taken back");
        assert_eq!(rig.back().len(), 4);
        assert!(rig.pages.attach(0, 1, 9).is_some());
    }

    #[test]
    fn a_copy_takes_the_bytes_and_no_page() {
        let mut rig = Rig::new(4);
        // SAFETY: inside the region; the test is the only user.
        unsafe { rig.pages.region.base().add(8191).write(42) };
        let mut packet = rig.cache.alloc().unwrap();
        assert!(rig.pages.copy(8190, 2, &mut packet) && !rig.pages.copy(8191, 2, &mut packet));
        assert_eq!((packet.linear(), packet.frags(), rig.pages.free()), (&[0, 42][..], 0, 4));
        let room = packet.tailroom();
        assert!(!rig.pages.copy(0, room + 1, &mut packet) && rig.pages.copy(0, room, &mut packet));
    }

    #[test]
    fn pages_and_their_memory_outlive_the_handle() {
        let mut rig = Rig::new(4);
        let page = rig.pages.attach(5, 3, 1).unwrap();
        // Home, but not taken back.
        let _ = rig.packet([7, 8]);
        drop(rig.pages);
        assert_eq!(page.chunk().copy_to(0, &mut [0; 8]), 3);
        std::thread::spawn(move || drop(page)).join().unwrap();
        assert_eq!(Arc::strong_count(&rig.calls), 1, "the pool, and with it the region, is gone");
        let mut late = rig.calls.1.lock().unwrap().clone();
        late.sort_unstable();
        assert_eq!(late, [1, 7, 8], "none is forgotten, and none that was free is named");
    }
}

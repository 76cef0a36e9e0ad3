//! Views: fragments whose bytes belong to someone else.
//!
//! ```text
//!   application's memory (Region)              a large buffer, shared
//!   ├── page 7 ◄─ view ─┐                      ├── bytes 66..1514   ◄─ view ─┐
//!   │                   │                      ├── bytes 1514..2962 ◄─ view ─┤
//!   │   last user gone: Owner::give_back(7)    last view gone: the buffer goes home
//! ```
//!
//! A view costs one 64-byte Meta from a pool of its own and no copy. It can be a fragment of a packet, never its head: the
//! head's linear part is where headers are written, and nobody may write into bytes that others see.

use crate::buf::Buf;
use crate::meta::{Room, flag};
use crate::pool::{Cache, Direction, Handle, Keep, Kind, Pool, PoolConfig, PoolError, Shared};
use crate::region::Region;
use std::ptr::NonNull;
use std::sync::Arc;

/// Whose memory a view shows: told, once for each token, when the last user of that piece is gone.
pub trait Owner: Send + Sync {
    /// The piece that was attached with `token` has no user any more. Called on whatever thread dropped it, so it must
    /// neither block nor panic.
    fn give_back(&self, token: u64);
}

/// A core's stock of views; `Send`, not `Sync`, like every cache.
pub struct Views {
    cache: Cache,
    foreign: Option<Arc<Region>>,
}

impl Views {
    /// Views of memory that belongs to `owner`, at most `capacity` at a time. The bytes are taken to be *foreign*: whoever
    /// owns them may write at any moment (see [`Chunk::bytes`](crate::Chunk::bytes)).
    ///
    /// # Errors
    /// [`PoolError::Config`] for a capacity of 0 or beyond 2^24; [`PoolError::Region`] when memory can't be had.
    pub fn of_region(capacity: usize, region: Arc<Region>, owner: Arc<dyn Owner>) -> Result<Views, PoolError> {
        Views::make(capacity, Some(region), Some(owner))
    }

    /// Views of [shared buffers](SharedBuf), at most `capacity` at a time.
    ///
    /// # Errors
    /// As for [`of_region`](Views::of_region).
    pub fn of_buffers(capacity: usize) -> Result<Views, PoolError> {
        Views::make(capacity, None, None)
    }

    fn make(capacity: usize, region: Option<Arc<Region>>, owner: Option<Arc<dyn Owner>>) -> Result<Views, PoolError> {
        if !(1..=1 << 24).contains(&capacity) {
            return Err(PoolError::Config { field: "capacity", value: capacity, rule: "from 1 to 2^24" });
        }
        let config = PoolConfig { capacity, ..PoolConfig::default() };
        let shared = Shared::new(&config, Kind::View(owner), region.clone())?;
        let pool = Pool::from_handle(Arc::new(Handle::new(shared)));
        Ok(Views { cache: pool.cache(Direction::Tx)?, foreign: region })
    }

    /// Views of the same memory and owner for another thread, drawing on the same capacity.
    ///
    /// # Errors
    /// [`PoolError::Caches`] when 64 threads have some already.
    pub fn another(&self) -> Result<Views, PoolError> {
        Ok(Views { cache: self.cache.another(Direction::Tx)?, foreign: self.foreign.clone() })
    }

    /// A view of `len` bytes at `offset` of the owner's memory. When the last user of it is gone, the owner gets `token`
    /// back.
    ///
    /// `None` if the bytes do not all lie in the region, if `len` is 0 or more than 65535, if these are views of buffers, or
    /// if as many views exist as the capacity allows; the owner is not told of a token that was not taken.
    #[inline]
    pub fn attach(&mut self, offset: usize, len: usize, token: u64) -> Option<Buf> {
        let at = self.foreign.as_ref()?.at(offset, len)?;
        let len = u16::try_from(len).ok().filter(|&l| l > 0)?;
        self.view(at, len, Keep::Token(token), flag::FOREIGN)
    }

    fn view(&mut self, at: NonNull<u8>, len: u16, keep: Keep, flags: u8) -> Option<Buf> {
        let mut meta = self.cache.alloc_meta()?;
        // SAFETY: the chunk came out of the cache, so it is ours; its pool is the one that `keep` writes to.
        unsafe {
            let m = meta.as_mut();
            m.reset(Room::empty(0, 0));
            m.data = at.as_ptr();
            m.room.len = len;
            m.flags = flags;
            m.owner.as_ref().keep(meta, keep);
            Some(Buf::from_meta(meta))
        }
    }
}

/// A chunk whose bytes are shared by any number of views; nobody can write to it any more.
#[derive(Debug)]
pub struct SharedBuf(std::mem::ManuallyDrop<Buf>);

impl SharedBuf {
    /// Shares a chunk.
    pub fn new(buf: Buf) -> SharedBuf {
        let meta = buf.into_meta();
        // SAFETY: we own the chunk; from here on it lives until its last user calls `unshare`.
        unsafe {
            Shared::share(meta, 1);
            SharedBuf(std::mem::ManuallyDrop::new(Buf::from_meta(meta)))
        }
    }

    /// Bytes that can be viewed.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A view of `len` bytes at `offset`; `None` if they do not all lie inside, if `len` is 0, or if as many views exist as the
    /// capacity allows.
    #[inline]
    pub fn view(&self, offset: usize, len: usize, views: &mut Views) -> Option<Buf> {
        let chunk = self.0.chunk();
        if len == 0 || offset.checked_add(len)? > chunk.len() {
            return None;
        }
        let foreign = if chunk.bytes().is_none() { flag::FOREIGN } else { 0 };
        let at = NonNull::new(chunk.as_ptr().cast_mut().wrapping_add(offset))?;
        let parent = self.meta();
        let view = views.view(at, u16::try_from(len).ok()?, Keep::Parent(parent), foreign)?;
        // SAFETY: this handle holds a reference, so the chunk is alive; the view gets one of its own.
        unsafe { Shared::share(parent, 1) };
        Some(view)
    }

    fn meta(&self) -> NonNull<crate::meta::Meta> {
        self.0.as_meta()
    }
}

impl Drop for SharedBuf {
    fn drop(&mut self) {
        // SAFETY: the handle held one reference, and gives it up.
        unsafe { Shared::unshare(self.meta()) };
    }
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Views").field("foreign", &self.foreign.is_some()).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Backing, Packet};
    use std::sync::Mutex;

    #[derive(Default)]
    struct Ledger(Mutex<Vec<u64>>);
    impl Owner for Ledger {
        fn give_back(&self, token: u64) {
            self.0.lock().unwrap().push(token);
        }
    }

    fn small_pool() -> Pool {
        Pool::new(PoolConfig { capacity: 32, chunk: 2048, backing: Backing::Anonymous, ..Default::default() }).unwrap()
    }

    fn foreign() -> (Views, Arc<Ledger>, Arc<Region>) {
        let region = Arc::new(Region::new(8192, Backing::Memfd).unwrap());
        let ledger = Arc::new(Ledger::default());
        (Views::of_region(4, region.clone(), ledger.clone()).unwrap(), ledger, region)
    }

    #[test]
    fn a_foreign_page_becomes_a_fragment_and_its_owner_gets_the_token_back() {
        let (mut views, ledger, region) = foreign();
        // SAFETY: inside the region; the test is the only user.
        unsafe { region.base().add(100).write(42) };
        let mut cache = small_pool().cache(Direction::Tx).unwrap();
        let mut packet = cache.alloc().unwrap();
        packet.append_buf(views.attach(100, 10, 7).unwrap()).unwrap();
        assert_eq!((packet.len(), packet.linear().len()), (10, 0));
        assert!(packet.chunks().next().unwrap().bytes().is_none(), "no reference into foreign memory");
        assert_eq!(packet.to_vec()[0], 42);
        assert!(ledger.0.lock().unwrap().is_empty());
        drop(packet);
        assert_eq!(*ledger.0.lock().unwrap(), [7]);
    }

    #[test]
    fn freeing_through_the_cache_of_another_pool_tells_the_owner_too() {
        let (mut views, ledger, _region) = foreign();
        let mut cache = small_pool().cache(Direction::Tx).unwrap();
        for token in 0..20 {
            let mut packet = cache.alloc().unwrap();
            packet.append_buf(views.attach(0, 1, token).unwrap()).unwrap();
            cache.free(packet);
        }
        assert_eq!(*ledger.0.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_outside_the_region_and_views_beyond_the_capacity_are_refused() {
        let (mut views, ledger, _region) = foreign();
        assert!(views.attach(8192, 1, 0).is_none());
        assert!(views.attach(usize::MAX, 2, 0).is_none());
        assert!(views.attach(0, 0, 0).is_none());
        let held: Vec<_> = (0..5).map(|t| views.attach(0, 1, t)).collect();
        assert_eq!(held.iter().flatten().count(), 4);
        drop(held);
        assert_eq!(ledger.0.lock().unwrap().len(), 4);
        assert!(views.attach(0, 1, 9).is_some(), "a view that came home can be used again");
    }

    #[test]
    fn the_views_and_the_memory_outlive_their_handles() {
        let (mut views, ledger, region) = foreign();
        let view = views.attach(5, 3, 1).unwrap();
        drop(views);
        drop(region);
        assert_eq!(view.chunk().copy_to(0, &mut [0; 8]), 3);
        std::thread::spawn(move || drop(view)).join().unwrap();
        assert_eq!(*ledger.0.lock().unwrap(), [1]);
    }

    #[test]
    fn a_shared_buffer_goes_home_with_its_last_view() {
        let pool = small_pool();
        let mut views = Views::of_buffers(8).unwrap();
        let mut packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), b"headerpayload").unwrap();
        assert!(packet.pull_front(6));
        let shared = SharedBuf::new(packet.into_linear_buf().unwrap());
        let a = shared.view(0, 3, &mut views).unwrap();
        let b = shared.view(3, 4, &mut views).unwrap();
        assert!(shared.view(4, 4, &mut views).is_none(), "beyond the end");
        drop(shared);
        assert_eq!((a.chunk().bytes().unwrap(), b.chunk().bytes().unwrap()), (&b"pay"[..], &b"load"[..]));
        drop(a);
        assert_eq!(pool.stats().home, 31);
        drop(b);
        assert_eq!(pool.stats().home, 32);
    }
}

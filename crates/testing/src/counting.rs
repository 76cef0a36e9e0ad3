//! An allocator that counts the allocations of each thread, for tests of paths that make none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count. A test program declares it:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: towpath_testing::Counting = towpath_testing::Counting;
/// ```
pub struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is done by the system's allocator; the counter is a thread-local without a
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Allocations of this thread in a thousand runs of `turn`, after a hundred to warm up; `turn`
/// returns the number of packets that it moved, at least 30 on average.
pub fn allocations(mut turn: impl FnMut() -> usize) -> u64 {
    (0..100).for_each(|_| _ = turn());
    let before = ALLOCATIONS.get();
    let moved: usize = (0..1000).map(|_| turn()).sum();
    let after = ALLOCATIONS.get();
    assert!(moved >= 30_000, "only {moved} packets moved");
    after - before
}

//! Threads: where they run, and how they wait.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Processors that this process may use.
pub(crate) fn allowed_cores() -> Vec<usize> {
    let set = affinity().unwrap_or_else(|_| empty_set());
    // SAFETY: the index stays below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Lets the calling thread run on one processor only.
pub(crate) fn pin(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = empty_set();
    // SAFETY: the index is below the size of the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set lives across the call, and its size is the one given; 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }).map(drop)
}

fn affinity() -> io::Result<libc::cpu_set_t> {
    let mut set = empty_set();
    // SAFETY: the set lives across the call, and its size is the one given; 0 is the calling thread.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })?;
    Ok(set)
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: the set is an array of integers, for which all zeroes is a value.
    unsafe { std::mem::zeroed() }
}

/// Descriptors to wait for; keeps its memory between waits.
#[derive(Default)]
pub(crate) struct WaitSet(Vec<libc::pollfd>);

impl WaitSet {
    /// An empty set that can hold `n` descriptors without allocating.
    pub(crate) fn with_capacity(n: usize) -> WaitSet {
        WaitSet(Vec::with_capacity(n))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn readable(&mut self, fd: RawFd) {
        self.0.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    }

    pub(crate) fn writable(&mut self, fd: RawFd) {
        self.0.push(libc::pollfd { fd, events: libc::POLLOUT, revents: 0 });
    }

    /// Waits until one is ready or the time is over. Being interrupted counts as ready.
    pub(crate) fn wait(&mut self, at_most: Duration) {
        let time = libc::timespec { tv_sec: at_most.as_secs() as _, tv_nsec: at_most.subsec_nanos().into() };
        // SAFETY: the array and the time live across the call, and the length is that of the array.
        unsafe { libc::ppoll(self.0.as_mut_ptr(), self.0.len() as _, &time, std::ptr::null()) };
    }
}

/// A counter that wakes whoever waits for its descriptor.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Event> {
        // SAFETY: eventfd takes no pointer.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel just returned this descriptor and nobody else has it.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub(crate) fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes live across the call. It can only fail when the counter is full: readable already.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor unreadable again.
    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes live across the call. It can only fail when the counter is zero: unreadable already.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_signal_ends_the_wait_and_stays_until_it_is_cleared() {
        let event = Event::new().unwrap();
        let mut set = WaitSet::default();
        set.readable(event.fd());
        event.signal();
        let start = Instant::now();
        set.wait(Duration::from_secs(60));
        set.wait(Duration::from_secs(60));
        event.clear();
        set.wait(Duration::from_millis(1));
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_thread_runs_where_it_is_pinned() {
        let core = allowed_cores()[0];
        std::thread::spawn(move || {
            pin(core).unwrap();
            assert_eq!(allowed_cores(), [core]);
        })
        .join()
        .unwrap();
        assert!(pin(100_000).is_err());
    }
}

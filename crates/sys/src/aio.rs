//! Eventfds that the kernel signals, by an asynchronous request (`io_submit(2)`).
//!
//! A write to an eventfd waits while its counter is full. Every process that shares the descriptor
//! can fill the counter and make it blocking, at any moment, and no flag of a write is against it:
//! `RWF_NOWAIT` is refused for eventfds. The kernel itself waits for nothing when it signals the
//! end of an asynchronous request; a counter that is full stays full.
//!
//! ```text
//!   io_submit ── read 0 bytes of an eventfd of ours: fails at once ──► +1 on another's counter
//! ```

use crate::event::EventFd;
use crate::{check, check_len};
use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;

/// Requests that are done and not taken from the kernel's ring, about. There is room for more.
const REQUESTS: libc::c_uint = 64;
/// `IOCB_CMD_PREAD`, and `IOCB_FLAG_RESFD`.
const PREAD: u16 = 0;
const RESFD: u32 = 1;

/// `struct iocb` of `linux/aio_abi.h`. The kernel writes its key.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Done([u64; 4]);

/// Signals eventfds of other processes, and never waits for one. Works from any thread.
#[derive(Debug)]
pub struct Signaller {
    context: libc::c_ulong,
    ours: EventFd,
}

impl Signaller {
    /// # Errors
    /// The error of `io_setup(2)`: the kernel lacks asynchronous requests, or `fs.aio-max-nr` of
    /// them are reserved; or no descriptor is left.
    pub fn new() -> io::Result<Signaller> {
        let ours = EventFd::new()?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context, which outlives the call.
        check_len(unsafe { libc::syscall(libc::SYS_io_setup, REQUESTS, &raw mut context) } as isize)?;
        Ok(Signaller { context, ours })
    }

    /// Makes the descriptor of an eventfd readable.
    pub fn signal(&self, event: &EventFd) {
        if self.submit(event.fd()).is_err() {
            // Those that are done fill the ring.
            self.take_done();
            if self.submit(event.fd()).is_err() {
                // Without memory for a request. A lost signal could hold its receiver for ever.
                event.signal();
            }
        }
    }

    fn submit(&self, event: RawFd) -> io::Result<()> {
        let (fd, result_fd) = (self.ours.fd() as u32, event as u32);
        let mut request = Request { opcode: PREAD, fd, flags: RESFD, result_fd, ..Request::default() };
        let mut list = [&raw mut request];
        // SAFETY: the list and its request outlive the call. The request reads no bytes, and is
        // done when the call returns.
        let sent = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_mut_ptr()) };
        check_len(sent as isize).map(drop)
    }

    #[cold]
    fn take_done(&self) {
        let mut done = [Done::default(); REQUESTS as usize];
        loop {
            let (room, at) = (done.len(), done.as_mut_ptr());
            let no_time = null_mut::<libc::timespec>();
            // SAFETY: there is room for so many, and no time: a minimum of none is not waited for.
            let taken = unsafe { libc::syscall(libc::SYS_io_getevents, self.context, 0, room, at, no_time) };
            if taken < room as libc::c_long {
                return;
            }
        }
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // SAFETY: no pointer; the context is not used any more.
        let _ = check(unsafe { libc::syscall(libc::SYS_io_destroy, self.context) } as libc::c_int);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_full_and_blocking_is_signalled_without_a_wait() {
        let (signaller, event) = (Signaller::new().unwrap(), EventFd::new().unwrap());
        signaller.signal(&event);
        assert_eq!(event.take(), 1);
        event.fill_and_block();
        // More than the ring has room for.
        (0..1000).for_each(|_| signaller.signal(&event));
        assert_eq!(event.take(), u64::MAX);
        (0..1000).for_each(|_| signaller.signal(&event));
        assert_eq!(event.take(), 1000, "none is lost");
    }
}

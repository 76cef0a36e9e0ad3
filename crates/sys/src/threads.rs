//! The threads of this process, as `/proc/self/task` lists them.
//!
//! Some of them may be the kernel's: since Linux 6.4 those of vhost are threads of the process that
//! uses it, as those of io_uring are. They take no signals and make no system calls.

use std::collections::BTreeSet;
use std::io;

/// A thread's number, and the clock tick since boot at which it was started: numbers are reused.
type Thread = (libc::pid_t, u64);

/// The threads that run code of this process, at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Threads(BTreeSet<Thread>);

impl Threads {
    /// No thread: every thread of the process was started since.
    pub const fn none() -> Threads {
        Threads(BTreeSet::new())
    }

    /// The threads that run now, the calling one among them.
    ///
    /// # Errors
    /// Those of reading `/proc/self/task`: `NotFound` if `/proc` is not mounted.
    pub fn now() -> io::Result<Threads> {
        list_all(list, look)
    }

    /// The numbers of those that are not among `before`.
    pub(crate) fn since<'a>(&'a self, before: &'a Threads) -> impl Iterator<Item = libc::pid_t> + 'a {
        self.0.difference(&before.0).map(|(number, _)| *number)
    }
}

/// Lists threads until all that are named still run afterwards. A listing goes from each thread to
/// the next, and may skip some if the one that it has reached ends.
fn list_all(
    list: impl Fn() -> io::Result<Vec<libc::pid_t>>,
    look: impl Fn(libc::pid_t) -> io::Result<Option<Found>>,
) -> io::Result<Threads> {
    loop {
        let numbers = list()?;
        let threads = numbers.iter().map(|&number| Ok(look(number)?.map(|found| (number, found))));
        if let Some(threads) = threads.collect::<io::Result<Option<Vec<_>>>>()? {
            let own = |(number, found)| match found {
                Found::Own(started) => Some((number, started)),
                Found::Kernels => None,
            };
            return Ok(Threads(threads.into_iter().filter_map(own).collect()));
        }
    }
}

fn list() -> io::Result<Vec<libc::pid_t>> {
    let names = std::fs::read_dir("/proc/self/task")?.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>()?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// A thread that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was started at this clock tick, and runs code of this process.
    Own(u64),
    /// It never leaves the kernel.
    Kernels,
}

/// Looks at a thread; `None` if it has ended.
fn look(number: libc::pid_t) -> io::Result<Option<Found>> {
    let Some(stat) = read(number, "stat")? else { return Ok(None) };
    let (flags, started) = parse(&stat).ok_or(io::ErrorKind::InvalidData)?;
    if flags & PF_USER_WORKER == 0 {
        return Ok(Some(Found::Own(started)));
    }
    // The flag had another meaning before Linux 6.4, and the kernel promises none.
    let Some(status) = read(number, "status")? else { return Ok(None) };
    Ok(Some(if blocks_everything(&status) { Found::Kernels } else { Found::Own(started) }))
}

fn read(number: libc::pid_t, file: &str) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(format!("/proc/self/task/{number}/{file}")) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A thread that the kernel has made of one of the process (Linux `include/linux/sched.h`).
const PF_USER_WORKER: u64 = 0x4000;

/// Flags and start: fields 9 and 22 of `proc_pid_stat(5)`. Field 2 is a name in parentheses, of any
/// bytes.
fn parse(stat: &[u8]) -> Option<(u64, u64)> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let mut fields = str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    let flags = fields.nth(9 - 3)?.parse().ok()?;
    Some((flags, fields.nth(22 - 10)?.parse().ok()?))
}

/// Whether a thread blocks every signal that can be blocked, those included which the C library
/// keeps for itself: a line of `proc_pid_status(5)`.
fn blocks_everything(status: &[u8]) -> bool {
    let bit = |signal: libc::c_int| 1u64 << (signal - 1);
    let blocked = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"SigBlk:"));
    let blocked = blocked.and_then(|digits| u64::from_str_radix(str::from_utf8(digits).ok()?.trim(), 16).ok());
    blocked == Some(!(bit(libc::SIGKILL) | bit(libc::SIGSTOP)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;

    /// A thread that runs until the sender is dropped, and its number.
    fn idle() -> (Sender<()>, JoinHandle<()>, libc::pid_t) {
        let (stop, stopped) = channel();
        let (sender, receiver): (_, Receiver<libc::pid_t>) = channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: no pointers.
            sender.send(unsafe { libc::gettid() }).unwrap();
            let _ = stopped.recv();
        });
        (stop, thread, receiver.recv().unwrap())
    }

    #[test]
    fn a_thread_that_was_started_since_is_found_and_those_that_ran_before_are_not() {
        let (_stop_earlier, _, earlier) = idle();
        let before = Threads::now().unwrap();
        let (_stop_later, _, later) = idle();
        let now = Threads::now().unwrap();
        let since: Vec<_> = now.since(&before).collect();
        assert!(since.contains(&later) && !since.contains(&earlier), "{since:?} {later} {earlier}");
        let all: Vec<_> = now.since(&Threads::none()).collect();
        // SAFETY: no pointers.
        let own = unsafe { libc::gettid() };
        assert!([own, earlier, later].iter().all(|number| all.contains(number)), "{all:?}");
    }

    #[test]
    fn a_number_that_a_new_thread_has_again_is_a_new_thread() {
        let before = Threads(BTreeSet::from([(7, 100), (8, 100)]));
        let now = Threads(BTreeSet::from([(7, 100), (8, 200)]));
        assert_eq!(now.since(&before).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn a_listing_is_made_again_if_a_thread_has_ended_meanwhile_because_others_may_be_skipped() {
        let listings = RefCell::new(vec![vec![1, 3, 4], vec![1, 2]]);
        let list = || Ok(listings.borrow_mut().pop().unwrap());
        let look = |number| match number {
            2 => Ok(None),
            4 => Ok(Some(Found::Kernels)),
            _ => Ok(Some(Found::Own(100))),
        };
        let threads = list_all(list, look).unwrap();
        assert_eq!(threads, Threads(BTreeSet::from([(1, 100), (3, 100)])));
        let refused = list_all(|| Ok(vec![1]), |_| Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn the_flags_and_the_time_of_a_thread_are_found_whatever_its_name_is() {
        let stat = b"7 (a) b (\xff)) S 1 2 3 4 5 16448 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(parse(stat), Some((0x4040, 4711)));
        assert_eq!((parse(b""), parse(b"7 (a) S 1")), (None, None));
    }

    /// Lines of Linux 7.3, of a thread of vhost and of another one.
    #[test]
    fn a_thread_of_the_kernel_blocks_all_signals_that_can_be_blocked() {
        let status = |line: &str| blocks_everything(format!("Name:\tx\n{line}\nSigCgt:\t0\n").as_bytes());
        assert!(status("SigBlk:\tfffffffffffbfeff"));
        assert!(!status("SigBlk:\t0000000000000000") && !status("SigBlk:\tfffffffe7ffbfeff") && !status(""));
    }
}

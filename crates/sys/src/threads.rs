//! The threads of this process, as `/proc/self/task` lists them.

use std::collections::BTreeSet;
use std::io;

/// A thread's number, and the clock tick since boot at which it was started: numbers are reused.
type Thread = (libc::pid_t, u64);

/// The threads of this process at a moment.
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
        list_all(list, started)
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
    started: impl Fn(libc::pid_t) -> io::Result<Option<u64>>,
) -> io::Result<Threads> {
    loop {
        let numbers = list()?;
        let threads = numbers.iter().map(|&number| Ok(started(number)?.map(|at| (number, at))));
        if let Some(threads) = threads.collect::<io::Result<Option<_>>>()? {
            return Ok(Threads(threads));
        }
    }
}

fn list() -> io::Result<Vec<libc::pid_t>> {
    let names = std::fs::read_dir("/proc/self/task")?.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>()?;
    Ok(names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect())
}

/// When a thread was started; `None` if it has ended.
fn started(number: libc::pid_t) -> io::Result<Option<u64>> {
    match std::fs::read(format!("/proc/self/task/{number}/stat")) {
        Ok(stat) => start_time(&stat).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Field 22 of `proc_pid_stat(5)`. Field 2 is a name in parentheses, of any bytes.
fn start_time(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = str::from_utf8(&stat[after_name..]).ok()?;
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
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
        let threads = list_all(list, |number| Ok((number != 2).then_some(100))).unwrap();
        assert_eq!(threads, Threads(BTreeSet::from([(1, 100), (3, 100), (4, 100)])));
        let refused = list_all(|| Ok(vec![1]), |_| Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn the_time_of_a_thread_is_found_whatever_its_name_is() {
        let stat = b"7 (a) b (\xff)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(start_time(stat), Some(4711));
        assert_eq!((start_time(b""), start_time(b"7 (a) S 1")), (None, None));
    }
}

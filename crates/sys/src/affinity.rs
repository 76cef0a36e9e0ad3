//! The processors that a thread runs on (`sched_setaffinity(2)`).

use super::check;
use std::io;

/// Processors that this process may use.
pub fn allowed_cores() -> Vec<usize> {
    let set = affinity().unwrap_or_else(|_| empty_set());
    // SAFETY: the index stays below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Binds the calling thread to one processor.
///
/// # Errors
/// The error of `sched_setaffinity(2)`; `EINVAL` for a processor beyond the size of a set.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = empty_set();
    // SAFETY: the index is below the size of the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set lives across the call, and its size is the one given; 0 is the calling
    // thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }).map(drop)
}

/// The processor that the calling thread runs on at this moment; 0 if the kernel does not tell. No
/// system call where the C library knows it from shared memory (rseq, vDSO).
pub fn current_core() -> usize {
    // SAFETY: the call has no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or_default()
}

fn affinity() -> io::Result<libc::cpu_set_t> {
    let mut set = empty_set();
    // SAFETY: the set lives across the call, and its size is the one given; 0 is the calling
    // thread.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) })?;
    Ok(set)
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: the set is an array of integers, for which all zeroes is a value.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_is_pinned() {
        let core = allowed_cores()[0];
        std::thread::spawn(move || {
            pin(core).unwrap();
            assert_eq!(allowed_cores(), [core]);
            assert_eq!(current_core(), core);
        })
        .join()
        .unwrap();
        assert!(pin(100_000).is_err());
    }
}

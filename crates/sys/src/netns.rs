//! Network namespaces: a port may live in another one than the process.
//!
//! Sockets and TUN/TAP descriptors belong to the namespace of the thread that made them, for good. So it is enough to
//! *make* them inside: a short-lived thread enters the namespace, makes them and ends; no other thread of the process ever
//! leaves its own.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Where `ip netns add` keeps names (iproute2, `NETNS_RUN_DIR`).
const NAMED: &str = "/run/netns";

/// The file of a namespace: that of `ip netns add NAME`, or any path such as `/proc/PID/ns/net`.
pub fn path(spec: &str) -> PathBuf {
    if spec.contains('/') { PathBuf::from(spec) } else { PathBuf::from(NAMED).join(spec) }
}

/// Runs `f` in the namespace, or right here if there is none to go to.
///
/// # Errors
/// What opening the namespace's file, `setns(2)` or starting a thread failed with.
pub fn within<R: Send>(spec: Option<&str>, f: impl FnOnce() -> R + Send) -> io::Result<R> {
    let Some(spec) = spec else { return Ok(f()) };
    let namespace = File::open(path(spec))?;
    std::thread::scope(|scope| {
        let inside = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
            // SAFETY: setns takes no pointer; it changes only the namespace of the calling thread, which ends below.
            check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
            Ok(f())
        })?;
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `f` in a new namespace that holds nothing but a loopback, and vanishes afterwards with what `f` left there.
///
/// # Errors
/// What `unshare(2)` (it needs the right to administer the system) or starting a thread failed with.
pub fn scratch<R: Send>(f: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let inside = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
            // SAFETY: unshare takes no pointer; it changes only the namespace of the calling thread, which ends below.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
            Ok(f())
        })?;
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_where_iproute2_keeps_it_and_a_path_is_taken_as_it_is() {
        assert_eq!(path("blue"), PathBuf::from("/run/netns/blue"));
        assert_eq!(path("/proc/self/ns/net"), PathBuf::from("/proc/self/ns/net"));
    }

    #[test]
    fn without_a_namespace_nothing_changes_and_a_missing_one_is_an_error() {
        assert_eq!(within(None, || 7).unwrap(), 7);
        let error = within(Some("no-such-namespace"), || 7).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

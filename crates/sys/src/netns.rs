//! Network namespaces: run a closure in another one than the process's.
//!
//! Sockets and TUN/TAP descriptors belong for good to the namespace of the thread that made them.
//! So a short-lived thread enters the namespace, makes them and ends; no other thread changes its
//! namespace.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// The directory of the names of `ip netns add` (iproute2, `NETNS_RUN_DIR`).
const NETNS_RUN_DIR: &str = "/run/netns";

/// The file of a namespace: a name of `ip netns add`, or a path such as `/proc/PID/ns/net`.
pub fn path(spec: &str) -> PathBuf {
    if spec.contains('/') { PathBuf::from(spec) } else { PathBuf::from(NETNS_RUN_DIR).join(spec) }
}

/// A network namespace that is kept open, so that it can be entered when its path can't be opened
/// any more; or that of the calling thread.
#[derive(Debug)]
pub struct Namespace(Option<File>);

impl Namespace {
    /// The namespace of a name or path; the calling thread's for `None`.
    ///
    /// # Errors
    /// The error of `open(2)` on the namespace's file.
    pub fn open(spec: Option<&str>) -> io::Result<Namespace> {
        spec.map(|spec| File::open(path(spec))).transpose().map(Namespace)
    }

    /// That of the calling thread, whichever it is.
    pub fn current() -> Namespace {
        Namespace(None)
    }

    /// Runs `f` in the namespace.
    ///
    /// # Errors
    /// The error of `setns(2)`, or of the thread's start.
    pub fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> io::Result<R> {
        let Some(namespace) = &self.0 else { return Ok(f()) };
        std::thread::scope(|scope| {
            let inside = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
                // SAFETY: setns takes no pointer; it changes only the namespace of the calling
                // thread, which ends below.
                check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
                Ok(f())
            })?;
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl From<OwnedFd> for Namespace {
    fn from(namespace: OwnedFd) -> Namespace {
        Namespace(Some(File::from(namespace)))
    }
}

/// Runs `f` in a network namespace, or on the calling thread for `None`.
///
/// # Errors
/// The error of `open(2)` on the namespace's file, of `setns(2)`, or of the thread's start.
pub fn within<R: Send>(spec: Option<&str>, f: impl FnOnce() -> R + Send) -> io::Result<R> {
    Namespace::open(spec)?.run(f)
}

/// Runs `f` in a new namespace with nothing but a loopback. The namespace and its devices vanish
/// afterwards.
///
/// # Errors
/// The error of `unshare(2)`, which needs `CAP_SYS_ADMIN`, or of the thread's start.
pub fn scratch<R: Send>(f: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let inside = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, || {
            // SAFETY: unshare takes no pointer; it changes only the namespace of the calling
            // thread, which ends below.
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

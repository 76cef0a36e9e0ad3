//! A private network namespace with a thread in it: one end of traffic through the kernel.
//!
//! A namespace lives as long as the thread that made it. It has no name and leaves nothing behind.

use nix::sched::{CloneFlags, unshare};
use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace.
pub(crate) struct Namespace {
    path: String,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Makes a namespace and a thread in it; the thread is pinned if a core is given.
    pub(crate) fn new(core: Option<usize>) -> Result<Namespace, Box<dyn Error>> {
        let (jobs, todo) = channel::<Job>();
        let (ready, made) = channel();
        let thread = std::thread::spawn(move || {
            if let Some(core) = core {
                let mut set = nix::sched::CpuSet::new();
                let _ = set.set(core).and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
            }
            let result = unshare(CloneFlags::CLONE_NEWNET).map(|()| nix::unistd::gettid());
            let failed = result.is_err();
            if ready.send(result).is_err() || failed {
                return;
            }
            while let Ok(job) = todo.recv() {
                job();
            }
        });
        let thread_id =
            made.recv()?.map_err(|error| format!("a network namespace can't be made ({error}): run as root"))?;
        let path = format!("/proc/{}/task/{thread_id}/ns/net", std::process::id());
        Ok(Namespace { path, jobs: Some(jobs), thread: Some(thread) })
    }

    /// A path that names the namespace while it lives.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Runs `f` in the namespace and waits for it.
    pub(crate) fn run<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> std::io::Result<R> {
        self.start(|| Ok(f())).recv().map_err(std::io::Error::other)?
    }

    /// Runs `f` in the namespace without waiting for it.
    pub(super) fn start<R: Send + 'static>(
        &self,
        f: impl FnOnce() -> std::io::Result<R> + Send + 'static,
    ) -> std::sync::mpsc::Receiver<std::io::Result<R>> {
        let (send, receive) = channel();
        let job: Job = Box::new(move || {
            let _ = send.send(f());
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
        receive
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

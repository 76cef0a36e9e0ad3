//! A thread that takes turns while it is switched on, and sleeps otherwise.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The thread; it ends when this is dropped.
pub(super) struct Worker {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
pub(super) struct State {
    runs: AtomicBool,
    ends: AtomicBool,
}

impl State {
    /// Calls `turn` until the end, except while the thread is paused. `turn` returns how much it
    /// did.
    pub(super) fn turns(&self, mut turn: impl FnMut() -> Result<usize, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
        while !self.ends.load(Ordering::Acquire) {
            if !self.runs.load(Ordering::Acquire) {
                std::thread::park();
            } else if turn()? == 0 {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }
}

impl Worker {
    /// Runs `body` in a thread that is pinned if a core is given; it is paused at first.
    pub(super) fn new(
        what: &'static str,
        core: Option<usize>,
        body: impl FnOnce(&State) -> Result<(), Box<dyn Error>> + Send + 'static,
    ) -> Worker {
        let state = Arc::new(State::default());
        let of_thread = state.clone();
        let thread = std::thread::spawn(move || {
            if let Some(core) = core {
                let mut set = nix::sched::CpuSet::new();
                let _ = set.set(core).and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
            }
            if let Err(error) = body(&of_thread) {
                eprintln!("{what}: {error}");
            }
        });
        Worker { state, thread: Some(thread) }
    }

    /// Starts or pauses the thread.
    pub(super) fn run(&self, runs: bool) {
        self.state.runs.store(runs, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Whether the thread still runs.
    pub(super) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Release);
        self.run(false);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

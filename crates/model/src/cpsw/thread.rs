//! The device on a thread of its own.

use super::Cpsw;
use crate::wire::Bell as EventBell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Sweeps without work before the thread sleeps.
const IDLE_SWEEPS: u32 = 64;
/// Longest sleep in milliseconds: the poll interval of wires without a file descriptor.
const SLEEP_MS: i32 = 1;

/// Wakes the thread if a register is written while it sleeps.
pub(super) struct Wakeup {
    event: EventBell,
    asleep: AtomicBool,
}

impl Wakeup {
    pub(super) fn new() -> io::Result<Wakeup> {
        Ok(Wakeup { event: EventBell::new()?, asleep: AtomicBool::new(false) })
    }

    #[inline]
    pub(super) fn signal(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.event.ring();
        }
    }
}

/// A device with a thread. Dropping it stops the thread; the device stays.
#[derive(Debug)]
pub struct Running {
    model: Cpsw,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(model: Cpsw) -> io::Result<Running> {
        let stop = Arc::new(AtomicBool::new(false));
        let (device, stopped) = (model.clone(), stop.clone());
        let run = move || run(&device, &stopped);
        let thread = std::thread::Builder::new().name("cpsw-model".to_owned()).spawn(run)?;
        Ok(Running { model, stop, thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.model.shared.wakeup.event.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

fn run(model: &Cpsw, stop: &AtomicBool) {
    let mut idle = 0;
    while !stop.load(Ordering::Acquire) {
        let done = {
            let mut device = model.device();
            let done = device.sweep();
            if done > 0 {
                model.shared.lines.update(&device);
            }
            done
        };
        idle = if done > 0 { 0 } else { idle + 1 };
        if idle > IDLE_SWEEPS {
            sleep(model);
            idle = 0;
        } else if done == 0 {
            std::thread::yield_now();
        }
    }
}

/// Sleeps until a register is written or a wire has a frame.
fn sleep(model: &Cpsw) {
    let wakeup = &model.shared.wakeup;
    let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = vec![watch(wakeup.event.fd())];
    wakeup.asleep.store(true, Ordering::SeqCst);
    // The sweep below sees register writes before the store above. Later writes signal.
    let (done, wires) = {
        let mut device = model.device();
        let wires: Vec<_> = device.switch.ports.iter_mut().filter_map(|port| port.wire.wake()).collect();
        let done = device.sweep();
        model.shared.lines.update(&device);
        (done, wires)
    };
    if done == 0 {
        fds.extend(wires.into_iter().map(watch));
        // SAFETY: the pointer and length are those of a vector that lives across the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, SLEEP_MS) };
        wakeup.event.take();
    }
    wakeup.asleep.store(false, Ordering::SeqCst);
}

//! The device on a thread of its own.

use super::Cpsw;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_sys::EventFd;
use towpath_sys::poll::PollSet;

/// Sweeps without work before the thread sleeps.
const IDLE_SWEEPS: u32 = 64;
/// Longest sleep: the poll interval of wires without a file descriptor.
const SLEEP: Duration = Duration::from_millis(1);

/// Wakes the thread if a register is written while it sleeps.
pub(super) struct Wakeup {
    event: EventFd,
    asleep: AtomicBool,
}

impl Wakeup {
    pub(super) fn new() -> io::Result<Wakeup> {
        Ok(Wakeup { event: EventFd::new()?, asleep: AtomicBool::new(false) })
    }

    #[inline]
    pub(super) fn signal(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.event.signal();
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
        self.model.shared.wakeup.event.signal();
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
    let mut set = PollSet::default();
    set.readable(wakeup.event.fd());
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
        wires.into_iter().for_each(|wire| set.readable(wire));
        set.wait(SLEEP);
        wakeup.event.take();
    }
    wakeup.asleep.store(false, Ordering::SeqCst);
}

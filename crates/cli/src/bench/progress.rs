//! The time that a measurement takes so far, on a terminal: its table comes at the end.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The thread that draws the line, and what ends it.
type Drawing = (Sender<()>, JoinHandle<()>);

static DRAWING: Mutex<Option<Drawing>> = Mutex::new(None);

/// Begins a line on standard error that is drawn again every second; nothing if that is no
/// terminal.
pub(super) fn begin() {
    if !io::stderr().is_terminal() {
        return;
    }
    let (end, ended) = channel();
    let thread = thread::spawn(move || {
        let started = Instant::now();
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(Duration::from_secs(1)) {
            eprint!("\rmeasuring for {} s; the table comes at the end", started.elapsed().as_secs());
        }
        eprint!("\r\x1b[K");
    });
    *DRAWING.lock().unwrap_or_else(PoisonError::into_inner) = Some((end, thread));
}

/// Erases the line.
pub(super) fn end() {
    if let Some((end, thread)) = DRAWING.lock().unwrap_or_else(PoisonError::into_inner).take() {
        drop(end);
        // If it panicked, there is no line.
        let _ = thread.join();
    }
}

//! The end of a bench before its time: at the first ^C it prints what it has, the second one ends
//! the process.
//!
//! A bench asks between its measurements. It finishes the round that it is in, or leaves out what
//! has no round yet.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Takes the signals from now on.
///
/// # Errors
/// That of the system.
pub(super) fn begin() -> io::Result<()> {
    let interrupted = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone())?;
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    Ok(())
}

/// Whether the bench is to end.
pub(super) fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|interrupted| interrupted.load(Ordering::Relaxed))
}

/// Numbers below `n`, until the bench is to end; the first one at least.
pub(super) fn rounds(n: usize) -> impl Iterator<Item = usize> {
    (0..n).take_while(|round| *round == 0 || !interrupted())
}

/// Items of a list, until the bench is to end.
pub(super) fn until_interrupted<T>(items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    items.into_iter().take_while(|_| !interrupted())
}

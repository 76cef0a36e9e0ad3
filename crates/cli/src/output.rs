//! Standard output: a reader that left is no failure, a full disk is one. If a capture is written
//! there, everything else goes to standard error.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// A capture is written to standard output.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Leaves standard output to a capture.
pub(crate) fn leave_stdout() {
    TAKEN.store(true, Relaxed);
}

/// Standard output, or standard error if the other is taken.
pub(crate) fn lock() -> Box<dyn Write> {
    if TAKEN.load(Relaxed) { Box::new(io::stderr().lock()) } else { Box::new(io::stdout().lock()) }
}

/// Standard output can't be written.
#[derive(Debug)]
pub(crate) struct OutputError(io::Error);

impl Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output can't be written: {}", self.0)
    }
}

impl std::error::Error for OutputError {}

/// Whether the output still has a reader.
///
/// # Errors
/// Any failure but that of a pipe without a reader.
pub(crate) fn is_read(written: io::Result<()>) -> Result<bool, OutputError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(OutputError(error)),
    }
}

/// Writes text.
pub(crate) fn show(text: impl Display) -> Result<(), OutputError> {
    let mut out = lock();
    is_read(write!(out, "{text}").and_then(|()| out.flush())).map(drop)
}

/// Writes a line, as `println!`; a result instead of a panic.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::show(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use outln;

//! Waiting for a condition, however busy the machine is.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

/// The time limit of a wait.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `what` is the case, and fails after [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a socket of `program`'s network namespace listens at `path`. Its file is there a moment
/// before, and connections are refused until then.
pub fn listens(program: &Child, path: &Path) -> bool {
    // __SO_ACCEPTCON of linux/net.h, in the fourth column; the path is the last one.
    const LISTENS: u32 = 1 << 16;
    let sockets = std::fs::read_to_string(format!("/proc/{}/net/unix", program.id())).unwrap_or_default();
    sockets.lines().skip(1).any(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, flags, _, _, _, at] = columns[..] else { return false };
        Path::new(at) == path && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LISTENS != 0)
    })
}

//! Waiting for a condition, however busy the machine is.

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

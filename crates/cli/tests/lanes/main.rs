//! Lanes, GRO and verdicts, end to end: real traffic through `towpath fwd --lanes`, checked by the
//! kernel at both ends.
//!
//! ```text
//!   order    whether segments overtake each other, with lanes and without
//!   storm    the same while flows move between lanes all the time
//!   rules    verdicts at rx and in the lane
//!   bytes    super-packets that GRO made, received by sockets
//! ```

mod bytes;
mod order;
mod rules;
mod storm;
#[path = "../support/mod.rs"]
mod support;

/// Cores for two lanes; on a single core the lanes share it.
fn two_lanes() -> &'static str {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) { "0,1" } else { "0,0" }
}

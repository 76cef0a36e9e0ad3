//! Application sockets: an application that does whatever the input says with all that it shares with the datapath, beside an honest one.
//!
//! What the bytes mean, and what must be so, is told in `crates/ports/tests/hostile/script.rs`, which a property test runs too.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the script needs a part of what the tests need")]
#[path = "../../crates/ports/tests/hostile/rig.rs"]
mod rig;
#[allow(dead_code, reason = "as above")]
#[path = "../../crates/ports/tests/hostile/rogue.rs"]
mod rogue;
#[path = "../../crates/ports/tests/hostile/script.rs"]
mod script;

fuzz_target!(|script: &[u8]| script::follow(script));

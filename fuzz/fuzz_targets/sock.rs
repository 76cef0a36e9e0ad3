//! Application sockets: an application that does what the input tells, with all that it shares with
//! the datapath, beside an honest one.
//!
//! `crates/ports/tests/hostile/script.rs` describes the bytes and the checks; a property test runs
//! it too.
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

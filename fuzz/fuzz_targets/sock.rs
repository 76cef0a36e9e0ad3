//! Application sockets: an application that does what the input tells, with all that it shares with
//! the datapath, beside an honest one.
//!
//! `crates/ports/tests/hostile/script.rs` describes the bytes and the checks; a property test runs
//! it too.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

#[allow(dead_code, reason = "the script needs a part of what the tests need")]
#[path = "../../crates/ports/tests/hostile/rig.rs"]
mod rig;
#[allow(dead_code, reason = "as above")]
#[path = "../../crates/ports/tests/hostile/rogue.rs"]
mod rogue;
#[path = "../../crates/ports/tests/hostile/script.rs"]
mod script;

use script::Stage;

/// Kinds of stages, by the first byte.
const KINDS: usize = 8;
/// Scripts at a stage before it ends, and every buffer is counted.
const SCRIPTS: u32 = 4096;

thread_local! {
    /// The stage of each kind, and the number of its scripts.
    static STAGES: RefCell<[Option<(Stage, u32)>; KINDS]> = const { RefCell::new([const { None }; KINDS]) };
}

fuzz_target!(|script: &[u8]| {
    let Some((&kind, script)) = script.split_first() else { return };
    STAGES.with_borrow_mut(|stages| {
        let place = &mut stages[usize::from(kind) % KINDS];
        let (stage, scripts) = place.get_or_insert_with(|| (Stage::new(kind), 0));
        stage.follow(script);
        *scripts += 1;
        if *scripts == SCRIPTS
            && let Some((stage, _)) = place.take()
        {
            stage.end();
        }
    });
});

//! Any bytes as a frame of either kind, as every header, and under every checksum function.
//!
//! The first two bytes choose where a partial checksum would be; the rest is the frame. What must
//! hold is asserted in `exercise`, which the tests of `towpath-wire` use as well.
#![no_main]

#[path = "../../crates/wire/tests/common/exercise.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;
use towpath_wire::{LinkKind, dissect};

fuzz_target!(|data: &[u8]| {
    let Some((&[start, offset], frame)) = data.split_first_chunk() else {
        return;
    };
    exercise::checksums(frame, usize::from(start), usize::from(offset));
    for kind in [LinkKind::Ethernet, LinkKind::Ip] {
        exercise::dissector(frame, kind);
        let found = dissect(frame, kind);
        for at in [found.l3, found.l4, found.payload] {
            exercise::every_view(&frame[usize::from(at)..]);
        }
    }
    exercise::every_view(frame);
});

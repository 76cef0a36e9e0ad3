//! Any text as the options of a tee, as a client of the control socket sends them: what is accepted
//! can be attached, or is refused by name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath::engine::tee::{TeeSlot, attach};
use towpath::tee::TeeOptions;
use towpath::wire::offload::LinkKind;

fuzz_target!(|text: &str| {
    match text.parse::<TeeOptions>() {
        Ok(mut options) => {
            assert!((1..=262_144).contains(&options.config.snaplen));
            assert!((1 << 16..=1 << 30).contains(&options.config.ring));
            options.config.ring = 1 << 16;
            let slot = TeeSlot::new(Some(0), Some(1), LinkKind::Ethernet);
            let (guard, mut reader) = attach(&[slot], &options.config).expect("what was read can be attached");
            assert_eq!(guard.detach().matched, 0);
            assert!(reader.is_closed());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

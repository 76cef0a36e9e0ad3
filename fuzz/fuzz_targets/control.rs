//! Any bytes as a change of settings, as a client of the control socket sends it, with those of a
//! real port: what was set is what is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use towpath_model::e1000e as model;
use towpath_model::wire::Loopback;
use towpath_nic::e1000e::{Config, E1000e};
use towpath_packet::port::{Port, PortControl, SettingValue};

#[path = "../../crates/cli/src/control/settings.rs"]
mod settings;

use settings::Change;

fn control() -> Arc<dyn PortControl> {
    let bus = model::launch(model::Config::default(), Loopback::default()).unwrap();
    Port::control(&E1000e::open(bus, "e1000e:model", Config::default()).unwrap()).unwrap()
}

thread_local! {
    static PORT: Arc<dyn PortControl> = control();
}

fuzz_target!(|data: &[u8]| {
    PORT.with(|port| {
        let before: Vec<_> = port.settings().into_iter().map(|setting| setting.value).collect();
        let Ok(change) = serde_json::from_slice::<Change>(data) else { return };
        let answer = settings::set(&change, &[("null:", &Nothing), ("e1000e:model", &**port)]);
        let after = port.settings();
        match answer {
            Ok(lines) => {
                assert_eq!(lines.len(), after.len());
                let is_same = |(line, now): (&settings::Line, &towpath_packet::port::Setting)| {
                    line.name == now.name && line.value == now.value.clone().into()
                };
                assert!(lines.iter().zip(&after).all(is_same));
                let wanted = |name: &str| change.set.iter().rev().find(|(set, _)| set == name);
                for (now, before) in after.iter().zip(before) {
                    match wanted(now.name).filter(|_| change.port.is_some()) {
                        None => assert_eq!(now.value, before, "{}", now.name),
                        // A text may have another form, which means the same.
                        Some((_, value)) if matches!(now.value, SettingValue::Number(_)) => {
                            assert_eq!(now.value, value.clone().into(), "{}", now.name);
                        }
                        Some(_) => port.set(now.name, &now.value).expect("what is read can be set"),
                    }
                }
                assert_eq!(port.settings(), after, "what was read and set again is read again");
            }
            Err(why) => assert!(why.contains("e1000e:model"), "{why}"),
        }
    });
});

/// A port without settings.
struct Nothing;

impl PortControl for Nothing {
    fn settings(&self) -> Vec<towpath_packet::port::Setting> {
        Vec::new()
    }

    fn set(&self, name: &str, _value: &SettingValue) -> Result<(), towpath_packet::port::ControlError> {
        unreachable!("{name} of a port without settings")
    }
}

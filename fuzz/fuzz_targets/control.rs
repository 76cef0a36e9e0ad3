//! Any bytes as a request of the control socket, with the settings of a real port: the answer is
//! one line of JSON, and what was set is what is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use towpath_model::e1000e as model;
use towpath_model::wire::Loopback;
use towpath_nic::e1000e::{Config, E1000e};
use towpath_packet::port::{Port, PortControl, SettingValue};

#[allow(dead_code, reason = "the client's part")]
#[path = "../../crates/cli/src/control/request.rs"]
mod request;

use request::{Answer, Request, answer};

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
        let line = answer(data, &[("null:", &Nothing), ("e1000e:model", &**port)]).expect("an answer can be written");
        let (end, text) = line.split_last().expect("an answer is not empty");
        assert!(*end == b'\n' && !text.contains(&b'\n'), "one line");
        let answer: Answer = serde_json::from_slice(text).expect("an answer can be read");
        let after = port.settings();
        let first = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
        match (serde_json::from_slice::<Request>(first), answer) {
            (Ok(request), Answer::Settings(lines)) => {
                assert_eq!(lines.len(), after.len());
                assert!(
                    lines
                        .iter()
                        .zip(&after)
                        .all(|(line, now)| line.name == now.name && line.value == now.value.clone().into())
                );
                let wanted = |name: &str| request.set.iter().rev().find(|(set, _)| set == name);
                for (now, before) in after.iter().zip(before) {
                    match wanted(now.name).filter(|_| request.port.is_some()) {
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
            (Ok(_), Answer::Error(why)) => assert!(why.contains("e1000e:model"), "{why}"),
            (Err(_), answer) => {
                assert!(matches!(answer, Answer::Error(why) if why.starts_with("not a request")));
                assert!(after.into_iter().map(|setting| setting.value).eq(before), "nothing is changed");
            }
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

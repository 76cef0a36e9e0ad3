//! Devices: made, inherited, probed, changed.

use crate::namespace;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use towpath_tun::{Change, Config, Device, Kind, Offloads, probe};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

#[test]
fn tunnels_are_probed_on_a_scratch_device() {
    let Some(_netns) = namespace("tunnels_are_probed_on_a_scratch_device") else { return };
    for kind in [Kind::Tun, Kind::Tap] {
        eprintln!("{kind:?}: {}", probe::tunnels(kind).unwrap());
    }
}

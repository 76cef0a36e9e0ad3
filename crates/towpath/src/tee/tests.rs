//! Tees of bridges whose ports come and go.

use super::*;
use crate::{Bridge, BridgePort, Opener, Role};
use std::time::Instant;

/// The kinds and bodies of a stream's blocks.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
    let mut all = Vec::new();
    while let Some((head, _)) = bytes.split_first_chunk::<8>() {
        let [kind, len] = [&head[..4], &head[4..]].map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let (block, rest) = bytes.split_at(len as usize);
        all.push((kind, &block[8..block.len() - 4]));
        bytes = rest;
    }
    all
}

#[test]
fn a_tee_has_what_passes_ports_that_are_attached_later_each_under_its_name() {
    let open = |uri: &str| Opener::new().open(&uri.parse().unwrap(), Role::Both).unwrap();
    let port = |name: &str, uri: &str| (BridgePort::named(name), open(uri));
    let bridge = Bridge { endless: true, ..Bridge::default() };
    let running = bridge.start(vec![port("feed", "gen:rate=20000"), port("out", "null:")]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("all.pcapng");
    let spec: TeeSpec = format!("{};at=tx;snaplen=64", file.display()).parse().unwrap();
    let tee = running.observer().tee(&spec.config, spec.open().unwrap()).unwrap();
    let sent = |name: &str| {
        let reading = running.meter().read();
        reading.ports.iter().find(|port| port.name == name).map_or(0, |port| port.tx.packets)
    };
    let bridge = running.bridge().unwrap();
    for name in ["later", "more", "later"] {
        let before = sent(name);
        let (config, opened) = port(name, "null:");
        bridge.attach(config, opened).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while sent(name) < before + 200 {
            assert!(Instant::now() < end, "{name} gets nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        bridge.detach(name).unwrap();
    }
    let (later, more) = (sent("later"), sent("more"));
    let report = tee.stop();
    running.stop();
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(report.matched, report.written + report.missed, "{report:?}");
    let blocks = blocks(&bytes);
    let is_name = |body: &&[u8], name: &str| body.get(12..).is_some_and(|rest| rest.starts_with(name.as_bytes()));
    let interfaces: Vec<_> = blocks.iter().filter(|(kind, _)| *kind == 1).map(|(_, body)| *body).collect();
    let names = ["feed", "out", "later", "more"];
    assert!(interfaces.len() == 4 && interfaces.iter().zip(names).all(|(body, name)| is_name(body, name)));
    let packets =
        |interface: u8| blocks.iter().filter(|(kind, body)| *kind == 6 && body[0] == interface).count() as u64;
    let found = packets(2) + packets(3);
    assert!(found <= later + more && found + report.missed >= later + more, "{found} of {later} + {more}, {report:?}");
}

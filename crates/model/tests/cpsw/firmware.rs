//! The messages that firmware refuses, and what a field that is not valid changes (M18).

use super::host::{Host, SIZE};
use towpath_bus::tisci::{Message, Range, RingMode, Tisci};
use towpath_model::cpsw::{Config, Cpsw, Rule, Soc};

/// The same message with other bytes at an offset.
fn changed(message: Message, at: usize, bytes: &[u8]) -> Message {
    let mut copy = message.bytes().to_vec();
    copy[at..at + bytes.len()].copy_from_slice(bytes);
    Message::from_bytes(&copy).unwrap()
}

#[test]
fn each_soc_grants_the_ranges_of_its_descriptions_and_refuses_those_of_the_other() {
    let table = [
        (Soc::Am62x, [(0x24, 19, 8), (0x11, 19, 64), (0x2b, 19, 1), (0x2c, 19, 16)]),
        (Soc::Am64x, [(0x24, 16, 8), (0x11, 16, 64), (0x2b, 16, 1), (0x2c, 16, 16)]),
    ];
    for (soc, ranges) in table {
        let firmware = Cpsw::new(Config::default().soc(soc)).unwrap().firmware();
        for (subtype, start, count) in ranges {
            assert_eq!(firmware.ranges(30, subtype).unwrap()[0], Range { start, count }, "{soc:?} {subtype:#x}");
        }
        assert!(firmware.ranges(31, 0x24).is_err() && firmware.ranges(30, 0x23).is_err());
    }
    let host = Host::new(Soc::Am64x, false);
    let refused = |result: Result<(), towpath_bus::tisci::Refused>| result.unwrap_err().what;
    let channel = host.tx_channel();
    let theirs = channel.channel(24).completion_ring(80);
    assert_eq!(refused(host.firmware.tx_channel_config(&theirs)), "the host was not granted this resource");
    let flow = host.rx_flow().flow(32);
    host.control_rx(0);
    assert_eq!(refused(host.firmware.rx_flow_config(&flow)), "the host was not granted this resource");
    // The ring of AM62x' first flow is one of another user here.
    let ring = host.ring_config(118, &host.slots, RingMode::Exposed);
    assert_eq!(refused(host.firmware.ring_config(&ring)), "the host was not granted this ring");
    assert_eq!(refused(host.firmware.psil_pair(25, 0x1011, 0xc600)), "no such thread of the switch");
    assert_eq!(refused(host.firmware.psil_pair(30, 0x1011, 0xc501)), "the device is no navigator");
    assert_eq!(refused(host.firmware.psil_pair(25, 0x1011, 0x4500)), "a destination thread is at least 0x8000");
}

#[test]
fn a_ring_is_set_up_only_with_address_count_mode_and_size_and_reset_only_with_its_own_count() {
    let host = Host::new(Soc::J784s4, false);
    host.control(0, 0);
    let ring = host.ring_config(host.submit(), &host.slots, RingMode::Exposed);
    for bit in 0..5 {
        let message = changed(ring.message(), 8, &[0x9f & !(1 << bit)]);
        assert!(host.firmware.call(&message).is_err(), "without field {bit}");
    }
    assert!(host.firmware.call(&changed(ring.message(), 29, &[2])).is_err(), "elements of 16 bytes");
    assert!(host.firmware.call(&changed(ring.message(), 28, &[3])).is_err(), "mode 3");
    // An address with a tag in it.
    assert!(host.firmware.call(&changed(ring.message(), 22, &[15])).is_err());
    assert!(host.firmware.ring_reset(315, host.submit(), SIZE + 1).is_err());
    assert!(host.firmware.ring_reset(319, host.submit(), SIZE).is_err(), "the engine has no rings");
    assert!(host.firmware.ring_reset(315, host.submit(), SIZE).is_ok());
    assert!(host.firmware.ring_reset(315, 450, SIZE).is_err(), "a ring that is not set up");
    host.assert_clean();
    host.firmware.call(&changed(ring.message(), 8, &[0xbf])).unwrap();
    host.assert_violated(Rule::BusOrder);
}

#[test]
fn a_tag_that_is_not_valid_or_differs_from_the_ring_is_reported_when_the_channel_is_enabled() {
    for (at, bytes) in [(8, &[0x1d_u8][..]), (19, &[14])] {
        let host = Host::new(Soc::Am64x, false);
        host.control(0, 0);
        // Another channel of the engine has no tag yet.
        let channel = host.tx_channel().channel(17).completion_ring(24);
        let ring = host.ring_config(24, &host.slots, RingMode::Exposed);
        host.firmware.ring_config(&ring).unwrap();
        host.firmware.call(&changed(channel.message(), at, bytes)).unwrap();
        host.firmware.psil_pair(25, 0x1011, 0xc501).unwrap();
        host.assert_clean();
        host.control_channel(17, 1 << 31);
        host.assert_violated(Rule::ChannelTag);
    }
}

#[test]
fn a_channel_that_does_not_pass_packets_by_reference_is_not_ready() {
    let host = Host::new(Soc::Am64x, false);
    let channel = host.tx_channel().channel(17).completion_ring(24);
    host.firmware.ring_config(&host.ring_config(24, &host.slots, RingMode::Exposed)).unwrap();
    host.firmware.call(&changed(channel.message(), 8, &[0x1b])).unwrap();
    host.firmware.psil_pair(25, 0x1011, 0xc501).unwrap();
    host.control_channel(17, 1 << 31);
    host.assert_violated(Rule::NotReady);
}

#[test]
fn a_descriptor_names_the_input_port_only_if_its_flow_selects_the_remote_source_tag() {
    for soc in [Soc::Am64x, Soc::J784s4] {
        for (at, bytes, port) in [(29, &[4_u8][..], 1), (29, &[1], 0), (9, &[0xf4], 0)] {
            let mut host = Host::new(soc, false);
            host.control_rx(0);
            host.firmware.call(&changed(fresh(&host), at, bytes)).unwrap();
            host.use_second_flow();
            host.post(0);
            assert!(host.model.inject(1, &[0; 60], towpath_model::cpsw::Injected::default()));
            host.model.settle();
            assert_eq!(host.source_tag(0), port, "{soc:?}: {bytes:x?} at {at}");
            host.assert_clean();
        }
    }
}

/// A flow that was never set up, with the rings of the first.
fn fresh(host: &Host) -> Message {
    host.rx_flow().flow(host.rx_flow().flow + 1).message()
}

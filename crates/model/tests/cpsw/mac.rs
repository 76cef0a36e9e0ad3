//! MACs, and the management bus of the PHYs.

use super::host::Host;
use towpath_model::cpsw::{Config, PhyStart, Soc};
use towpath_model::wire::Wire;

const GMII_EN: u32 = 1 << 5;
const GIG: u32 = 1 << 7;
const CMD_IDLE: u32 = 1 << 11;
const FULL: u32 = 1;
const CONTROL: usize = 0x330;

/// Whether frames pass, out and in.
fn passes(host: &mut Host) -> (bool, bool) {
    let (sent, received) = (host.model.port_stats(1).sent, host.model.starved());
    host.send(0);
    assert!(host.plug.send(&[2; 60]));
    host.model.settle();
    host.reverse_doorbell(0xff);
    (host.model.port_stats(1).sent > sent, host.model.starved() > received)
}

#[test]
fn a_mac_passes_frames_only_if_it_is_enabled_at_the_speed_of_its_link_and_not_commanded_idle() {
    for (control, expected) in [
        (GMII_EN | GIG | FULL, true),
        (GIG | FULL, false),
        (GMII_EN | FULL, false),
        (GMII_EN | GIG, false),
        (GMII_EN | GIG | FULL | CMD_IDLE, false),
        (0, false),
    ] {
        let mut host = Host::new(Soc::Am64x, false);
        host.mac_register(1, CONTROL, control);
        assert_eq!(passes(&mut host), (expected, expected), "{control:#x}");
        host.assert_clean();
    }
}

#[test]
fn a_reset_takes_time_and_leaves_a_mac_that_passes_nothing() {
    let mut host = Host::new(Soc::Am64x, false);
    host.mac_register(1, 0x308, 0x1234);
    host.mac_register(1, 0x338, 1);
    assert_eq!((host.read(0x2_2338), host.read(0x2_2338), host.read(0x2_2338)), (1, 1, 0));
    assert_eq!((host.read(0x2_2330), host.read(0x2_2308)), (0, 0));
    assert_eq!(passes(&mut host), (false, false));
}

#[test]
fn a_mac_that_is_commanded_idle_is_idle_after_some_reads() {
    let host = Host::new(Soc::Am64x, false);
    assert_eq!(host.read(0x2_2334), 0);
    host.mac_register(1, CONTROL, GMII_EN | CMD_IDLE);
    let reads: Vec<_> = (0..4).map(|_| host.read(0x2_2334) >> 28).collect();
    assert_eq!(reads, [0, 0, 15, 15]);
}

/// Writes one bit at the rising edge of a clock, or lets the line go.
fn clock(host: &Host, bit: Option<u32>) -> u32 {
    let bits = bit.map_or(0, |bit| 2 | bit);
    host.write(0xf30, bits);
    host.write(0xf30, bits | 4);
    host.write(0xf30, bits);
    host.read(0xf30) & 1
}

/// A transaction, bit by bit, by clause 22 of IEEE 802.3.
fn transaction(host: &Host, ones: u32, operation: u32, phy: u32, register: u32, data: u32) -> Option<u32> {
    for _ in 0..ones {
        clock(host, Some(1));
    }
    let header = 1 << 12 | operation << 10 | phy << 5 | register;
    for i in (0..14).rev() {
        clock(host, Some(header >> i & 1));
    }
    if operation == 1 {
        for i in (0..18).rev() {
            clock(host, Some((2 << 16 | data) >> i & 1));
        }
        return None;
    }
    let acknowledged = clock(host, None) == 0;
    let word = (0..16).fold(0, |word, _| word << 1 | clock(host, None));
    acknowledged.then_some(word)
}

#[test]
fn a_phy_answers_bits_only_in_manual_mode_after_a_preamble_and_at_its_address() {
    let host = Host::with(Config::default().ports(1).phy(PhyStart::PoweredDown), false);
    assert_eq!(transaction(&host, 32, 2, 0, 2, 0), None, "automatic mode");
    host.write(0xf34, 1 << 31);
    assert_eq!(transaction(&host, 32, 2, 0, 2, 0), Some(0x2000));
    // The answer ended with zeros: bits that nothing drives are ones, and count.
    assert_eq!(transaction(&host, 20, 2, 0, 3, 0), None, "a short preamble");
    assert_eq!(transaction(&host, 32, 2, 1, 2, 0), None, "no such PHY");
    assert_eq!(transaction(&host, 32, 2, 0, 3, 0), Some(0xa231));
    transaction(&host, 32, 1, 0, 4, 0x0de1);
    assert_eq!(transaction(&host, 33, 2, 0, 4, 0), Some(0x0de1));
    // BMCR: power off, as Linux leaves it.
    assert_eq!(transaction(&host, 32, 2, 0, 0, 0), Some(0x1940));
}

#[test]
fn a_transaction_by_the_register_takes_the_state_machine_and_is_acknowledged_by_a_phy() {
    let host = Host::with(Config::default().ports(1), false);
    let go = |bits: u32| {
        host.write(0xf80, 1 << 31 | bits);
        (0..8).map(|_| host.read(0xf80)).find(|word| word >> 31 == 0)
    };
    assert_eq!(go(2 << 21), None, "the state machine is off");
    host.write(0xf04, 1 << 30 | 0xff);
    assert_eq!(go(2 << 21).unwrap() & 0x2000_ffff, 0x2000_2000);
    assert_eq!(go(2 << 21 | 3 << 16).unwrap() & 0x2000_0000, 0, "no such PHY");
    go(1 << 30 | 9 << 21 | 0x0200).unwrap();
    assert_eq!(host.model.phy_register(1, 9), 0x0200);
}

//! `vhost:` with foreign front ends: DPDK's `net_virtio_user`, unmodified.
//!
//! ```text
//!   test ── application socket ── towpath ── vhost: ══ rings in DPDK's memory ══ testpmd, which returns frames
//! ```
//!
//! | module | what |
//! |---|---|
//! | `testpmd` | DPDK's program, with memory that needs no huge pages |
//! | `echo` | an application whose frames come back |

mod echo;
#[path = "../support/mod.rs"]
mod support;
mod testpmd;

use echo::Echo;
use std::path::Path;
use support::{Need, Towpath, needs, until};
use testpmd::Testpmd;

/// What a ring can be like, as options of `net_virtio_user`.
const RINGS: [&str; 6] = [
    "",
    "in_order=0",
    "in_order=0,mrg_rxbuf=0",
    "packed_vq=1",
    "packed_vq=1,in_order=0",
    "packed_vq=1,in_order=0,mrg_rxbuf=0",
];

fn can_run(name: &str) -> bool {
    needs(name, &[Need::Program("dpdk-testpmd")])
}

fn vhost(dir: &Path, options: &str) -> String {
    format!("vhost:{}{options}", dir.join("v").display())
}

/// `towpath fwd` between an application's socket and a guest's.
fn forward(dir: &Path, options: &str) -> Towpath {
    let sock = format!("sock:{}", dir.join("s").display());
    Towpath::start(&["fwd", &sock, &vhost(dir, options), "--gro", "off"])
}

#[test]
fn dpdk_as_front_end_returns_every_byte_of_every_length_over_every_kind_of_ring() {
    if !can_run("dpdk_as_front_end_returns_every_byte_of_every_length_over_every_kind_of_ring") {
        return;
    }
    for ring in RINGS {
        println!("ring: {ring:?}");
        let dir = tempfile::tempdir().unwrap();
        let towpath = forward(dir.path(), "");
        let testpmd = Testpmd::front_end(&dir.path().join("v"), ring, "macswap");
        let mut echo = Echo::connect(&dir.path().join("s"));
        echo.is_reached();
        echo.returns([14, 60, 64, 65, 128, 255, 256, 257, 512, 1024, 1500, 1514]);
        for round in 0..50 {
            echo.returns((0..16).map(|n| 60 + (round * 16 + n) * 1454 / 800));
        }
        drop(echo);
        drop(testpmd);
        let summary = towpath.stop().summary();
        summary.is_balanced();
        assert!(summary.balance.sent >= 2 * 812, "{summary:#?}");
    }
}

#[test]
fn a_front_end_that_listens_is_connected_to_and_found_again() {
    if !can_run("a_front_end_that_listens_is_connected_to_and_found_again") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let towpath = forward(dir.path(), "?server=off");
    for ring in ["server=1", "server=1,packed_vq=1"] {
        let testpmd = Testpmd::front_end(&dir.path().join("v"), ring, "macswap");
        let mut echo = Echo::connect(&dir.path().join("s"));
        echo.is_reached();
        echo.returns([60, 1514]);
        drop(testpmd);
        let _ = std::fs::remove_file(dir.path().join("v"));
    }
    towpath.stop().summary().is_balanced();
}

#[test]
fn front_ends_that_are_killed_at_any_moment_leave_nothing_behind() {
    if !can_run("front_ends_that_are_killed_at_any_moment_leave_nothing_behind") {
        return;
    }
    let kills = std::env::var("TOWPATH_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let dir = tempfile::tempdir().unwrap();
    let gen_port = "gen:flows=16,size=imix,payload=stale";
    let mut towpath = Towpath::start(&["fwd", gen_port, &vhost(dir.path(), ""), "--gro", "off"]);
    let files = support::process::files(towpath.pid());
    for n in 0..kills {
        let ring = RINGS[n % RINGS.len()];
        let testpmd = Testpmd::front_end(&dir.path().join("v"), ring, "macswap");
        // Its own frames, and those of the generator that it returns, arrive from different moments on.
        let before = towpath.look().ports.iter().map(|port| port.rx.packets).max();
        until("frames come back", || towpath.look().ports.iter().map(|port| port.rx.packets).max() > before);
        std::thread::sleep(std::time::Duration::from_millis(n as u64 * 7 % 50));
        drop(testpmd);
    }
    until("descriptors as before", || support::process::files(towpath.pid()) <= files);
    towpath.stop().summary().is_balanced();
}

//! `vhost:` with foreign front ends: DPDK's `net_virtio_user`, unmodified; and with one that
//! outlives the datapath.
//!
//! ```text
//!   test ── application socket ── towpath ── vhost: ══ rings in DPDK's memory ══ testpmd, which returns frames
//! ```
//!
//! | module | what |
//! |---|---|
//! | `testpmd` | DPDK's program, with memory that needs no huge pages |
//! | `echo` | an application whose frames come back |
//! | `survivor` | a front end with a record of what is in flight |

mod echo;
#[path = "../support/mod.rs"]
mod support;
mod survivor;
mod testpmd;

use echo::Echo;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{LONGEST, Need, Towpath, needs, until};
use survivor::{IN_ORDER, PACKED, Survivor};
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

/// How often something is killed.
fn kills(few: usize) -> usize {
    std::env::var("TOWPATH_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
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
    let kills = kills(8);
    let dir = tempfile::tempdir().unwrap();
    let gen_port = "gen:flows=16,size=imix,payload=stale";
    let mut towpath = Towpath::start(&["fwd", gen_port, &vhost(dir.path(), ""), "--gro", "off"]);
    let files = support::process::files(towpath.pid());
    for n in 0..kills {
        let ring = RINGS[n % RINGS.len()];
        let testpmd = Testpmd::front_end(&dir.path().join("v"), ring, "macswap");
        // Its own frames, and those of the generator that it returns, arrive from different moments
        // on.
        let before = towpath.look().ports.iter().map(|port| port.rx.packets).max();
        until("frames come back", || towpath.look().ports.iter().map(|port| port.rx.packets).max() > before);
        std::thread::sleep(Duration::from_millis(n as u64 * 7 % 50));
        drop(testpmd);
    }
    until("descriptors as before", || support::process::files(towpath.pid()) <= files);
    towpath.stop().summary().is_balanced();
}

/// What two guests did: one sends numbered frames, the other one receives them.
#[derive(Default)]
struct Course {
    sent: u64,
    /// By number.
    arrived: Vec<bool>,
    arrivals: usize,
    /// Frames that arrived once more.
    again: usize,
}

impl Course {
    fn step(&mut self, from: &mut Survivor, to: &mut Survivor, more: bool) {
        from.reap();
        while more && from.send(self.sent) {
            self.sent += 1;
            self.arrived.push(false);
        }
        for number in to.receive() {
            let before = std::mem::replace(&mut self.arrived[number as usize], true);
            self.again += usize::from(before);
            self.arrivals += usize::from(!before);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Frames are longer than those that are copied: their chains are used when the other guest has
/// them.
#[test]
fn a_datapath_that_is_killed_under_load_loses_no_frame_of_guests_with_a_record() {
    let kills = kills(8).div_ceil(4);
    for (round, features) in [0, IN_ORDER, PACKED, PACKED | IN_ORDER].into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["a", "b"].map(|name| dir.path().join(name));
        let ports = [&from, &to].map(|path| format!("vhost:{}", path.display()));
        let start = || Towpath::start(&["fwd", &ports[0], &ports[1], "--gro", "off", "--egress-wait", "60s"]);
        let [mut from, mut to] = [from, to].map(|path| Survivor::new(&path, features));
        let (mut course, mut run) = (Course::default(), None);
        for n in 0..=kills {
            let towpath = start();
            // First the one that receives: a frame for a guest that is not there is dropped.
            to.connect();
            from.connect();
            let (before, end) = (course.arrivals, Instant::now() + LONGEST);
            while course.arrivals <= before + 200 {
                course.step(&mut from, &mut to, true);
                assert!(Instant::now() < end, "no frame arrives after {n} kills");
            }
            if n == kills {
                run = Some(towpath);
                break;
            }
            let moment = Instant::now() + Duration::from_micros((n * 4 + round) as u64 * 7919 % 20_000);
            while Instant::now() < moment {
                course.step(&mut from, &mut to, true);
            }
            towpath.signal(libc::SIGKILL);
            towpath.wait();
        }
        let end = Instant::now() + LONGEST;
        while from.in_flight() > 0 {
            course.step(&mut from, &mut to, false);
            assert!(Instant::now() < end, "{} chains do not come back", from.in_flight());
        }
        course.step(&mut from, &mut to, false);
        let Course { sent, arrivals, again, .. } = course;
        println!("{features:#x}: {sent} frames, {again} of them again after {kills} kills");
        assert_eq!(arrivals, sent as usize, "frames were lost");
        run.unwrap().stop().summary().is_balanced();
    }
}

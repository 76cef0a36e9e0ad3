//! Against DPDK's `net_vhost`, which returns each frame with its Ethernet addresses swapped, or as
//! it is.

use crate::rig::{PATIENCE, Rig, frame, pool};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use towpath_nic::virtio::Config;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Backing, Checksum, Gso, GsoKind, Offloads};
use towpath_testing::{Need, listens, needs, until};

/// A running testpmd; killed on drop.
struct Testpmd {
    child: Child,
    path: PathBuf,
}

impl Testpmd {
    /// With one core for everything and no huge pages.
    fn start(name: &str, options: &str, mode: &str, queues: u16) -> Testpmd {
        let path = std::env::temp_dir().join(format!("towpath-testpmd-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let args = format!(
            "--lcores 0@0,1@0 --no-huge -m 128 --no-pci --no-shconf --no-telemetry --log-level=lib.vhost.config:error \
             --vdev=net_vhost0,iface={}{options} -- --forward-mode={mode} --auto-start --nb-cores=1 \
             --total-num-mbufs=8192 --rxq={queues} --txq={queues} --stats-period 60",
            path.display()
        );
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "240", "dpdk-testpmd"]).args(args.split_whitespace());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let testpmd = Testpmd { child, path };
        until("testpmd listens", || listens(&testpmd.child, &testpmd.path));
        testpmd
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // `timeout` passes the signal on, which ends testpmd; then it ends itself.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

fn swapped(bytes: &[u8]) -> Vec<u8> {
    [&bytes[6..12], &bytes[..6], &bytes[12..]].concat()
}

/// Sends frames of many lengths by all pairs, and compares what comes back.
fn exchange(rig: &mut Rig, rounds: usize) {
    for round in 0..rounds {
        for pair in 0..rig.tx.len() {
            let sent: Vec<_> = (0..24).map(|i| frame(round * 24 + i, 60 + (round * 24 + i) * 61 % 1455)).collect();
            for (i, bytes) in sent.iter().enumerate() {
                let (a, b) = bytes.split_at(14 + i);
                let pieces: &[&[u8]] = if i % 3 == 0 { &[a, b] } else { &[bytes] };
                let begun = Instant::now();
                let mut packet = Some(rig.packet(pieces));
                while let Some(next) = packet.take() {
                    if !rig.send(pair, next) {
                        assert!(begun.elapsed() < PATIENCE, "the ring stays full");
                        packet = Some(rig.packet(pieces));
                        rig.tx[pair].reclaim();
                    }
                }
            }
            let mut got = rig.receive_some(pair, sent.len());
            let mut expected: Vec<_> = sent.iter().map(|bytes| swapped(bytes)).collect();
            got.sort();
            expected.sort();
            assert!(got == expected, "frames came back changed");
        }
    }
}

fn end(mut rig: Rig, frames: u64) {
    let begun = Instant::now();
    while rig.tx.iter().any(|tx| tx.pending() > 0) {
        assert!(begun.elapsed() < PATIENCE);
        rig.tx.iter_mut().for_each(|tx| {
            tx.reclaim();
        });
    }
    let sum = |counts: Vec<u64>| counts.into_iter().sum::<u64>();
    assert_eq!(sum(rig.tx.iter().map(|tx| tx.counters().snapshot().packets).collect()), frames);
    assert_eq!(sum(rig.rx.iter().map(|rx| rx.counters().snapshot().packets).collect()), frames);
    rig.end();
}

#[test]
fn frames_come_back_from_dpdk_byte_by_byte_in_every_kind_of_ring() {
    let name = "frames_come_back_from_dpdk_byte_by_byte_in_every_kind_of_ring";
    if !needs(name, &[Need::Program("dpdk-testpmd"), Need::Program("timeout")]) {
        return;
    }
    // One after the other on the same back end, which sees each port come and go.
    let testpmd = Testpmd::start("kinds", "", "macswap", 1);
    for (packed, mergeable, in_order, indirect, backing) in [
        (false, true, true, true, Backing::Memfd),
        (false, true, false, true, Backing::Memfd),
        (false, false, false, false, Backing::Memfd),
        (true, true, true, true, Backing::Memfd),
        (true, true, false, false, Backing::Anonymous),
        (true, false, false, true, Backing::Memfd),
    ] {
        let mut config = Config::default();
        (config.packed, config.mergeable, config.in_order, config.indirect) = (packed, mergeable, in_order, indirect);
        let mut rig = Rig::open(config, testpmd.path(), pool(backing, 2048), Offloads::NONE);
        exchange(&mut rig, 40);
        end(rig, 40 * 24);
    }
}

#[test]
fn dpdk_serves_two_pairs_of_queues() {
    let name = "dpdk_serves_two_pairs_of_queues";
    if !needs(name, &[Need::Program("dpdk-testpmd"), Need::Program("timeout")]) {
        return;
    }
    let testpmd = Testpmd::start("pairs", ",queues=2", "macswap", 2);
    let mut config = Config::default();
    config.queues = 2;
    let mut rig = Rig::open(config, testpmd.path(), pool(Backing::Memfd, 2048), Offloads::NONE);
    exchange(&mut rig, 10);
    end(rig, 2 * 10 * 24);
}

/// Which segments a super-packet becomes.
const SEGMENTS: Gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 1448, segs: 0, hdr_len: 54 };

/// A frame of TCP over IPv4, whose checksum is partial: the sum over the pseudo-header without the
/// length, as DPDK writes it on the way back.
fn tcp(seed: usize, len: usize) -> Vec<u8> {
    let mut bytes = frame(seed, len);
    let [high, low] = ((len - 14) as u16).to_be_bytes();
    bytes[12..34].copy_from_slice(&[8, 0, 0x45, 0, high, low, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[46..48].copy_from_slice(&[0x50, 0x10]);
    bytes[50..52].copy_from_slice(&[0x14, 0x09]);
    bytes
}

/// DPDK marks what it receives as its own senders would, and so returns super-packets whole.
#[test]
fn long_frames_and_super_packets_come_back_from_dpdk_with_and_without_mergeable_buffers() {
    let name = "long_frames_and_super_packets_come_back_from_dpdk_with_and_without_mergeable_buffers";
    if !needs(name, &[Need::Program("dpdk-testpmd"), Need::Program("timeout")]) {
        return;
    }
    let testpmd = Testpmd::start("supers", ",tso=1,legacy-ol-flags=1", "io", 1);
    for (packed, mergeable, indirect) in
        [(false, false, true), (true, false, true), (false, false, false), (true, false, false), (true, true, true)]
    {
        let what = format!("packed {packed}, mergeable {mergeable}, indirect {indirect}");
        let mut config = Config::default();
        (config.packed, config.mergeable, config.indirect, config.mtu) = (packed, mergeable, indirect, 9000);
        let mut rig = Rig::open(config, testpmd.path(), pool(Backing::Memfd, 2048), Offloads::ALL);
        for round in 0..20 {
            // Four frames are the fewest that DPDK takes together.
            let lens = if round % 2 == 0 { [60, 64, 300, 500, 9014] } else { [1000, 64, 1500, 1514, 4000] };
            let plain = lens.map(|len| (frame(round, len), None));
            let supers = [20_000, 65_549 - round].map(|len| (tcp(round, len), Some(SEGMENTS)));
            let sent: Vec<_> = plain.into_iter().chain(supers).collect();
            for (bytes, gso) in &sent {
                let mut packet = rig.packet(&bytes.chunks(1900).collect::<Vec<_>>());
                if gso.is_some() {
                    packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
                    packet.set_gso(*gso);
                }
                assert!(rig.send(0, packet), "{what}");
            }
            let (begun, mut got) = (Instant::now(), Vec::new());
            while got.len() < sent.len() {
                assert!(begun.elapsed() < PATIENCE, "{what}: {} of {} came", got.len(), sent.len());
                let came = rig.receive(0);
                got.extend(came.iter().map(|packet| (packet.to_vec(), packet.gso().map(|gso| (gso.kind, gso.size)))));
                rig.tx[0].reclaim();
            }
            let expected: Vec<_> =
                sent.into_iter().map(|(bytes, gso)| (bytes, gso.map(|gso| (gso.kind, gso.size)))).collect();
            assert!(got == expected, "{what}: packets came back changed");
        }
        end(rig, 20 * 7);
    }
}

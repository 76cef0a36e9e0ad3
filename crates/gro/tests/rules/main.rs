//! Every rule and every known bug of other engines, by name.
//!
//! | module | what |
//! |---|---|
//! | `tcp`, `udp_and_tunnels`, `ip` | rules of the headers |
//! | `checksums` | right, wrong, absent, partial |
//! | `keys` | what distinguishes flows |
//! | `limits`, `leaving` | how large an aggregate becomes; when packets leave, and in what order |
//! | `bugs_of_others` | known bugs of other engines |
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod bugs_of_others;
mod checksums;
mod ip;
mod keys;
mod leaving;
mod limits;
mod tcp;
mod udp_and_tunnels;

use common::chain::Chain;
use common::{Spec, tcp, v4};
use towpath_gro::{Checksum, Gro, GroConfig, Offload, Sink};

fn trusted() -> Offload {
    Offload::new(Checksum::Verified, None)
}

fn config() -> GroConfig {
    GroConfig::default().seed(1)
}

/// The packets that leave, with the number of packets in each.
#[derive(Default)]
struct Left {
    segs: Vec<usize>,
    packets: Vec<Chain>,
}

impl Sink<Chain> for Left {
    fn packet(&mut self, packet: Chain) {
        self.segs.push(packet.offload.gso.map_or(1, |gso| gso.segs.into()));
        self.packets.push(packet);
    }

    fn recycle(&mut self, _: Chain) {
        unreachable!("a chain is never copied");
    }
}

fn push_all(gro: &mut Gro<Chain>, packets: impl IntoIterator<Item = Vec<u8>>, left: &mut Left) {
    gro.push_batch(packets.into_iter().map(|b| Chain::new(b, Offload::default())), 0, left);
}

/// The number of packets in each packet that leaves, in order, all flushed.
fn segs(config: GroConfig, packets: &[Vec<u8>]) -> Vec<usize> {
    let (mut gro, mut left) = (Gro::new(config), Left::default());
    push_all(&mut gro, packets.to_vec(), &mut left);
    gro.flush_all(&mut left);
    left.segs
}

fn specs(specs: &[Spec]) -> Vec<usize> {
    let config = config().link(specs[0].link);
    segs(config, &specs.iter().map(Spec::build).collect::<Vec<_>>())
}

/// Two packets that would merge, the second changed.
fn pair(first: &Spec, change: impl FnOnce(&mut Spec)) -> Vec<usize> {
    let first = first.clone().with(|s| s.payload = vec![5; 100]);
    specs(&[first.clone(), first.next(100).with(change)])
}

fn data() -> Spec {
    tcp(v4(), 100)
}

fn outer(s: &mut Spec) -> &mut common::Outer {
    s.outer.as_mut().unwrap()
}

const MERGED: [usize; 1] = [2];
const APART: [usize; 2] = [1, 1];

//! The cost of GRO in tun-rs: it verifies checksums and copies into the buffer of an aggregate's
//! first packet.
//!
//!     tun-rs hot|cold FLOWS PAYLOAD BURST POOL HOLD PACKETS
//!
//! It knows IP packets only, and holds nothing between bursts: HOLD must be 1.

use gro_engines::measure::{Arguments, Engine, run};
use gro_engines::mix::{ETHERNET, HEADER, Header};
use tun_rs::{GROTable, VIRTIO_NET_HDR_LEN};

/// Room for an aggregate of 65535 bytes, and for the 65536 that tun-rs sometimes makes.
const ROOM: usize = 70_000;

struct TunRs {
    table: GROTable,
    bursts: Vec<Vec<Vec<u8>>>,
    /// Bursts received so far; the last one is in the engine.
    received: usize,
    /// Bytes of a packet with the virtio header before it.
    len: usize,
    payload: usize,
}

impl TunRs {
    /// The place of the burst in the engine.
    fn place(&self) -> usize {
        (self.received - 1) % self.bursts.len()
    }
}

impl Engine for TunRs {
    fn prepare(&mut self, headers: &[Header], payload: &[u8], burst: usize) {
        for (buffer, header) in self.bursts[burst].iter_mut().zip(headers) {
            buffer.truncate(self.len);
            let (to, rest) = buffer[VIRTIO_NET_HDR_LEN..].split_at_mut(HEADER - ETHERNET);
            to.copy_from_slice(&header[ETHERNET..]);
            rest[..payload.len()].copy_from_slice(payload);
        }
    }

    fn receive(&mut self, _packets: usize) {
        self.received += 1;
    }

    fn push(&mut self, _flush: bool) -> usize {
        let place = self.place();
        match self.table.apply_gro(&mut self.bursts[place], VIRTIO_NET_HDR_LEN, true) {
            Ok(()) => 0,
            Err(error) => panic!("tun-rs: {error}"),
        }
    }

    /// The merged bytes are the growth of the buffers.
    fn settle(&mut self) -> usize {
        let burst = &self.bursts[self.place()];
        let grown: usize = burst.iter().map(|buffer| buffer.len() - self.len).sum();
        burst.len() - grown / self.payload
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let parsed = match words.as_slice() {
        [caches @ ("hot" | "cold"), rest @ ..] => Arguments::parse(rest, *caches == "cold"),
        _ => None,
    };
    let Some(arguments) = parsed.filter(|arguments| arguments.hold == 1) else {
        eprintln!("usage: tun-rs hot|cold FLOWS PAYLOAD BURST POOL 1 PACKETS");
        std::process::exit(2);
    };
    run(&arguments, |mix| {
        let buffer = |packet: &Vec<u8>| {
            let mut buffer = Vec::with_capacity(ROOM);
            buffer.resize(VIRTIO_NET_HDR_LEN, 0);
            buffer.extend_from_slice(&packet[ETHERNET..]);
            buffer
        };
        TunRs {
            table: GROTable::new(),
            bursts: mix.chunks(arguments.burst).map(|burst| burst.iter().map(buffer).collect()).collect(),
            received: 0,
            len: VIRTIO_NET_HDR_LEN + HEADER - ETHERNET + arguments.payload,
            payload: arguments.payload,
        }
    });
}

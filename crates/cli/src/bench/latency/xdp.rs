//! The path through the kernel by AF_XDP: sockets on the two ends of a veth pair.
//!
//! The sender uses the port's transmit queue directly. On the other end a worker receives, spinning
//! or sleeping, and its classifier sees each packet first.

use super::Pair;
use super::exchange::{Mode, Round, STAMP, Sample, pin, stamp};
use super::sock::HEADER;
use crate::args::BenchLatency;
use std::error::Error;
use std::sync::Arc;
use towpath::engine::gro_stage::GroMode;
use towpath::engine::rules::{Classifier, Verdict};
use towpath::packet::port::{Port, Queues, Start, TxQueue};
use towpath::packet::{Batch, Direction, Offloads, Packet, Pool, PoolConfig};
use towpath::{Directions, Forward, Opener, Role, Verdicts};

pub(super) fn round(mode: Mode, args: &BenchLatency, [core, other]: [usize; 2]) -> Result<Sample, Box<dyn Error>> {
    let pair = Pair::new()?;
    let mut opener = Opener::new();
    let port = |namespace: &str| format!("xdp:v0?netns={namespace}").parse();
    let far = opener.open(&port(pair.far.path())?, Role::Ingress)?;
    let near = opener.open(&port(pair.near.path())?, Role::Egress)?;
    let round = Arc::new(Round::new(mode, args)?);
    let seen = round.clone();
    let classifier = move |_| -> Box<dyn Classifier> {
        let round = seen.clone();
        Box::new(move |packet: &Packet, _: &_| {
            let mut bytes = [0; HEADER.len() + STAMP];
            if packet.copy_to(0, &mut bytes) == bytes.len()
                && let Some((HEADER, message)) = bytes.split_first_chunk().map(|(header, message)| (*header, message))
                && let Some(stamp) = stamp(message)
            {
                round.received(stamp);
            }
            Verdict::Drop
        })
    };
    let mut plan = Forward::default();
    (plan.idle, plan.cores) = (round.mode().idle(), vec![other]);
    (plan.directions, plan.at_rx, plan.gro.mode) =
        (Directions::OneWay, Verdicts::Classifier(Arc::new(classifier)), GroMode::Off);
    let running = plan.start(far, opener.open(&"null:".parse()?, Role::Egress)?)?;
    let sample = send(near, &round, core, args.size);
    running.stop();
    sample
}

/// Sends all messages from a thread on `core`.
fn send(port: impl Port + Send, round: &Round, core: usize, size: usize) -> Result<Sample, Box<dyn Error>> {
    let pool = Pool::new(PoolConfig::default().capacity(1024))?;
    let mut cache = pool.cache(Direction::Tx)?;
    let Queues { mut tx, .. } = port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE })?;
    let mut queue = tx.pop().ok_or("a port without a queue")?;
    let mut batch: Batch = Batch::new();
    let mut send = move |stamp: u64| -> Result<(), Box<dyn Error>> {
        let bytes = &mut [0; 1514][..size];
        bytes[..HEADER.len()].copy_from_slice(&HEADER);
        bytes[HEADER.len()..HEADER.len() + STAMP].copy_from_slice(&stamp.to_ne_bytes());
        queue.reclaim();
        let packet = Packet::copy_from(&mut cache, bytes).ok_or("no buffer comes back")?;
        let _ = batch.push(packet);
        queue.tx(&mut batch);
        queue.kick();
        Ok(())
    };
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || {
            pin(core);
            round.send_all(&mut send, || Ok(())).map_err(|error| error.to_string())
        });
        Ok(sending.join().map_err(|_| "the sender failed")??)
    })
}

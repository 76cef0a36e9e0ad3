//! The path through the datapath, from one application socket to another.

use super::exchange::{Mode, Round, STAMP, Sample, pin, stamp};
use crate::args::BenchLatency;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use towpath::engine::gro_stage::GroMode;
use towpath::{Forward, Opener, Role};
use towpath_client::{Config, Frame, Sizes, Socket, Umem};

/// An Ethernet header to the broadcast address with a local experimental ethertype (IEEE 802,
/// 0x88b5).
pub(super) const HEADER: [u8; 14] = [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
/// Longest sleep of a receiver, so that it notices the end.
pub(super) const NAP: Duration = Duration::from_millis(50);

pub(super) fn round(mode: Mode, args: &BenchLatency, [core, other]: [usize; 2]) -> Result<Sample, Box<dyn Error>> {
    let [from, to] = [path(), path()];
    let mut opener = Opener::new();
    let a = opener.open(&format!("sock:{}", from.display()).parse()?, Role::Both)?;
    let b = opener.open(&format!("sock:{}", to.display()).parse()?, Role::Both)?;
    let mut plan = Forward::default();
    (plan.idle, plan.cores) = (mode.idle(), vec![other]);
    plan.gro.mode = GroMode::Off;
    let running = plan.start(a, b)?;
    let memory = [Umem::new(256, 2048)?, Umem::new(256, 2048)?];
    let config = Config::default().rings(Sizes::all(64));
    let mut sender = Sender { socket: Socket::connect(&memory[0], from, &config)?, umem: &memory[0], size: args.size };
    let mut receiver =
        Receiver { socket: Socket::connect(&memory[1], to, &config)?, umem: &memory[1], got: Vec::new() };
    let round = Round::new(mode, args)?;
    let sample = std::thread::scope(|scope| {
        let application = scope.spawn(|| {
            pin(core);
            let sample = match mode {
                Mode::Spin => round.send_all(
                    |stamp| sender.send(stamp),
                    || {
                        receiver
                            .receive(Duration::ZERO)
                            .map(|stamp| stamp.into_iter().for_each(|stamp| round.received(stamp)))
                    },
                ),
                Mode::Sleep => round.beside(
                    core,
                    || receiver.receive(NAP),
                    || round.send_all(|stamp| sender.send(stamp), || Ok(())),
                ),
            };
            sample.map_err(|error| error.to_string())
        });
        application.join().map_err(|_| "the application failed".to_owned())?
    })?;
    let summary = running.stop();
    if summary.reading.balance().in_flight() != 0 || summary.buffers_away > 0 {
        return Err("the balance does not add up".into());
    }
    Ok(sample)
}

/// A unique path.
fn path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("towpath-latency-{}-{n}", std::process::id()))
}

struct Sender<'u> {
    socket: Socket<'u>,
    umem: &'u Umem,
    size: usize,
}

impl Sender<'_> {
    fn send(&mut self, stamp: u64) -> Result<(), Box<dyn Error>> {
        let mut back = Vec::new();
        self.socket.completions(&mut back)?;
        let frame = back.pop().or_else(|| self.umem.alloc());
        let mut frame = frame.ok_or("no frame comes back")?;
        let bytes = &mut [0; 1514][..self.size];
        bytes[..HEADER.len()].copy_from_slice(&HEADER);
        bytes[HEADER.len()..HEADER.len() + STAMP].copy_from_slice(&stamp.to_ne_bytes());
        if !frame.put(bytes) {
            return Err("a frame that does not fit in its chunk".into());
        }
        self.socket.tx(&mut vec![frame])?;
        Ok(())
    }
}

struct Receiver<'u> {
    socket: Socket<'u>,
    umem: &'u Umem,
    got: Vec<Frame<'u>>,
}

impl Receiver<'_> {
    /// Returns a message if one arrives `within` a time.
    fn receive(&mut self, within: Duration) -> Result<Option<u64>, Box<dyn Error>> {
        if self.got.is_empty() && self.socket.rx(&mut self.got)? == 0 {
            let mut empty: Vec<_> = std::iter::from_fn(|| self.umem.alloc()).take(32).collect();
            self.socket.fill(&mut empty)?;
            if within.is_zero() || !self.socket.wait(Some(within))? {
                return Ok(None);
            }
            self.socket.rx(&mut self.got)?;
        }
        let frame = self.got.pop();
        Ok(frame.and_then(|frame| stamp(frame.bytes().get(HEADER.len()..)?)))
    }
}

//! Packets to the kernel: coalesced, and written with one call for each aggregate.

use crate::chain::Chain;
use crate::offloads::TunOffloads;
use crate::output::{Output, Through};
use crate::queue::{Queue, Transmit};
use crate::stats::WriteStats;
use std::fmt;
use std::io;
use std::ops::Range;
use towpath_gro::{Gro, GroConfig, Offload, Stats};

/// Merges packets in the caller's buffers of any size, and writes the aggregates to a queue.
///
/// A buffer holds one packet and needs no room behind it: aggregates are chained and written with
/// `writev(2)`. Each buffer is given back through the closure `spent` of the call in which it is no
/// longer needed; a pool whose handles return on drop takes `drop`. Nothing is allocated per packet
/// once as many packets were held as ever are at a time.
///
/// Packets are held until [`flush`](Writer::flush), or until their aggregate is full: flush at the
/// end of each burst. Dropping a writer drops what it holds. One writer per thread; several writers
/// may have handles of one queue.
///
/// ```no_run
/// use towpath_tun::{Config, Device, Writer};
///
/// # fn receive(_: &mut Vec<Vec<u8>>) -> Vec<(Vec<u8>, std::ops::Range<usize>)> { vec![] }
/// let mut device = Device::open(&Config::tun("vpn0"))?;
/// let mut writer = Writer::new(&device.queue()?);
/// let mut pool: Vec<Vec<u8>> = (0..64).map(|_| vec![0; 1500]).collect();
/// loop {
///     // Each packet lies somewhere in its buffer: behind a header of the tunnel, for example.
///     for (buffer, packet) in receive(&mut pool) {
///         writer.push(buffer, packet, |buffer| pool.push(buffer))?;
///     }
///     writer.flush(|buffer| pool.push(buffer))?;
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer<B> {
    gro: Gro<Chain<B>>,
    config: GroConfig,
    /// The offloads for which `gro` was made.
    merges: TunOffloads,
    output: Output<B, Queue>,
    /// Packets merged by the engines before this one.
    merged: u64,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Writer<B> {
    /// A writer for a queue, with 256 flows and aggregates as large as the kernel takes them.
    pub fn new(queue: &Queue) -> Writer<B> {
        Writer::with_config(queue, GroConfig::default().flows(256))
    }

    /// The same with a configuration of the engine, of which `link`, `udp` and `tunnels` are set by
    /// the queue's kind and offloads.
    pub fn with_config(queue: &Queue, config: GroConfig) -> Writer<B> {
        let config = config.link(queue.link());
        let merges = mergeable(queue.tx_offloads());
        Writer { gro: engine(config.clone(), merges), config, merges, output: Output::new(queue.clone()), merged: 0 }
    }

    /// Takes the bytes `packet` of a buffer as a packet with an unverified checksum.
    ///
    /// # Errors
    /// As [`flush`](Writer::flush). The packet was taken.
    #[inline]
    pub fn push(&mut self, buffer: B, packet: Range<usize>, spent: impl FnMut(B)) -> io::Result<()> {
        self.push_with(buffer, packet, Offload::default(), spent)
    }

    /// The same for a packet with metadata: a verified or partial checksum, or a super-packet.
    ///
    /// # Errors
    /// As [`flush`](Writer::flush). The packet was taken.
    #[inline]
    pub fn push_with(
        &mut self,
        buffer: B,
        packet: Range<usize>,
        offload: Offload,
        mut spent: impl FnMut(B),
    ) -> io::Result<()> {
        let chain = self.output.nodes.chain(buffer, packet, offload);
        self.output.stats.packets += 1;
        let mut out = Through { output: &mut self.output, spent: &mut spent };
        if self.merges.is_none() {
            towpath_gro::Sink::packet(&mut out, chain);
        } else {
            self.gro.push(chain, 0, &mut out);
            self.output.stats.merged = self.merged + self.gro.stats().merged;
        }
        self.output.result()
    }

    /// Writes everything that is held.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if the kernel takes nothing now: the packets wait
    /// in order, and another call when the queue is writable goes on. `EBADFD` after the device was
    /// deleted; the packets are dropped. Other refusals concern one packet and are
    /// [counted](Writer::stats).
    pub fn flush(&mut self, mut spent: impl FnMut(B)) -> io::Result<()> {
        self.output.send_waiting(&mut spent);
        self.gro.flush_all(&mut Through { output: &mut self.output, spent: &mut spent });
        let now = mergeable(self.output.to.offloads());
        if now != self.merges {
            self.adapt(now);
        }
        self.output.result()
    }

    /// Merges only what the kernel still takes. Nothing is held.
    #[cold]
    fn adapt(&mut self, now: TunOffloads) {
        self.merged += self.gro.stats().merged;
        self.gro = engine(self.config.clone(), now);
        self.merges = now;
    }

    /// Packets and aggregates that are held, or wait for the kernel.
    pub fn held(&self) -> usize {
        self.gro.held() + self.output.waiting()
    }

    /// Counters since the writer was made.
    pub fn stats(&self) -> &WriteStats {
        &self.output.stats
    }

    /// The engine's counters, which say why packets did not merge; since the last offload was
    /// switched off.
    pub fn gro_stats(&self) -> &Stats {
        self.gro.stats()
    }
}

/// The offloads that make packets worth to be merged.
fn mergeable(offloads: TunOffloads) -> TunOffloads {
    let kinds = TunOffloads::TSO4.with(TunOffloads::TSO6).with(TunOffloads::USO).with(TunOffloads::TUNNEL);
    offloads.consistent().and(kinds)
}

/// An engine that merges what a kernel with these offloads takes.
fn engine<B: AsRef<[u8]> + AsMut<[u8]>>(config: GroConfig, offloads: TunOffloads) -> Gro<Chain<B>> {
    Gro::new(config.udp(offloads.has(TunOffloads::USO)).tunnels(offloads.has(TunOffloads::TUNNEL)))
}

impl<B> fmt::Debug for Writer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("merges", &self.merges)
            .field("stats", &self.output.stats)
            .finish_non_exhaustive()
    }
}

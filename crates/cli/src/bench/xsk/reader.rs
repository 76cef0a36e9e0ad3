//! The consumer behind the pair in memory: takes packets, reads as much of each as `--read` says,
//! and frees them.

use super::app::BURST;
use super::worker::Worker;
use crate::args::Read;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use towpath::AnyRx;
use towpath::packet::port::RxQueue;
use towpath::packet::{Batch, Cache};

/// Bytes that [`Read::Head`] reads.
const HEAD: usize = 64;
/// Packets in front of a reader with a thread of its own, at most: fewer than its ring holds, so
/// that the datapath never waits for room.
const AHEAD: u64 = 512;

/// The consumer.
pub(super) struct Reader {
    rx: AnyRx,
    cache: Cache,
    batch: Batch,
    read: Read,
    /// The reader's own memory, to which it copies what it reads, as `recv` does.
    bytes: Box<[u8; 2048]>,
    work: Work,
}

/// What a reader has done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) packets: u64,
    /// Bytes read.
    pub(super) bytes: u64,
    /// Nanoseconds of the turns that found packets, of a reader with a thread of its own.
    pub(super) ns: u64,
}

impl Reader {
    pub(super) fn new(rx: AnyRx, cache: Cache, read: Read) -> Reader {
        Reader { rx, cache, batch: Batch::new(), read, bytes: Box::new([0; 2048]), work: Work::default() }
    }

    /// Takes a burst; returns the number of packets.
    #[inline(never)]
    pub(super) fn turn(&mut self) -> usize {
        let n = self.rx.rx(&mut self.batch);
        let most = match self.read {
            Read::None => 0,
            Read::Head => HEAD,
            Read::All => self.bytes.len(),
        };
        for packet in self.batch.iter().take_while(|_| most > 0) {
            let read = packet.copy_to(0, &mut self.bytes[..most]);
            black_box(self.bytes.get(..read));
            self.work.bytes += read as u64;
        }
        self.cache.free_bulk(&mut self.batch);
        self.work.packets += n as u64;
        n
    }

    /// What was done so far.
    pub(super) fn work(&self) -> Work {
        self.work
    }
}

/// A reader with a thread of its own.
pub(super) struct ReaderThread {
    worker: Worker,
    progress: Arc<Progress>,
    /// Packets that were sent to it.
    sent: u64,
}

/// The [`Work`] of a reader with a thread of its own.
#[derive(Default)]
pub(super) struct Progress {
    packets: AtomicU64,
    bytes: AtomicU64,
    ns: AtomicU64,
}

impl Progress {
    pub(super) fn set(&self, work: Work) {
        let Work { packets, bytes, ns } = work;
        self.ns.store(ns, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        // Release: with the time and the bytes of these packets.
        self.packets.store(packets, Ordering::Release);
    }

    pub(super) fn get(&self) -> Work {
        let packets = self.packets.load(Ordering::Acquire);
        Work { packets, bytes: self.bytes.load(Ordering::Relaxed), ns: self.ns.load(Ordering::Relaxed) }
    }
}

impl ReaderThread {
    pub(super) fn new(mut reader: Reader, core: usize) -> ReaderThread {
        let progress = Arc::new(Progress::default());
        let of_thread = progress.clone();
        let worker = Worker::new("the reader", Some(core), move |worker| {
            worker.turns(|| {
                let begun = Instant::now();
                let n = reader.turn();
                if n > 0 {
                    reader.work.ns += begun.elapsed().as_nanos() as u64;
                    of_thread.set(reader.work);
                }
                Ok(n)
            })
        });
        ReaderThread { worker, progress, sent: 0 }
    }

    /// Starts or pauses the thread.
    pub(super) fn run(&self, runs: bool) {
        self.worker.run(runs);
    }

    /// Whether the reader keeps up: another burst has room.
    pub(super) fn has_room(&self) -> bool {
        self.sent - self.progress.get().packets + BURST as u64 <= AHEAD
    }

    /// Counts packets that were sent to it.
    pub(super) fn sent(&mut self, n: usize) {
        self.sent += n as u64;
    }

    /// What was done so far.
    pub(super) fn work(&self) -> Work {
        self.progress.get()
    }
}

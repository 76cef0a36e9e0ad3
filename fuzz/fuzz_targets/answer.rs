//! Any bytes and descriptors as the answer of a datapath, and any words in the rings that it
//! shares: an application gets an error, or frames that are its own, each once and inside of their
//! chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use towpath_client::protocol::{Answer, Hello, MAGIC, Rings, Statistic};
use towpath_client::{Config, Frame, Sizes, Socket, Umem};
use towpath_fuzz::Input;
use towpath_packet::xsk_ring::{Consumer, Desc, Entry, Layout, Mapped, Producer};
use towpath_packet::{Backing, Region, UntrustedMem};
use towpath_sys::poll::wait_readable;
use towpath_sys::unix_socket::{Access, Kind, Listener};
use towpath_sys::{EventFd, retry, seqpacket};

/// Chunks of the application's memory, and their bytes.
const COUNT: u32 = 16;
const CHUNK: u32 = 2048;
/// Bytes of the rings' memory.
const MEMORY: usize = 16 << 10;
/// Entries of each ring.
const ENTRIES: u32 = 8;

/// What the datapath answers.
struct Reply {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A datapath that gives each connection the next answer. It listens as long as the process runs.
struct Datapath {
    path: PathBuf,
    replies: Sender<Reply>,
}

fn datapath() -> &'static Datapath {
    static DATAPATH: OnceLock<Datapath> = OnceLock::new();
    DATAPATH.get_or_init(|| {
        let path = tempfile::tempdir().unwrap().keep().join("s");
        let listener = Listener::new(&path, Kind::Records, Access { mode: 0o600, uid: None, gid: None }).unwrap();
        let (replies, next) = channel::<Reply>();
        std::thread::spawn(move || {
            while let Ok(Reply { bytes, fds }) = next.recv() {
                wait_readable(listener.as_fd(), None).unwrap();
                let connection = retry(|| seqpacket::accept(listener.as_fd())).unwrap();
                wait_readable(connection.as_fd(), None).unwrap();
                retry(|| seqpacket::receive(connection.as_fd(), &mut [0; Hello::LONGEST])).unwrap();
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                let _ = seqpacket::send(connection.as_fd(), &bytes, &fds);
            }
        });
        Datapath { path, replies }
    })
}

/// A welcome that is as long as `bytes` want, with their words in place of some of its own.
fn welcome(input: &mut Input<'_>) -> Vec<u8> {
    let (rings, len) = Rings::lay_out(&Sizes::all(ENTRIES));
    let places = [rings.rx, rings.tx, rings.fill, rings.completion, rings.statistics];
    let mut words = vec![MAGIC, 2048 << 32, 1, 0, 1 << 20, len];
    words.extend(places.iter().flat_map(|at| [at.producer, at.consumer, at.desc, at.flags]));
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte()) % words.len();
        words[at] = if input.byte() & 1 != 0 { input.long() } else { u64::from(input.word()) };
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Every access to a ring that was mapped lies in its memory.
fn walk<T: Entry + Copy>(memory: &UntrustedMem, at: &Layout, size: u32, entry: T) {
    let ring = || Mapped::<T>::new(memory, at, size);
    let (Some(near), Some(far)) = (ring(), ring()) else { return };
    let inside = |offset: u64, bytes: u64| offset.checked_add(bytes).is_some_and(|end| end <= memory.len() as u64);
    assert!(inside(at.producer, 4) && inside(at.consumer, 4) && inside(at.flags, 4));
    assert!(inside(at.desc, u64::from(size) * size_of::<T>() as u64) && size.is_power_of_two());
    let (mut producer, mut consumer) = (Producer::new(near), Consumer::new(far));
    if let Ok(room) = producer.try_reserve(size) {
        assert!(room <= size);
        (0..room).for_each(|_| producer.write(entry));
        producer.submit();
    }
    if let Ok(n) = consumer.try_peek(size) {
        assert!(n <= size);
        for _ in 0..n {
            let _ = consumer.read();
        }
        consumer.release();
    }
}

/// Takes what the rings say, until the datapath is found to be broken.
fn use_socket(input: &mut Input<'_>, socket: &mut Socket, umem: &Umem, memory: &UntrustedMem) {
    let mut held: Vec<Frame> = std::iter::from_fn(|| umem.alloc()).collect();
    assert_eq!(held.len(), COUNT as usize);
    while !input.0.is_empty() {
        let how = input.byte();
        let outcome = match how % 6 {
            0 => {
                held.iter_mut().take(4).for_each(|frame| assert!(frame.put(&[how; 60])));
                let mut some: Vec<_> = held.drain(..held.len().min(4)).collect();
                let sent = socket.tx(&mut some).map(drop);
                held.append(&mut some);
                sent
            }
            1 => {
                let mut some: Vec<_> = held.drain(..held.len().min(4)).collect();
                let posted = socket.fill(&mut some).map(drop);
                held.append(&mut some);
                posted
            }
            2 => socket.completions(&mut held).map(drop),
            3 => socket.rx(&mut held).map(drop),
            _ => {
                let (at, value) = (usize::from(input.word()) % memory.len() & !3, input.int());
                let word = memory.handle().at(at, 4).expect("a word inside");
                // SAFETY: the word lies in the region, aligned, and the region lives; all accesses
                // are atomic words or raw bytes.
                unsafe { word.cast::<AtomicU32>().as_ref() }.store(value % (1 << (how >> 3)), Ordering::Relaxed);
                Ok(())
            }
        };
        let places: HashSet<_> = held.iter().map(|frame| frame.bytes().as_ptr().addr() / CHUNK as usize).collect();
        assert!(places.len() == held.len(), "a chunk has one owner");
        assert!(held.iter().all(|frame| frame.bytes().len() <= CHUNK as usize));
        let _ = (socket.statistics(), held.iter().filter_map(Frame::vnet_header).count());
        if outcome.is_err() {
            return;
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let how = input.byte();
    let bytes = if how & 1 != 0 { input.slice(600).to_vec() } else { welcome(&mut input) };
    let decoded = Answer::decode(&bytes);
    let region = Region::new(MEMORY, Backing::Memfd).unwrap();
    let rings = region.fd().unwrap().try_clone_to_owned().unwrap();
    let memory = UntrustedMem::from_memfd(rings.try_clone().unwrap(), MEMORY).unwrap();

    if let Ok(Answer::Welcome(welcome)) = &decoded {
        let at = &welcome.rings;
        let entry = Desc { addr: welcome.budget, len: welcome.longest, options: 0 };
        for size in [ENTRIES, u32::from(how) << (how >> 4)] {
            walk(&memory, &at.rx, size, entry);
            walk(&memory, &at.tx, size, entry);
            walk(&memory, &at.fill, size, 1u64);
            walk(&memory, &at.completion, size, 1u64);
            walk(&memory, &at.statistics, Statistic::ENTRIES, 1u64);
        }
        // What the walks left is no part of what follows.
        (0..MEMORY).step_by(8).for_each(|at| assert!(memory.put(at, &[0; 8])));
    } else if how & 6 != 0 {
        // The handshake with such an answer needs no more than one run in four.
        return;
    }

    let wake = OwnedFd::from(EventFd::new().unwrap());
    let fds = match how >> 3 & 7 {
        0 => vec![],
        1 => vec![rings],
        2 => vec![wake, rings],
        3 => vec![rings.try_clone().unwrap(), rings, wake],
        _ => vec![rings, wake],
    };
    let (whole, count) = (fds.len() == 2, fds.len());
    let Datapath { path, replies } = datapath();
    replies.send(Reply { bytes, fds }).unwrap();
    let umem = Umem::new(COUNT, CHUNK).unwrap();
    let config = Config::default().rings(Sizes::all(ENTRIES));
    match Socket::connect(&umem, path, &config) {
        Ok(mut socket) => {
            assert!(matches!(decoded, Ok(Answer::Welcome(_))) && whole, "{count} descriptors");
            use_socket(&mut input, &mut socket, &umem, &memory);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    };
});

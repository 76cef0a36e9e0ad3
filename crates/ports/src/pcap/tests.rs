//! Captures written and read again, damaged, timed, from pipes.
//!
//! | module | what |
//! |---|---|
//! | `compressed` | compressed captures |
//! | `links` | link layers, cut frames, edits |
//! | `write` | captures that are written: cut, rotated, flushed |

mod compressed;
mod links;
mod write;

use super::*;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use proptest::collection::vec;
use proptest::prelude::*;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use towpath_packet::port::RxQueue;
use towpath_packet::{Packet, Pool, PoolConfig};

type Captured = Vec<(u64, Vec<u8>)>;

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(1024)).unwrap()
}

fn start(config: Config, pool: &Pool) -> (PcapRx, PcapTx) {
    let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE };
    let mut queues = open(config).unwrap().start(start).unwrap();
    (queues.rx.pop().unwrap(), queues.tx.pop().unwrap())
}

fn write(path: &Path, write: WriteConfig, packets: &Captured) {
    let pool = pool();
    let (_, mut tx) = start(Config { path: path.to_owned(), mode: Mode::Write(write) }, &pool);
    let mut cache = pool.cache(Direction::Tx).unwrap();
    for burst in packets.chunks(7) {
        let mut batch = Batch::new();
        for (time, bytes) in burst {
            let mut packet = Packet::copy_from(&mut cache, bytes).unwrap();
            packet.set_timestamp(*time);
            batch.push(packet).unwrap();
        }
        assert_eq!(tx.tx(&mut batch), burst.len());
    }
    let counters = tx.counters().clone();
    drop((tx, cache));
    assert_eq!(counters.snapshot().packets, packets.len() as u64);
    assert_eq!(pool.stats().free, 1024);
}

/// All packets until the queue's last state.
fn drain(rx: &mut PcapRx) -> (Captured, State) {
    let mut all = Vec::new();
    loop {
        let mut batch = Batch::new();
        if rx.rx(&mut batch) == 0 && rx.state().ended() {
            return (all, rx.state());
        }
        all.extend(batch.iter().map(|packet| (packet.timestamp(), packet.to_vec())));
    }
}

fn read(path: &Path) -> Captured {
    let (packets, state) = drain(&mut start(Config::read(path), &pool()).0);
    assert_eq!(state, if packets.is_empty() { nothing() } else { State::Done });
    packets
}

/// The last state of a file without packets.
fn nothing() -> State {
    State::Gone("the file has no packets".into())
}

/// The packets of some bytes, and how many errors there were; the walk is bounded, whatever the
/// bytes.
fn records(bytes: &[u8]) -> (Captured, usize) {
    let (mut packets, mut errors) = (Vec::new(), 0);
    let Ok(mut records) = Records::new(bytes) else { return (packets, 1) };
    for _ in 0..=bytes.len() {
        match records.next() {
            Item::Packet(record) => packets.push((record.time, record.data.to_vec())),
            Item::Bad { .. } => errors += 1,
            Item::Wait => {}
            Item::End => return (packets, errors),
            Item::Lost { .. } | Item::Failed { .. } => return (packets, errors + 1),
        }
    }
    panic!("{} bytes do not end", bytes.len());
}

fn packets() -> impl Strategy<Value = Captured> {
    // Seconds that both formats can express, any nanosecond.
    vec((0..u64::from(u32::MAX) * 1_000_000_000, vec(any::<u8>(), 1..5000)), 0..30)
}

fn file(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    (dir, path)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_was_written_is_read_again_to_the_nanosecond(packets in packets(), ng in any::<bool>(), ip in any::<bool>()) {
        let (_dir, path) = file(if ng { "x.pcapng" } else { "x.pcap" });
        let layer = if ip { Layer::Ip } else { Layer::Ethernet };
        write(&path, WriteConfig { layer, ..WriteConfig::default() }, &packets);
        prop_assert_eq!(open(Config::read(&path)).unwrap().info().layer, layer);
        prop_assert_eq!(read(&path), packets);
    }

    #[test]
    fn another_reader_finds_the_same_packets_in_what_was_written(packets in packets(), ng in any::<bool>()) {
        let (_dir, path) = file("x");
        let format = if ng { Format::Pcapng } else { Format::Pcap };
        write(&path, WriteConfig { format: Some(format), ..WriteConfig::default() }, &packets);
        let input = File::open(&path).unwrap();
        let mut found = Vec::new();
        if ng {
            let mut reader = PcapNgReader::new(input).unwrap();
            while let Some(block) = reader.next_block() {
                match block.unwrap() {
                    Block::EnhancedPacket(p) => found.push((p.timestamp.as_nanos() as u64, p.data.to_vec())),
                    Block::InterfaceDescription(i) => {
                        prop_assert_eq!(i.linktype, DataLink::ETHERNET);
                        prop_assert!(i.options.contains(&InterfaceDescriptionOption::IfName("towpath".into())));
                        prop_assert!(i.options.contains(&InterfaceDescriptionOption::IfTsResol(9)));
                    }
                    other => panic!("{other:?}"),
                }
            }
        } else {
            let mut reader = PcapReader::new(input).unwrap();
            while let Some(packet) = reader.next_packet() {
                let p = packet.unwrap();
                prop_assert_eq!(p.orig_len as usize, p.data.len());
                found.push((p.timestamp.as_nanos() as u64, p.data.to_vec()));
            }
        }
        prop_assert_eq!(found, packets);
    }

    #[test]
    fn what_another_writer_wrote_is_read_in_either_byte_order_and_resolution(
        packets in packets(), ng in any::<bool>(), big in any::<bool>(), micro in any::<bool>(),
    ) {
        let endianness = if big { Endianness::Big } else { Endianness::Little };
        let mut bytes = Vec::new();
        if ng {
            let mut writer = PcapNgWriter::with_endianness(&mut bytes, endianness).unwrap();
            let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
            if !micro {
                interface.options.push(InterfaceDescriptionOption::IfTsResol(9));
            }
            writer.write_pcapng_block(interface).unwrap();
            for (time, data) in &packets {
                // That crate takes the timestamp for nanoseconds whatever the interface says.
                let timestamp = Duration::from_nanos(if micro { time / 1000 } else { *time });
                let (original_len, data) = (data.len() as u32, data.into());
                let block = EnhancedPacketBlock { interface_id: 0, timestamp, original_len, data, options: vec![] };
                writer.write_pcapng_block(block).unwrap();
            }
        } else {
            let ts_resolution = if micro { TsResolution::MicroSecond } else { TsResolution::NanoSecond };
            let header = PcapHeader { endianness, ts_resolution, ..PcapHeader::default() };
            let mut writer = PcapWriter::with_header(&mut bytes, header).unwrap();
            for (time, data) in &packets {
                writer.write_packet(&PcapPacket::new(Duration::from_nanos(*time), data.len() as u32, data)).unwrap();
            }
        }
        let expected: Captured =
            packets.into_iter().map(|(time, data)| (if micro { time / 1000 * 1000 } else { time }, data)).collect();
        prop_assert_eq!(records(&bytes), (expected, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn arbitrary_bytes_end_without_a_packet_that_is_not_in_them(
        magic in 0usize..6, bytes in vec(any::<u8>(), 0..2000),
    ) {
        let magics: [&[u8]; 6] = [
            b"", b"\xd4\xc3\xb2\xa1\x02\0\x04\0", b"\xa1\xb2\x3c\x4d\0\x02\0\x04", b"\x0a\x0d\x0d\x0a",
            b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x1c\0\0\0",
            b"\x0a\x0d\x0d\x0a\0\0\0\x1c\x1a\x2b\x3c\x4d\0\x01\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x1c",
        ];
        let all = [magics[magic], &bytes].concat();
        let (packets, _) = records(&all);
        prop_assert!(packets.iter().map(|(_, data)| data.len()).sum::<usize>() <= all.len());
    }

    #[test]
    fn a_capture_with_flipped_bits_or_cut_short_ends_too(
        ng in any::<bool>(), flips in vec((any::<prop::sample::Index>(), 0u8..8), 0..20), cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample(ng);
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let (packets, _) = records(&bytes);
        prop_assert!(packets.iter().map(|(_, data)| data.len()).sum::<usize>() <= bytes.len());
    }
}

/// Forty packets of lengths 1, 101, 201, …
fn sample(ng: bool) -> Vec<u8> {
    let (_dir, path) = file("x");
    let format = Some(if ng { Format::Pcapng } else { Format::Pcap });
    let packets: Captured = (0..40).map(|i| (i * 1000 + 1, vec![i as u8; 1 + 100 * i as usize])).collect();
    write(&path, WriteConfig { format, ..WriteConfig::default() }, &packets);
    std::fs::read(path).unwrap()
}

#[test]
fn a_file_that_ends_within_a_record_gives_all_packets_before_it_and_says_where() {
    for ng in [false, true] {
        let bytes = sample(ng);
        let (_dir, path) = file("cut");
        std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
        let (mut rx, _) = start(Config::read(&path), &pool());
        let (packets, state) = drain(&mut rx);
        assert_eq!((packets.len(), rx.counters().snapshot().errors), (39, 1));
        let State::Gone(why) = state else { panic!("{state:?}") };
        assert!(why.contains("byte ") && why.contains("ends within a record"), "{why}");
    }
}

#[test]
fn a_bad_block_of_pcapng_is_skipped_and_counted_and_the_rest_is_read() {
    let mut bytes = sample(true);
    // The first packet's interface does not exist.
    let at = bytes.windows(8).position(|w| w == [6, 0, 0, 0, 36, 0, 0, 0]).unwrap();
    bytes[at + 8] = 77;
    let (_dir, path) = file("bad");
    std::fs::write(&path, &bytes).unwrap();
    let (mut rx, _) = start(Config::read(&path), &pool());
    let (packets, state) = drain(&mut rx);
    let counted = rx.counters().snapshot();
    assert_eq!((packets.len(), counted.packets, counted.errors, counted.all_missed()), (39, 39, 1, 1));
    assert!(matches!(state, State::Gone(why) if why.contains(&format!("byte {at}: a packet of an interface"))));
}

#[test]
fn a_length_in_the_file_is_checked() {
    let mut bytes = sample(false);
    bytes[24 + 8..24 + 12].fill(0xff);
    let lost = Item::Lost { at: 24, what: "a record longer than any packet" };
    assert_eq!(Records::new(&bytes[..]).unwrap().next(), lost);
    // A block of four gigabytes that is no packet is skipped up to the end of the file.
    let mut bytes = sample(true)[..28 + 60].to_vec();
    bytes.extend([10, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff]);
    bytes.extend([0; 100]);
    assert_eq!(records(&bytes).0, Vec::new());
}

#[test]
fn other_files_and_other_links_are_refused_by_name() {
    let (_dir, path) = file("x");
    let error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        open(Config::read(&path)).unwrap_err().to_string()
    };
    assert!(error(b"GIF89a and more").contains("neither a pcap nor a pcapng file"));
    assert!(error(b"").contains("too short"));
    let mut radio = sample(false);
    radio[20] = 195;
    let radio = error(&radio);
    assert!(radio.contains("link type 195, IEEE 802.15.4") && radio.contains("Linux cooked captures"), "{radio}");
    let missing = open(Config::read("/nonexistent/x.pcap")).unwrap_err().to_string();
    assert!(missing.contains("pcap:/nonexistent/x.pcap: open"), "{missing}");
}

#[test]
fn a_rate_is_never_exceeded_and_is_reported() {
    let (_dir, path) = file("x.pcap");
    write(&path, WriteConfig::default(), &(0..50).map(|_| (1, vec![1; 100])).collect());
    for (timing, least) in [
        (Timing::PacketRate(1000), Duration::from_millis(49)),
        // 800 bits each.
        (Timing::BitRate(800_000), Duration::from_millis(49)),
    ] {
        let mode = Mode::Read(ReadConfig { timing, ..ReadConfig::default() });
        let port = open(Config { path: path.clone(), mode }).unwrap();
        let control = port.control().unwrap();
        let start = Start { pool: pool(), queues: 1, accept: Offloads::NONE };
        let mut rx = port.start(start).unwrap().rx.pop().unwrap();
        let begin = Instant::now();
        assert_eq!(rx.rx(&mut Batch::new()), 1);
        assert!(matches!(rx.wake(), Wake::At(_)));
        let (packets, state) = drain(&mut rx);
        // A schedule that was moved after a delay takes longer.
        assert!(begin.elapsed() >= least, "{timing:?}: {:?}", begin.elapsed());
        assert_eq!((packets.len(), state), (49, State::Done));
        let pacing = control.pacing(Instant::now()).unwrap();
        assert!(pacing.asked == 1000.0 && pacing.reached > 0.0 && pacing.reached <= 1000.0, "{pacing:?}");
    }
}

#[test]
fn a_frame_check_sequence_is_left_out() {
    let mut bytes = sample(false);
    // Two units of 16 bits.
    bytes[20..24].copy_from_slice(&(0x2400_0001u32).to_le_bytes());
    let (packets, errors) = records(&bytes);
    assert_eq!((packets.len(), errors), (39, 1), "the first had one byte");
    assert!(packets.iter().enumerate().all(|(i, (_, data))| data.len() == 97 + 100 * i));
}

#[test]
fn a_file_can_be_read_several_times_and_an_empty_one_is_named_and_does_not_loop_for_ever() {
    let (_dir, path) = file("x.pcap");
    std::fs::write(&path, sample(false)).unwrap();
    let config = |loops| Config { path: path.clone(), mode: Mode::Read(ReadConfig { loops, ..ReadConfig::default() }) };
    let (packets, state) = drain(&mut start(config(NonZeroU32::new(3)), &pool()).0);
    assert_eq!((packets.len(), state), (120, State::Done));
    std::fs::write(&path, &sample(false)[..24]).unwrap();
    assert!(!open(config(None)).unwrap().info().finite);
    assert_eq!(drain(&mut start(config(None), &pool()).0), (Vec::new(), nothing()));
}

#[test]
fn with_original_timing_the_next_packet_is_due_after_its_gap() {
    let (_dir, path) = file("x.pcap");
    let hour = 3_600_000_000_000;
    write(&path, WriteConfig::default(), &vec![(hour, vec![1; 60]), (3 * hour, vec![2; 60]), (2 * hour, vec![3; 60])]);
    let timing = Timing::Original { speed: 2.0 };
    let mode = Mode::Read(ReadConfig { timing, ..ReadConfig::default() });
    let (mut rx, _) = start(Config { path, mode }, &pool());
    let before = Instant::now();
    assert_eq!(rx.rx(&mut Batch::new()), 1);
    let Wake::At(due) = rx.wake() else { panic!("{:?}", rx.wake()) };
    let gap = due - before;
    assert!(gap >= Duration::from_secs(3600) && gap < Duration::from_secs(3660), "{gap:?}");
    assert_eq!((rx.rx(&mut Batch::new()), rx.state()), (0, State::Up));
}

#[test]
fn an_exhausted_pool_delays_packets_and_loses_none() {
    let (_dir, path) = file("x.pcap");
    std::fs::write(&path, sample(false)).unwrap();
    let pool = Pool::new(PoolConfig::default().capacity(16)).unwrap();
    let (mut rx, _) = start(Config::read(&path), &pool);
    assert_eq!(drain(&mut rx).0.len(), 40);
    drop(rx);
    assert_eq!(pool.stats().free, 16);
}

#[test]
fn a_pipe_is_waited_for_and_ends_with_its_writer() {
    use std::io::Write as _;
    let (from, mut to) = io::pipe().unwrap();
    let bytes = sample(false);
    to.write_all(&bytes[..24 + 16 + 1 + 20]).unwrap();
    let path = format!("/proc/self/fd/{}", from.as_raw_fd());
    // Every packet of the sample is due at once, so that only the pipe is waited for.
    let timing = Timing::Original { speed: 1e9 };
    let mode = Mode::Read(ReadConfig { timing, ..ReadConfig::default() });
    let (mut rx, _) = start(Config { path: path.into(), mode }, &pool());
    drop(from);
    let mut batch = Batch::new();
    assert_eq!((rx.rx(&mut batch), rx.rx(&mut batch), rx.state()), (1, 0, State::Up));
    assert!(matches!(rx.wake(), Wake::Fd(_)));
    // More than a pipe holds.
    let writer = std::thread::spawn(move || to.write_all(&bytes[24 + 16 + 1 + 20..]).unwrap());
    let (packets, state) = drain(&mut rx);
    writer.join().unwrap();
    assert_eq!((packets.len(), state), (39, State::Done));
    let (from, _to) = io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", from.as_raw_fd()).into();
    let mode = Mode::Read(ReadConfig { loops: None, ..ReadConfig::default() });
    assert!(open(Config { path, mode }).unwrap_err().to_string().contains("loop=0: must be 1"));
}

#[test]
fn a_file_that_is_read_sends_nothing_and_one_that_is_written_receives_nothing() {
    let (_dir, path) = file("x.pcap");
    write(&path, WriteConfig::default(), &Vec::new());
    let pool = pool();
    let (_, mut tx) = start(Config::read(&path), &pool);
    let mut batch = Batch::new();
    batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[1; 60]).unwrap()).unwrap();
    assert_eq!((tx.tx(&mut batch), batch.len()), (0, 1));
    assert!(matches!(tx.state(), State::Gone(_)));
    let (mut rx, _) = start(Config::write(&path), &pool);
    assert_eq!((rx.rx(&mut Batch::new()), rx.wake(), rx.state()), (0, Wake::Never, State::Up));
}

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

/// A capture of interfaces with these link types, and their packets.
fn mixed(links: &[DataLink], packets: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = PcapNgWriter::new(&mut bytes).unwrap();
    for link in links {
        writer.write_pcapng_block(InterfaceDescriptionBlock::new(*link, 0)).unwrap();
    }
    for (interface_id, data) in packets {
        let (timestamp, original_len, data) = (Duration::ZERO, data.len() as u32, data.to_vec().into());
        let block = EnhancedPacketBlock { interface_id: *interface_id, timestamp, original_len, data, options: vec![] };
        writer.write_pcapng_block(block).unwrap();
    }
    bytes
}

type Events = Vec<(&'static str, u64)>;

/// The packets of a file for an egress of `layer`, and the port's events.
fn converted(bytes: &[u8], layer: Layer, read: ReadConfig) -> (Vec<Vec<u8>>, State, Events) {
    let (_dir, path) = file("x");
    std::fs::write(&path, bytes).unwrap();
    let mut port = open(Config { path, mode: Mode::Read(read) }).unwrap();
    port.convert_to(layer);
    assert_eq!(port.info().layer, layer);
    let control = port.control().unwrap();
    let pool = pool();
    let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::NONE };
    let (packets, state) = drain(&mut port.start(start).unwrap().rx[0]);
    let events = control.events().into_iter().filter(|(_, n)| *n > 0).collect();
    (packets.into_iter().map(|(_, data)| data).collect(), state, events)
}

const V4: [u8; 21] = [0x45, 0, 0, 21, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 99];

#[test]
fn each_interface_of_a_file_is_converted_to_the_layer_of_the_egress() {
    let ethernet = [&[2; 12][..], &[8, 0], &V4].concat();
    let arp = [&[2; 12][..], &[8, 6], &[0; 28]].concat();
    let ppp = [&[0xff, 3, 0, 0x21][..], &V4].concat();
    let lcp = [0xff, 3, 0xc0, 0x21, 1, 2];
    let links = [DataLink::ETHERNET, DataLink::PPP, DataLink::RAW, DataLink::IEEE802_15_4];
    let bytes = mixed(&links, &[(0, &ethernet), (1, &ppp), (2, &V4), (1, &lcp), (3, &[1, 2, 3]), (0, &arp), (0, &[])]);
    let (packets, state, events) = converted(&bytes, Layer::Ip, ReadConfig::default());
    assert_eq!((packets, state), (vec![V4.to_vec(); 3], State::Done));
    let found = [("empty_records", 1), ("frames_not_convertible", 2), ("frames_of_other_links", 1)];
    assert_eq!(events, found);
    let made = [&MADE_DESTINATION[..], &MADE_SOURCE, &[8, 0], &V4].concat();
    let (packets, state, events) = converted(&bytes, Layer::Ethernet, ReadConfig::default());
    assert_eq!((packets, state), (vec![ethernet, made.clone(), made, arp], State::Done));
    assert_eq!(events, [("empty_records", 1), ("frames_not_convertible", 1), ("frames_of_other_links", 1)]);
}

#[test]
fn a_sound_file_of_frames_that_have_no_form_is_replayed_as_no_packets() {
    let bytes = mixed(&[DataLink::PPP], &[(0, &[0xc0, 0x21, 1]), (0, &[0xc0, 0x21, 2])]);
    for loops in [NonZeroU32::new(1), NonZeroU32::new(3), None] {
        let read = ReadConfig { loops, ..ReadConfig::default() };
        let (packets, state, events) = converted(&bytes, Layer::Ethernet, read);
        assert_eq!((packets.len(), state), (0, State::Done));
        // Without packets there is no second pass.
        assert_eq!(events, [("frames_not_convertible", 2)]);
    }
    let beacon = [&[0x80, 0, 0, 0][..], &[2; 40]].concat();
    let bytes = mixed(&[DataLink::IEEE802_11], &[(0, &beacon), (0, &beacon)]);
    let (packets, state, events) = converted(&bytes, Layer::Ethernet, ReadConfig::default());
    assert_eq!((packets.len(), state, events), (0, State::Done, vec![("wifi_management_frames", 2)]));
}

#[test]
fn a_file_of_which_no_record_is_understood_is_named_and_is_not_damaged() {
    let bytes = mixed(&[DataLink::RAW], &[(0, &[]), (0, &[])]);
    let (packets, state, _) = converted(&bytes, Layer::Ethernet, ReadConfig::default());
    let why = "none of 2 records can be sent; the first is an empty packet";
    assert_eq!((packets.len(), state), (0, State::Gone(why.into())));
    // A first interface of a link that is refused does not refuse the file.
    let bytes = mixed(&[DataLink::IEEE802_15_4, DataLink::RAW], &[(1, &V4)]);
    assert_eq!(converted(&bytes, Layer::Ip, ReadConfig::default()).0, [V4]);
    let refused = mixed(&[DataLink::IEEE802_15_4], &[(0, &V4)]);
    assert!(Records::new(&refused[..]).unwrap_err().contains("link type 195, IEEE 802.15.4"));
}

/// An 802.11 frame to an access point that holds `subframes` packets, each of its number.
fn amsdu(subframes: u8) -> Vec<u8> {
    let mut frame = [&[0x88, 1, 0, 0][..], &[2; 18], &[0; 2], &[0x80, 0]].concat();
    for number in 0..subframes {
        frame.extend([4; 12]);
        frame.extend([0, 12, 0xaa, 0xaa, 3, 0, 0, 0, 8, 6, number, 0, 0, 0]);
        frame.extend([0; 2]);
    }
    frame
}

#[test]
fn frames_of_an_aggregate_fill_more_than_a_batch_in_their_order_and_records_add_up() {
    // A batch takes 64 packets.
    let (aggregate, beacon) = (amsdu(200), [0x80; 30]);
    let bytes = mixed(&[DataLink::IEEE802_11], &[(0, &beacon), (0, &aggregate), (0, &amsdu(3)), (0, &[0xd4, 0])]);
    let numbers: Vec<u8> = (0..200).chain(0..3).collect();
    for timing in [Timing::Fast, Timing::PacketRate(1_000_000), Timing::Original { speed: 1.0 }] {
        let read = ReadConfig { timing, loops: NonZeroU32::new(2), ..ReadConfig::default() };
        let (packets, state, events) = converted(&bytes, Layer::Ethernet, read);
        assert_eq!(state, State::Done);
        let found: Vec<u8> = packets.iter().map(|packet| packet[14]).collect();
        assert_eq!(found, numbers.repeat(2));
        let names = ["wifi_management_frames", "wifi_control_frames", "wifi_further_amsdu_frames"];
        assert_eq!(events, names.into_iter().zip([2, 2, 2 * (199 + 2)]).collect::<Vec<_>>());
        let records = 2 * 4;
        let [beacons, controls, further] = [0, 1, 2].map(|n| events[n].1);
        assert_eq!(records + further, packets.len() as u64 + beacons + controls);
    }
}

#[test]
fn a_check_sequence_that_radiotap_tells_of_is_removed_once_whatever_the_file_tells() {
    let data = [&[8, 1, 0, 0][..], &[2; 18], &[0; 2], &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &V4].concat();
    let radio = |flags: u8| [&[0, 0, 9, 0, 2, 0, 0, 0, flags][..], &data].concat();
    let fcs = [1, 2, 3, 4];
    let expected = [&[2; 12][..], &[8, 0], &V4].concat();
    for (link, frame, in_file) in [
        (127, [radio(0x10), fcs.to_vec()].concat(), 0x4400_0000_u32 | 2 << 28),
        (127, radio(0), 0x0400_0000 | 2 << 28),
        (105, [data.clone(), fcs.to_vec()].concat(), 0x0400_0000 | 2 << 28),
        (105, data.clone(), 0),
    ] {
        let mut bytes = sample(false)[..24].to_vec();
        bytes[20..24].copy_from_slice(&(link | in_file).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend([(frame.len() as u32).to_le_bytes(); 2].concat());
        bytes.extend(&frame);
        let (packets, state, events) = converted(&bytes, Layer::Ethernet, ReadConfig::default());
        assert_eq!((packets, state, events), (vec![expected.clone()], State::Done, vec![]), "{link} {in_file:x}");
    }
}

#[test]
fn packets_that_the_capture_cut_are_sent_skipped_or_padded_and_counted() {
    let (_dir, path) = file("x.pcap");
    let whole: Vec<u8> = (0..200).map(|n| n as u8).collect();
    write(&path, WriteConfig { snaplen: 90, ..WriteConfig::default() }, &vec![(1, whole.clone()), (2, vec![7; 60])]);
    let bytes = std::fs::read(path).unwrap();
    for (truncated, sent) in [
        (Truncated::Send, vec![whole[..90].to_vec(), vec![7; 60]]),
        (Truncated::Skip, vec![vec![7; 60]]),
        (Truncated::Pad, vec![[&whole[..90], &[0; 110]].concat(), vec![7; 60]]),
    ] {
        let read = ReadConfig { truncated, ..ReadConfig::default() };
        let (packets, state, events) = converted(&bytes, Layer::Ethernet, read);
        assert_eq!((packets, state), (sent, State::Done), "{truncated:?}");
        assert_eq!(events, [("truncated_packets", 1)], "{truncated:?}");
    }
}

#[test]
fn edits_apply_behind_a_made_header_and_need_one() {
    let bytes = mixed(&[DataLink::RAW], &[(0, &V4)]);
    let edits = Edits { vlan: Some(VlanEdit::Set(9)), smac: Some([4; 6]), ..Edits::default() };
    let read = ReadConfig { edits, ..ReadConfig::default() };
    let (packets, ..) = converted(&bytes, Layer::Ethernet, read.clone());
    assert_eq!(packets, [[&MADE_DESTINATION[..], &[4; 6], &[0x81, 0, 0, 9, 8, 0], &V4].concat()]);
    let (_dir, path) = file("x");
    std::fs::write(&path, &bytes).unwrap();
    let port = open(Config { path, mode: Mode::Read(read) }).unwrap();
    let start = Start { pool: pool(), queues: 1, accept: Offloads::NONE };
    let error = port.start(start).unwrap_err().to_string();
    assert!(error.contains("smac= needs an Ethernet header") && error.contains("link=ethernet"), "{error}");
}

/// A file of `sample(false)` as its name compresses it, by the writer or by another program's
/// format.
fn compressed(name: &str) -> Vec<u8> {
    let (_dir, path) = file(name);
    let packets: Captured = (0..40).map(|i| (i * 1000 + 1, vec![i as u8; 1 + 100 * i as usize])).collect();
    write(&path, WriteConfig::default(), &packets);
    std::fs::read(path).unwrap()
}

#[test]
fn a_compressed_capture_is_recognised_by_its_first_bytes() {
    for (name, magic) in [("x.pcap.gz", &[0x1f, 0x8b][..]), ("x.pcapng.zst", &[0x28, 0xb5, 0x2f, 0xfd])] {
        let bytes = compressed(name);
        assert!(bytes.starts_with(magic) && bytes.len() < 60_000, "{name}: {} bytes", bytes.len());
        let (_dir, path) = file("no-extension");
        std::fs::write(&path, &bytes).unwrap();
        let packets = read(&path);
        assert_eq!(
            packets.iter().map(|(_, data)| data.len()).collect::<Vec<_>>(),
            (0..40).map(|i| 1 + 100 * i).collect::<Vec<_>>()
        );
        // And again, from the beginning.
        let mode = Mode::Read(ReadConfig { loops: NonZeroU32::new(3), ..ReadConfig::default() });
        let (packets, state) = drain(&mut start(Config { path, mode }, &pool()).0);
        assert_eq!((packets.len(), state), (120, State::Done), "{name}");
    }
}

#[test]
fn an_xz_file_of_another_program_is_read() {
    let (_dir, path) = file("x");
    std::fs::write(&path, include_bytes!("../../tests/data/two.pcap.xz")).unwrap();
    assert_eq!(read(&path), records(include_bytes!("../../tests/data/two.pcap")).0);
}

#[test]
fn a_compressed_capture_that_is_cut_short_or_changed_is_damaged_and_says_so() {
    let xz = include_bytes!("../../tests/data/two.pcap.xz").to_vec();
    for (name, bytes) in [("gzip", compressed("x.gz")), ("zstd", compressed("x.zst")), ("xz", xz)] {
        let (_dir, path) = file("x");
        let short = &bytes[..bytes.len() - 3];
        std::fs::write(&path, short).unwrap();
        let mut last = None;
        if let Ok(port) = open(Config::read(&path)) {
            let start = Start { pool: pool(), queues: 1, accept: Offloads::NONE };
            last = Some(drain(&mut port.start(start).unwrap().rx[0]).1);
        }
        let Some(State::Gone(why)) = last else { panic!("{name}: {last:?}") };
        assert!(why.starts_with("damaged file: ") && why.contains(&format!("the {name} data is cut short")), "{why}");
        // A pipe, for which a thread decodes.
        let (from, mut to) = io::pipe().unwrap();
        let short = short.to_vec();
        let writer = std::thread::spawn(move || io::Write::write_all(&mut to, &short));
        let path = format!("/proc/self/fd/{}", from.as_raw_fd());
        let (mut rx, _) = start(Config::read(path), &pool());
        drop(from);
        let (packets, state) = drain(&mut rx);
        let _ = writer.join().unwrap();
        assert!(
            matches!(&state, State::Gone(why) if why.contains(&format!("the {name} data is cut short"))),
            "{state:?}"
        );
        assert!(name != "gzip" || packets.len() >= 39, "zstd and xz give whole blocks; {} packets", packets.len());
        // A changed byte is found by a checksum or before.
        let mut changed = bytes.clone();
        let at = bytes.len() * 2 / 3;
        changed[at] ^= 0x55;
        let (_dir, path) = file("y");
        std::fs::write(&path, &changed).unwrap();
        let bad = match open(Config::read(&path)) {
            Err(error) => error.to_string(),
            Ok(port) => {
                let start = Start { pool: pool(), queues: 1, accept: Offloads::NONE };
                format!("{:?}", drain(&mut port.start(start).unwrap().rx[0]).1)
            }
        };
        assert!(bad.contains("damaged") || bad.contains("cut short"), "{name}: {bad}");
    }
}

#[test]
fn a_compressed_pipe_is_read_as_it_comes() {
    let (from, mut to) = io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", from.as_raw_fd());
    let writer = std::thread::spawn(move || io::Write::write_all(&mut to, &compressed("x.zst")).unwrap());
    let (mut rx, _) = start(Config::read(path), &pool());
    drop(from);
    let (packets, state) = drain(&mut rx);
    writer.join().unwrap();
    assert_eq!((packets.len(), state), (40, State::Done));
}

#[test]
fn a_small_file_that_decompresses_to_very_much_is_read_to_its_end() {
    use std::io::Write as _;
    // A header, and 200 megabytes of zeros: records without bytes.
    let (_dir, path) = file("x");
    let mut bomb = flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::best());
    bomb.write_all(&sample(false)[..24]).unwrap();
    (0..200).for_each(|_| bomb.write_all(&[0; 1 << 20]).unwrap());
    bomb.finish().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
    let (mut rx, _) = start(Config::read(&path), &pool());
    let (packets, state) = drain(&mut rx);
    assert!(packets.is_empty() && matches!(state, State::Gone(why) if why.contains("an empty packet")));
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
fn a_snapshot_length_cuts_packets_and_notes_their_length() {
    for ng in [false, true] {
        let (_dir, path) = file("x");
        let format = Some(if ng { Format::Pcapng } else { Format::Pcap });
        write(
            &path,
            WriteConfig { format, snaplen: 50, ..WriteConfig::default() },
            &vec![(1, vec![7; 4000]), (2, vec![8; 49])],
        );
        let bytes = std::fs::read(&path).unwrap();
        let mut records = Records::new(&bytes[..]).unwrap();
        let Item::Packet(record) = records.next() else { panic!() };
        assert_eq!((record.data, record.original), (&[7; 50][..], 4000));
        let Item::Packet(record) = records.next() else { panic!() };
        assert_eq!((record.data, record.original), (&[8; 49][..], 49));
    }
}

#[test]
fn files_are_rotated_by_size_each_complete_and_only_the_last_are_kept() {
    let (dir, path) = file("x.pcap");
    let packets: Captured = (1..=10).map(|i| (i, vec![i as u8; 1000])).collect();
    write(&path, WriteConfig { rotate_size: Some(2200), files: Some(3), ..WriteConfig::default() }, &packets);
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["x-00003.pcap", "x-00004.pcap", "x-00005.pcap"]);
    let kept: Captured = names.iter().flat_map(|name| read(&dir.path().join(name))).collect();
    assert_eq!(kept, packets[4..]);
}

#[test]
fn files_are_rotated_by_age() {
    let (dir, path) = file("x.pcap");
    let packets: Captured = (1..=4).map(|i| (i, vec![i as u8; 100])).collect();
    write(&path, WriteConfig { rotate_time: Some(Duration::ZERO), ..WriteConfig::default() }, &packets);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "each packet comes later than its file");
}

#[test]
fn gathered_packets_are_on_disk_after_the_flush_interval_in_whole_records() {
    let (_dir, path) = file("x.pcap");
    let pool = pool();
    let mode = Mode::Write(WriteConfig { flush: Duration::from_millis(20), ..WriteConfig::default() });
    let (_, mut tx) = start(Config { path: path.clone(), mode }, &pool);
    assert_eq!(read(&path), [], "a capture from the beginning");
    let mut batch = Batch::new();
    batch.push(Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &[1; 60]).unwrap()).unwrap();
    tx.tx(&mut batch);
    assert_eq!((tx.pending(), tx.counters().snapshot().packets), (1, 0));
    let Wake::At(due) = tx.wake() else { panic!() };
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    assert_eq!((tx.reclaim(), tx.pending(), tx.counters().snapshot().packets), (1, 0, 1));
    let packets = read(&path);
    assert!(packets.len() == 1 && packets[0].0 > 1_500_000_000_000_000_000, "stamped now: {packets:?}");
}

#[test]
fn packets_are_written_by_a_quarter_of_a_mebibyte_and_the_rest_at_the_end() {
    let (_dir, path) = file("x.pcap");
    let pool = pool();
    let mode = Mode::Write(WriteConfig { flush: Duration::from_secs(3600), ..WriteConfig::default() });
    let (_, mut tx) = start(Config { path: path.clone(), mode }, &pool);
    let (mut cache, mut batch) = (pool.cache(Direction::Tx).unwrap(), Batch::new());
    for _ in 0..200 {
        (0..50).for_each(|_| drop(batch.push(Packet::copy_from(&mut cache, &[1; 60]).unwrap())));
        tx.reclaim();
        tx.tx(&mut batch);
        tx.kick();
    }
    let counters = tx.counters().clone();
    // A record has 16 bytes and the packet: the 3450th fills a piece. The first write is the
    // header's.
    assert_eq!((counters.snapshot().calls, counters.snapshot().packets, tx.pending()), (3, 6900, 3100));
    drop(tx);
    assert_eq!((counters.snapshot().calls, read(&path).len()), (4, 10_000));
}

#[test]
fn a_disk_that_is_full_from_the_beginning_is_an_error_of_the_start() {
    let start = Start { pool: pool(), queues: 1, accept: Offloads::NONE };
    let error = open(Config::write("/dev/full")).unwrap().start(start).unwrap_err().to_string();
    assert!(error.contains("/dev/full: write: ") && error.contains("No space left"), "{error}");
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

#[test]
fn bytes_that_packets_own_are_written_and_freed() {
    for name in ["x.pcap", "x.pcapng"] {
        let (_dir, path) = file(name);
        let pool = pool();
        let (_, mut tx) = start(Config { path: path.clone(), mode: Mode::Write(WriteConfig::default()) }, &pool);
        let bytes: Vec<Arc<[u8]>> = [1, 60, 1514, 65535].map(|len| vec![len as u8; len].into()).to_vec();
        let mut batch = Batch::new();
        for bytes in &bytes {
            batch.push(Packet::from_owner(bytes.clone()).unwrap()).unwrap();
            // And behind a head.
            let mut packet = Packet::copy_from(&mut pool.cache(Direction::Tx).unwrap(), &bytes[..1]).unwrap();
            packet.append(Packet::from_owner(bytes.clone()).unwrap()).unwrap();
            batch.push(packet).unwrap();
        }
        assert_eq!(tx.tx(&mut batch), 8);
        assert_eq!((tx.close(), tx.counters().snapshot().packets), (Ok(()), 8));
        drop(tx);
        let expected = bytes.iter().flat_map(|bytes| [bytes.to_vec(), [&bytes[..1], bytes].concat()]);
        assert!(read(&path).into_iter().map(|(_, bytes)| bytes).eq(expected));
        assert!(bytes.iter().all(|bytes| Arc::strong_count(bytes) == 1));
        assert_eq!(pool.stats().free, 1024);
    }
}

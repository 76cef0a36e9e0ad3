//! Link layers: converted to that of the egress; cut frames, edits.

use super::*;

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

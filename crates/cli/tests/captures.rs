//! Captures of `record`, replays by `replay`, and malformed files.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};
use support::datapath::{Line, Summary, command, run};
use support::files::Files;
use support::traffic::{judged, ping, tcp, udp};
use support::{Hosts, Namespace, Need, Towpath, needs, succeed, until};

/// The bytes of the packets in a pcap file with this machine's byte order.
fn packets(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!([0xa1b2_3c4d, 0xa1b2_c3d4].contains(&word(0)), "no pcap file: {path:?}");
    let (mut at, mut all) = (24, Vec::new());
    while at < bytes.len() {
        let (kept, len) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(kept, len, "a packet was cut");
        all.push(bytes[at + 16..at + 16 + len].to_vec());
        at += 16 + len;
    }
    all
}

/// Two hosts joined by the kernel's veth pair, with all its offloads.
fn neighbours() -> Hosts {
    let hosts = Hosts::new();
    hosts.one.ip(&format!("link add e0 type veth peer e0 netns {}", hosts.two.name()));
    for (n, host) in [(1, &hosts.one), (2, &hosts.two)] {
        host.ip(&format!("addr add 10.0.0.{n}/24 dev e0"));
        host.ip(&format!("addr add fd00::{n}/64 dev e0 nodad"));
        host.ip("link set e0 up");
    }
    ping(&hosts, "", "10.0.0.2");
    hosts
}

/// Records the packets that host 2 receives while `traffic` runs, until the file has at least
/// `least` bytes or stops growing. A recorder that waits for a processor lags behind, and packets
/// that it has not read when it is stopped are not recorded.
fn record(hosts: &Hosts, file: &Path, least: usize, traffic: impl FnOnce()) -> Summary {
    let port = format!("packet:e0?netns={}", hosts.two.name());
    let mut towpath = Towpath::start(&["record", &port, file.to_str().unwrap()]);
    traffic();
    let (mut last, mut since) = (0, Instant::now());
    until("all of it is received", || {
        let received = towpath.look().ports[0].rx.bytes;
        if std::mem::replace(&mut last, received) != received {
            since = Instant::now();
        }
        received >= least as u64 || since.elapsed() > Duration::from_secs(15)
    });
    towpath.stop().code(0).summary()
}

#[test]
fn a_capture_on_standard_output_is_whole_also_with_json_which_goes_to_standard_error() {
    let done = run_bytes(&["record", "gen:count=5", "-", "--json"]);
    let files = Files::new();
    std::fs::write(files.path("out.pcap"), &done.stdout).unwrap();
    assert_eq!(packets(&files.path("out.pcap")).len(), 5);
    let text = String::from_utf8(done.stderr).unwrap();
    let kinds: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(r#"{"type":""#)?.split('"').next()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"start"), Some(&"summary")), "{text}");
}

/// Runs the command; its output as it is.
fn run_bytes(args: &[&str]) -> std::process::Output {
    let mut command = command(args);
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

#[test]
fn a_recording_of_partial_checksums_and_super_packets_has_only_right_checksums_and_whole_packets() {
    let name = "a_recording_of_partial_checksums_and_super_packets_has_only_right_checksums_and_whole_packets";
    require!(
        "a_recording_of_partial_checksums_and_super_packets_has_only_right_checksums_and_whole_packets",
        "tshark",
        "iperf3",
        "ping"
    );
    for format in ["pcap", "pcapng"] {
        let (hosts, files) = (neighbours(), Files::new());
        let file = files.path(&format!("a.{format}"));
        let summary = record(&hosts, &file, 8 << 20, || {
            ping(&hosts, "-s 3000", "10.0.0.2");
            ping(&hosts, "", "fd00::2");
            tcp(&hosts, "10.0.0.2", "4M");
            tcp(&hosts, "fd00::2", "4M");
            udp(&hosts, "10.0.0.2");
        });
        summary.is_clean();
        assert!(summary.balance.split > 1000, "{name}: super-packets were there to be cut: {summary:#?}");
        let (bad, all) = judged(&file);
        assert_eq!(bad, 0, "{name}: of {all}");
        assert_eq!(all as u64, summary.balance.sent);
    }
}

#[test]
fn a_recording_of_a_tap_and_of_a_tun_has_only_right_checksums() {
    require!("a_recording_of_a_tap_and_of_a_tun_has_only_right_checksums", "tshark", "socat");
    for scheme in ["tap", "tun"] {
        let (ns, files) = (Namespace::new("rec"), Files::new());
        let (port, file) =
            (format!("{scheme}:e0?netns={},addr=10.0.0.1/24+fd00::1/64", ns.name()), files.text("a.pcap"));
        let mut towpath = Towpath::start(&["record", &port, &file]);
        if scheme == "tap" {
            ns.ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev e0");
            ns.ip("neigh add fd00::2 lladdr 02:00:00:00:00:02 dev e0");
        }
        for target in ["UDP4:10.0.0.2:9", "UDP6:[fd00::2]:9"] {
            ns.run(
                "socat",
                &format!("-u -b 1201 OPEN:{} {target}", env!("CARGO_MANIFEST_DIR").to_owned() + "/tests/captures.rs"),
            );
        }
        until("packets", || towpath.look().ports[1].tx.packets >= 8);
        let summary = towpath.stop().code(0).summary();
        summary.is_clean();
        let (bad, all) = judged(Path::new(&file));
        assert_eq!((bad, all as u64), (0, summary.balance.sent), "{scheme}");
    }
}

#[test]
fn a_replayed_capture_arrives_byte_for_byte_and_in_order() {
    require!("a_replayed_capture_arrives_byte_for_byte_and_in_order", "iperf3", "ping");
    let (hosts, files) = (neighbours(), Files::new());
    record(&hosts, &files.path("first.pcap"), 256 << 10, || {
        ping(&hosts, "", "10.0.0.2");
        tcp(&hosts, "10.0.0.2", "256K");
    })
    .is_clean();
    let sent = packets(&files.path("first.pcap"));
    // iperf3 ends as soon as it has passed its bytes to the kernel; some of them may not have left
    // yet.
    assert!(sent.len() > 50, "{} packets", sent.len());
    // The other format must give the same bytes.
    let (pcap, pcapng) = (files.text("first.pcap"), files.text("first.pcapng"));
    run(&["replay", &pcap, &format!("pcap:{pcapng}"), "-q"]).code(0);
    for (number, source) in [pcap, pcapng].iter().enumerate() {
        let again = Hosts::new();
        let wire = again.port(2, support::Cable::Packet, 1500, "");
        let heard = files.path(&format!("again{number}.pcap"));
        let summary = record(&again, &heard, sent.iter().map(Vec::len).sum(), || {
            let replayed = run(&["replay", source, &wire, "--json"]).code(0).summary();
            assert_eq!(replayed.is_clean().balance.sent, sent.len() as u64);
        });
        summary.is_clean();
        let heard = packets(&heard);
        assert_eq!(heard.len(), sent.len(), "from {source}");
        assert!(heard == sent, "from {source}: the same number, but other bytes");
    }
}

#[test]
fn the_host_of_a_tap_receives_a_replayed_capture() {
    require!("the_host_of_a_tap_receives_a_replayed_capture",);
    let (ns, files) = (Namespace::new("rx"), Files::new());
    run(&["gen", &format!("pcap:{}", files.text("a.pcap")), "--count", "500", "--size", "imix", "-q"]).code(0);
    let sent = packets(&files.path("a.pcap"));
    // The tap must outlive the replay, so that its received packets can be recorded.
    ns.ip("tuntap add dev e0 mode tap vnet_hdr");
    ns.ip("link set e0 up");
    let heard = files.path("b.pcap");
    let mut recorder = Towpath::start(&["record", &format!("packet:e0?netns={}", ns.name()), heard.to_str().unwrap()]);
    let tap = format!("tap:e0?netns={}", ns.name());
    run(&["replay", &files.text("a.pcap"), &tap, "-q"]).code(0);
    until("all of it is received", || recorder.look().ports[0].rx.packets >= sent.len() as u64);
    recorder.stop().code(0).summary().is_clean();
    let heard = packets(&heard);
    assert!(heard == sent, "{} of {}", heard.len(), sent.len());
}

#[test]
fn generated_packets_have_only_right_checksums_in_a_file() {
    let name = "generated_packets_have_only_right_checksums_in_a_file";
    if !needs(name, &[Need::Program("tshark")]) {
        return;
    }
    let files = Files::new();
    for (ip, proto, format) in
        [("4", "tcp", "pcap"), ("6", "udp", "pcapng"), ("6", "tcp", "pcap"), ("4", "udp", "pcapng")]
    {
        let file = files.text(&format!("{ip}{proto}.{format}"));
        let port = format!("pcap:{file}");
        let more = ["--size", "20000", "--segment", "1400", "--ip", ip, "--proto", proto, "--json"];
        let summary = run(&[&["gen", &port, "--count", "50"], &more[..]].concat()).code(0).summary();
        summary.is_clean();
        let (bad, all) = judged(Path::new(&file));
        assert_eq!((bad, all as u64), (0, summary.balance.sent), "{ip} {proto}");
        // A self-test of the checker: it finds a changed byte.
        let mut bytes = std::fs::read(&file).unwrap();
        let at = bytes.len() - 20;
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(judged(Path::new(&file)).0, 1, "{ip} {proto}");
    }
}

#[test]
fn a_recording_with_a_filter_has_what_matches_and_counts_the_rest() {
    let files = Files::new();
    let file = files.text("some.pcap");
    // Flows have source ports from 49152 on.
    let filter = "udp src port 49153 or 49155 and not dst net 10.0.0.0/8";
    let done = run(&["record", "gen:flows=4,count=400", &file, "--filter", filter, "--json"]).code(0);
    let summary: Summary = match serde_json::from_str(done.stdout.lines().last().unwrap()).unwrap() {
        Line::Summary(summary) => *summary,
        other => panic!("{other:#?}"),
    };
    assert_eq!(summary.is_balanced().dropped("filtered"), 200);
    let hits: Vec<_> = summary.rules.iter().map(|hits| (hits.rule.as_str(), hits.packets)).collect();
    assert_eq!(hits, [(format!("pass {filter}").as_str(), 200), ("default drop", 200)]);
    let recorded = packets(&files.path("some.pcap"));
    assert_eq!(recorded.len(), 200);
    assert!(recorded.iter().all(|frame| [[0xc0, 1], [0xc0, 3]].contains(&[frame[34], frame[35]])));
    let refused = run(&["record", "gen:", &file, "--filter", "udp and prt 53"]).code(2);
    assert!(refused.stderr.contains("column 9") && refused.stderr.contains("is it port?"), "{refused:#?}");
}

#[test]
fn expressions_and_rules_decide_in_order_and_their_hits_are_shown() {
    let rules = ["drop udp sport 49152", "drop udp port 49153 and less 1000", "pass (udp)", "default drop"];
    let mut words = vec!["fwd", "gen:flows=4,count=400", "null:", "--oneway", "--gro", "off"];
    rules.iter().for_each(|rule| words.extend(["--rule", rule]));
    let done = run(&words).code(0);
    for (packets, rule) in [(100, rules[0]), (100, rules[1]), (200, rules[2]), (0, rules[3])] {
        assert!(done.stdout.contains(&format!("rule     {packets:>3}  {rule}")), "{done:#?}");
    }
    assert!(done.stdout.contains("200 filtered"), "{done:#?}");
}

#[test]
fn a_capture_whose_last_write_fails_is_code_1_with_the_file_and_the_reason() {
    let files = Files::new();
    for format in ["pcap", "pcapng"] {
        let file = files.text(&format!("full.{format}"));
        // No file may be longer than a block of 512 or 1024 bytes: the header fits, and little
        // more.
        let limited = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
        let towpath = command(&["gen", &format!("pcap:{file}"), "--count", "40", "--size", "500", "--json"]);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", limited, "sh"]).arg(towpath.get_program()).args(towpath.get_args());
        let output = support::run(&mut shell);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let summary: Summary = match serde_json::from_str(stdout.lines().last().unwrap()).unwrap() {
            Line::Summary(summary) => *summary,
            other => panic!("{other:#?}"),
        };
        assert_eq!(summary.is_balanced().dropped("refused"), 40);
        let [line, none] = &summary.failures[..] else { panic!("{summary:#?}") };
        assert!(line.starts_with("pcap:") && line.contains(&file) && line.contains("write: "), "{line}");
        assert!(none.contains("sent none of 40 packets: 40 refused"), "{none}");
        // What is there is a capture.
        let again = run(&["replay", &file, "null:"]).code(1);
        assert!(again.stdout.contains("the file has no packets"), "{again:#?}");
    }
    let refused = run(&["gen", "pcap:/dev/full", "--count", "40"]).code(2);
    assert!(refused.stderr.contains("/dev/full") && refused.stderr.contains("No space left"), "{refused:#?}");
}

#[test]
fn a_replay_without_packets_is_code_1_and_a_pipe_without_packets_is_not() {
    let files = Files::new();
    for format in ["pcap", "pcapng"] {
        let file = files.text(&format!("none.{format}"));
        run(&["record", "null:", &file, "--duration", "20ms"]).code(0);
        let summary = run(&["replay", &file, "null:", "--json"]).code(1).summary();
        let [line] = &summary.is_balanced().failures[..] else { panic!("{summary:#?}") };
        assert!(line.starts_with("pcap:") && line.ends_with(": the file has no packets"), "{line}");
        let piped = "cat \"$1\" | \"$2\" fwd pcap:/dev/stdin null: --oneway -q";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", piped, "sh", &file]).arg(command(&[]).get_program());
        let output = support::run(&mut shell);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    std::fs::write(files.path("nothing.pcap"), []).unwrap();
    run(&["replay", &files.text("nothing.pcap"), "null:"]).code(2);
}

#[test]
fn a_truncated_file_is_read_to_its_end_and_the_error_is_named() {
    let files = Files::new();
    for format in ["pcap", "pcapng"] {
        let whole = files.text(&format!("whole.{format}"));
        run(&["gen", &format!("pcap:{whole}"), "--count", "100", "--size", "200", "-q"]).code(0);
        let bytes = std::fs::read(&whole).unwrap();
        let cut = files.text(&format!("cut.{format}"));
        for keep in [bytes.len() - 1, bytes.len() / 2, bytes.len() / 2 + 7, 300] {
            std::fs::write(&cut, &bytes[..keep]).unwrap();
            let finished = run(&["replay", &cut, "null:", "--json"]);
            let summary = finished.summary();
            summary.is_balanced();
            assert!(
                finished.status.success() == summary.gone.is_empty(),
                "the code and the summary agree: {finished:#?}"
            );
            assert!(summary.gone.is_empty() || summary.failures[0].contains("damaged file"), "{summary:#?}");
            let (read, errors) = (summary.balance.sent, summary.port("pcap").rx.errors);
            assert!(read < 101 && (errors > 0) != summary.gone.is_empty(), "{format} cut to {keep}: {summary:#?}");
            assert!(keep != bytes.len() / 2 + 7 || summary.gone.iter().any(|g| g.contains("byte")), "{summary:#?}");
        }
    }
}

/// Hostile files.
fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    let header = |order: [u8; 4], link: u32| {
        [&order[..], &[2, 0, 4, 0], &[0; 8], &65535_u32.to_le_bytes(), &link.to_le_bytes()].concat()
    };
    let magic = 0xa1b2_c3d4_u32.to_le_bytes();
    let record = |kept: u32, len: u32| [&[0; 8][..], &kept.to_le_bytes(), &len.to_le_bytes()].concat();
    let section = |len: u32| {
        let head = [0x0a0d_0d0a_u32, len, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, len];
        head.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()
    };
    let block = |kind: u32, len: u32| [kind.to_le_bytes(), len.to_le_bytes()].concat();
    vec![
        ("nothing", vec![]),
        ("a magic number alone", magic.to_vec()),
        ("a link type that does not exist", header(magic, 0xffff)),
        ("a record of 4 GiB", [header(magic, 1), record(u32::MAX, u32::MAX), vec![0; 64]].concat()),
        ("more kept than there was", [header(magic, 1), record(60, 10), vec![0; 60]].concat()),
        ("records of nothing", [header(magic, 1), record(0, 0).repeat(1000)].concat()),
        ("a header of ones", [header(magic, 1), vec![0xff; 4096]].concat()),
        ("a block of no length", [section(28), block(6, 0), vec![0; 64]].concat()),
        ("a block of 4 GiB", [section(28), block(6, 0xffff_fffc), vec![0; 64]].concat()),
        (
            "a packet of no interface",
            [section(28), block(6, 64), vec![0xff; 52], 64_u32.to_le_bytes().to_vec()].concat(),
        ),
        ("sections that never end", section(28).repeat(5000)),
        ("a section of odd length", section(29)),
    ]
}

#[test]
fn hostile_files_are_refused_or_counted_and_never_crash_or_hang_the_command() {
    let files = Files::new();
    let whole = files.text("whole.pcapng");
    run(&["gen", &format!("pcap:{whole}"), "--count", "50", "--size", "100", "-q"]).code(0);
    let whole = std::fs::read(whole).unwrap();
    let mut all: Vec<(String, Vec<u8>)> = hostile().into_iter().map(|(what, bytes)| (what.to_owned(), bytes)).collect();
    // A valid file with one flipped byte of the block structure, at places all along its length.
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        all.push((format!("byte {at} turned over"), bytes));
    }
    for (what, bytes) in all {
        let path = files.text("hostile");
        std::fs::write(&path, bytes).unwrap();
        let finished = run(&["replay", &path, "null:", "--json"]);
        assert!(!finished.stderr.contains("panicked"), "{what}: {finished:#?}");
        match finished.status.code() {
            Some(0 | 1) => drop(finished.summary().is_balanced()),
            Some(2) => assert!(finished.stderr.contains("hostile"), "{what}: {finished:#?}"),
            _ => panic!("{what}: {finished:#?}"),
        }
    }
}

/// An IPv4 packet of UDP.
const DATAGRAM: [u8; 29] =
    [0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0x66, 0xce, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 53, 0, 9, 0, 0, 7];

/// A capture of one packet of a link type.
fn one(link: u32, packet: &[u8]) -> Vec<u8> {
    let len = (packet.len() as u32).to_le_bytes();
    let head = [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8], &65535_u32.to_le_bytes()].concat();
    [&head[..], &link.to_le_bytes(), &[0; 8], &len, &len, packet].concat()
}

#[test]
fn a_capture_of_another_link_is_replayed_as_what_the_egress_takes() {
    let files = Files::new();
    let (from, to) = (files.text("ppp.pcap"), files.text("out.pcap"));
    std::fs::write(&from, one(9, &[&[0xff, 3, 0, 0x21][..], &DATAGRAM].concat())).unwrap();
    run(&["replay", &from, &format!("pcap:{to}"), "-q"]).code(0);
    let made = [0, 0, 0x5e, 0, 0x53, 2, 0, 0, 0x5e, 0, 0x53, 1, 8, 0];
    assert_eq!(packets(Path::new(&to)), [[&made[..], &DATAGRAM].concat()]);
    run(&["replay", &from, &format!("pcap:{to}?link=ip"), "-q"]).code(0);
    assert_eq!(packets(Path::new(&to)), [DATAGRAM]);
    std::fs::write(&from, one(195, &DATAGRAM)).unwrap();
    let refused = run(&["replay", &from, "null:"]).code(2);
    assert!(refused.stderr.contains("link type 195, IEEE 802.15.4"), "{refused:#?}");
}

/// A locally administered address.
const fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A record of pcap.
fn record_of(packet: &[u8]) -> Vec<u8> {
    let len = (packet.len() as u32).to_le_bytes();
    [&[0; 8][..], &len, &len, packet].concat()
}

/// A data frame of 802.11 behind radiotap, and the addresses and the packet that it is on Ethernet.
/// Its variant says which of the many forms it has.
fn radio_frame(variant: u8) -> (Vec<u8>, Vec<u8>) {
    let bit = |n: u8| variant & 1 << n != 0;
    let (ds, qos, ht, fcs, padded, tunnel) = (variant & 3, bit(2), bit(2) && bit(3), bit(4), bit(5), bit(6));
    let flags = u8::from(fcs) << 4 | u8::from(padded) << 5;
    let mut frame = if bit(7) {
        [&[0, 0, 18, 0, 3, 0, 0, 0][..], &[7; 8], &[flags, 0]].concat()
    } else {
        vec![0, 0, 10, 0, 2, 0, 0, 0, flags, 0]
    };
    let begin = frame.len();
    frame.extend([if qos { 0x88 } else { 0x08 }, ds | u8::from(ht) << 7, 0, 0]);
    frame.extend([mac(1), mac(2), mac(3)].concat());
    frame.extend([0x20, variant]);
    frame.extend(mac(4).iter().filter(|_| ds == 3));
    frame.extend([0; 2].iter().filter(|_| qos));
    frame.extend([0; 4].iter().filter(|_| ht));
    while padded && (frame.len() - begin) % 4 != 0 {
        frame.push(0);
    }
    frame.extend([0xaa, 0xaa, 3, 0, 0, if tunnel { 0xf8 } else { 0 }, 8, 0]);
    frame.extend(DATAGRAM);
    frame.extend([9; 4].iter().filter(|_| fcs));
    let (destination, source) = [(1, 2), (3, 2), (1, 3), (3, 4)][usize::from(ds)];
    (frame, [&mac(destination)[..], &mac(source), &[8, 0], &DATAGRAM].concat())
}

/// An aggregate of three packets behind radiotap, and what they are on Ethernet.
fn radio_aggregate() -> (Vec<u8>, Vec<Vec<u8>>) {
    let ends = [mac(1), mac(2), mac(3)].concat();
    let mut frame = [&[0, 0, 8, 0, 0, 0, 0, 0, 0x88, 1, 0, 0][..], &ends, &[0, 0, 0x80, 0]].concat();
    let packets = (5..8).map(|number| {
        let ends = [mac(number), mac(2)].concat();
        frame.extend([&ends[..], &[0, 37, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &DATAGRAM, &[0]].concat());
        [&ends[..], &[8, 0], &DATAGRAM].concat()
    });
    let packets = packets.collect();
    // The last one has no padding.
    frame.pop();
    (frame, packets)
}

#[test]
fn data_frames_of_an_802_11_capture_are_replayed_as_ethernet_and_all_others_are_counted_by_name() {
    let files = Files::new();
    let (from, to) = (files.text("radio.pcap"), files.text("out.pcap"));
    let (mut capture, mut expected) = (one(127, &[0, 0, 8, 0, 0, 0, 0, 0, 0x80, 0]), Vec::new());
    for variant in 0..=255 {
        let (frame, ethernet) = radio_frame(variant);
        capture.extend(record_of(&frame));
        expected.push(ethernet);
    }
    let (aggregate, ethernet) = radio_aggregate();
    capture.extend(record_of(&aggregate));
    expected.extend(ethernet);
    let data = |kind: u8, flags: u8, radio: u8| {
        [&[0, 0, 9, 0, 2, 0, 0, 0, radio, kind, flags, 0, 0][..], &[2; 18], &[0; 16]].concat()
    };
    let others =
        [data(8, 0x40, 0), data(8, 0x40, 0), data(0x48, 0, 0), data(8, 4, 0), data(8, 0, 0x40), data(0xd4, 0, 0)];
    others.iter().for_each(|frame| capture.extend(record_of(frame)));
    std::fs::write(&from, &capture).unwrap();

    let summary = run(&["replay", &from, &format!("pcap:{to}"), "--json"]).code(0).summary();
    assert!(packets(Path::new(&to)) == expected, "not the frames that the capture was made of");
    let named = [
        ("wifi_management_frames", 1),
        ("wifi_control_frames", 1),
        ("wifi_frames_without_data", 1),
        ("wifi_encrypted_frames", 2),
        ("wifi_fragments", 1),
        ("wifi_frames_with_bad_fcs", 1),
    ];
    for (name, times) in named.into_iter().chain([("wifi_further_amsdu_frames", 2)]) {
        assert_eq!(summary.happened(name), times, "{name}: {summary:#?}");
    }
    let rx = &summary.is_balanced().port("pcap").rx;
    assert_eq!((rx.packets, rx.missed, rx.errors), (256 + 3, 7, 0));
    assert_eq!(rx.missed_at[0].place, "no-form");
    let shown = run(&["replay", &from, "null:"]).code(0);
    assert!(shown.stdout.contains("2 wifi encrypted frames"), "{shown:#?}");
    run(&["replay", &from, &format!("pcap:{to}?link=ip"), "-q"]).code(0);
    assert!(packets(Path::new(&to)) == vec![DATAGRAM; 259], "not the packets that the capture was made of");
}

#[test]
fn a_capture_of_beacons_is_replayed_as_no_packets_and_is_no_failure() {
    let files = Files::new();
    let from = files.text("beacons.pcap");
    std::fs::write(&from, one(105, &[0x80; 40])).unwrap();
    let summary = run(&["replay", &from, "null:", "--json"]).code(0).summary();
    assert_eq!((summary.is_balanced().balance.sent, summary.happened("wifi_management_frames")), (0, 1));
    assert!(summary.failures.is_empty() && summary.gone.is_empty(), "{summary:#?}");
}

#[test]
fn tshark_finds_the_same_addresses_and_types_in_802_11_frames_and_in_what_they_become() {
    let name = "tshark_finds_the_same_addresses_and_types_in_802_11_frames_and_in_what_they_become";
    if !needs(name, &[Need::Program("tshark")]) {
        return;
    }
    let files = Files::new();
    let (from, to) = (files.text("radio.pcap"), files.text("out.pcap"));
    let (first, _) = radio_frame(0);
    let rest: Vec<_> = (1..=255).flat_map(|variant| record_of(&radio_frame(variant).0)).collect();
    std::fs::write(&from, [one(127, &first), rest, record_of(&radio_aggregate().0)].concat()).unwrap();
    run(&["replay", &from, &format!("pcap:{to}"), "-q"]).code(0);
    // The fields of all frames, one line each, of which a frame may have several.
    let fields = |file: &str, names: [&str; 3]| {
        let mut tshark = std::process::Command::new("tshark");
        // The packets are none of DNS, and behind a malformed one tshark looks no further.
        tshark.args(["-n", "--disable-protocol", "dns", "-r", file, "-T", "fields", "-E", "occurrence=a"]);
        names.iter().chain(&["ip.src", "ip.dst", "udp.length"]).for_each(|name| _ = tshark.args(["-e", name]));
        let lines = succeed(&mut tshark);
        let split = |line: &str| line.split('\t').map(|field| field.replace(',', "\n")).collect::<Vec<_>>();
        lines.lines().map(split).collect::<Vec<_>>()
    };
    let mut radio = fields(&from, ["wlan.da", "wlan.sa", "llc.type"]);
    assert_eq!(radio.len(), 257);
    // The header of an aggregate has a source too.
    let [_, sources, ..] = &mut radio[256][..] else { panic!("{radio:#?}") };
    *sources = sources.split_once('\n').map_or_else(String::new, |(_, sources)| sources.to_owned());
    let column = |frames: &[Vec<String>], n: usize| {
        frames.iter().flat_map(|frame| frame[n].lines().map(str::to_owned)).collect::<Vec<_>>()
    };
    let ethernet = fields(&to, ["eth.dst", "eth.src", "eth.type"]);
    for n in 0..6 {
        let found = column(&radio, n);
        assert_eq!((found.len(), &found), (256 + 3, &column(&ethernet, n)), "field {n}");
    }
}

#[test]
fn edits_are_options_of_replay_and_a_bad_one_is_named() {
    let files = Files::new();
    let (from, to) = (files.text("a.pcap"), files.text("out.pcap"));
    std::fs::write(&from, one(101, &DATAGRAM)).unwrap();
    let edits =
        ["--smac", "02:00:00:00:00:09", "--vlan", "5", "--map-ip", "10.0.0.0/8:10.1.0.0", "--map-port", "53:54"];
    let egress = format!("pcap:{to}");
    let words = [&["replay", from.as_str(), egress.as_str(), "-q"], &edits[..]].concat();
    run(&words).code(0);
    let mut expected = [&[0, 0, 0x5e, 0, 0x53, 2, 2, 0, 0, 0, 0, 9, 0x81, 0, 0, 5, 8, 0][..], &DATAGRAM].concat();
    // The bits behind the prefix stay: only its eight are mapped, to the same.
    expected[18 + 23] = 54;
    assert_eq!(packets(Path::new(&to)), [expected]);
    for (option, value, part) in [
        ("--map-ip", "10.0.0.0/8", "must be OLD/LEN:NEW"),
        ("--vlan", "9999", "vlan=9999: must be strip, or an ID"),
        ("--mbps", "x", "mbps=x: must be a number of Mbit/s"),
        ("--truncated", "no", "must be one of send, skip, pad"),
    ] {
        let refused = run(&["replay", &from, "null:", option, value]).code(2);
        assert!(refused.stderr.contains(part), "{refused:#?}");
    }
    let refused = run(&["replay", &from, "null:", "--pps", "5", "--topspeed"]).code(2);
    assert!(refused.stderr.contains("--pps") && refused.stderr.contains("--topspeed"), "{refused:#?}");
}

#[test]
fn a_capture_goes_through_pipes_and_compression() {
    let files = Files::new();
    let (plain, again) = (files.text("a.pcap"), files.text("b.pcap"));
    run(&["gen", &format!("pcap:{plain}"), "--count", "300", "--size", "imix", "-q"]).code(0);
    for name in ["c.pcap.gz", "c.pcapng.zst"] {
        let packed = files.text(name);
        run(&["replay", &plain, &format!("pcap:{packed}"), "-q"]).code(0);
        assert!(std::fs::metadata(&packed).unwrap().len() < std::fs::metadata(&plain).unwrap().len());
        run(&["replay", &packed, &format!("pcap:{again}"), "-q"]).code(0);
        assert_eq!(packets(Path::new(&again)), packets(Path::new(&plain)), "{name}");
        // The summary stays out of what is written to standard output.
        let piped = "cat \"$1\" | \"$3\" replay - pcap:- 2>/dev/null | \"$3\" replay - \"pcap:$2\" -q";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", piped, "sh", &packed, &again]).arg(command(&[]).get_program());
        let output = support::run(&mut shell);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(packets(Path::new(&again)), packets(Path::new(&plain)), "{name}");
        let bytes = std::fs::read(&packed).unwrap();
        std::fs::write(&packed, &bytes[..bytes.len() - 2]).unwrap();
        let cut = run(&["replay", &packed, "null:"]).code(1);
        assert!(cut.stdout.contains("damaged file") && cut.stdout.contains("data is cut short"), "{cut:#?}");
    }
}

#[test]
fn a_rate_is_asked_for_and_reported() {
    let files = Files::new();
    let file = files.text("a.pcap");
    run(&["gen", &format!("pcap:{file}"), "--count", "10", "-q"]).code(0);
    let done = run(&["replay", &file, "null:", "--pps", "1000", "--loop", "3"]).code(0);
    assert!(done.stdout.contains("asked") && done.stdout.contains("reached"), "{done:#?}");
}

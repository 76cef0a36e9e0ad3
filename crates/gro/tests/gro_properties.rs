//! Any sequence of packets: the output equals that of the reference engine, is legal, and segments
//! back into the input.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::chain::{Chain, Handle};
use common::reference::{Fault, Packet, Reference, identity};
use common::{ACK, CWR, Carrier, FIN, L4, PSH, RST, SYN, Spec, URG, check, in_tunnel, tcp, udp, v4, v6};
use proptest::prelude::*;
use towpath_gro::{Checksum, Checksums, Gro, GroConfig, Linear, LinkKind, Offload, Segment, Split};

/// What happens next on a flow.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The next packet, full-sized, and so many more.
    Run(u8),
    /// Full-sized or shorter, by so much of its payload in 65536ths.
    Short(u16),
    Longer,
    Empty,
    Flags(u8),
    Jump,
    Repeat,
    IdJump,
    IdFixed,
    OuterIdFixed,
    Ttl,
    Tos,
    Df,
    Mac,
    Ack,
    Window,
    Options,
    Label,
    IpOptions,
    Fragment,
    LaterFragment,
    NoChecksum,
    Bad(Fault),
    Age,
    Flush,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (1..6u8).prop_map(Event::Run),
        6 => prop_oneof![any::<u16>().prop_map(Event::Short), Just(Event::Longer), Just(Event::Empty), Just(Event::Jump), Just(Event::Repeat)],
        3 => prop_oneof![Just(ACK | PSH), Just(ACK | FIN), Just(SYN), Just(RST | ACK), Just(URG | ACK), Just(ACK | CWR), Just(ACK | 0x40), Just(0)]
            .prop_map(Event::Flags),
        4 => prop_oneof![Just(Event::IdJump), Just(Event::IdFixed), Just(Event::OuterIdFixed)],
        4 => prop_oneof![
            Just(Event::Ttl), Just(Event::Tos), Just(Event::Df), Just(Event::Mac), Just(Event::Ack), Just(Event::Window),
            Just(Event::Options), Just(Event::Label), Just(Event::IpOptions), Just(Event::Fragment),
            Just(Event::LaterFragment), Just(Event::NoChecksum)
        ],
        2 => prop_oneof![Just(Fault::Transport), Just(Fault::IpHeader), Just(Fault::Padding)].prop_map(Event::Bad),
        1 => Just(Event::Age),
        1 => Just(Event::Flush),
    ]
}

/// Flows of every kind; those with the same number differ in one thing only.
fn flow(kind: usize, link: LinkKind) -> Spec {
    let carriers = [
        Carrier::Ip,
        Carrier::Vxlan { vni: 1, checksum: false },
        Carrier::Vxlan { vni: 2, checksum: true },
        Carrier::Geneve { vni: 3, checksum: true, options: vec![9; 8], ethernet: true },
        Carrier::Geneve { vni: 4, checksum: false, options: vec![], ethernet: false },
        Carrier::Gre { key: Some(5), checksum: true, ethernet: false },
        Carrier::Gre { key: Some(6), checksum: false, ethernet: true },
    ];
    let spec = match kind % 8 {
        0 | 1 => tcp(v4(), 0),
        2 => tcp(v4(), 0).with(|s| s.ports.0 += 1),
        3 => tcp(v6(), 0),
        4 => udp(v4(), 0).with(|s| s.ports.0 += 2),
        5 => udp(v6(), 0).with(|s| s.ports.0 += 2),
        6 => tcp(v6(), 0).with(|s| (s.ports.0, s.ip.options) = (7, vec![1, 4, 0, 0, 0, 0])),
        _ => tcp(v4(), 0)
            .with(|s| s.tags = if link == LinkKind::Ethernet { vec![(0x88a8, 3), (0x8100, 4)] } else { vec![] })
            .with(|s| s.ports.1 = 9),
    };
    let spec = spec.with(|s| s.link = link);
    match kind / 8 {
        0 => spec,
        n => in_tunnel(
            spec.with(|s| s.tags.clear()),
            if n % 2 == 0 { v6() } else { v4() },
            carriers[n % carriers.len()].clone(),
        ),
    }
}

#[derive(Debug)]
enum Step {
    Packet(Box<Packet>),
    /// Flush everything as old as this.
    Flush(u64),
}

/// The events of flows as packets, in the order they come.
fn story(link: LinkKind, kinds: &[usize], size: usize, events: &[(usize, Event, bool)]) -> Vec<(u64, Step)> {
    let mut flows: Vec<Spec> =
        kinds.iter().map(|k| flow(*k, link)).map(|s| Spec { payload: vec![1; size], ..s }).collect();
    let mut steps = vec![];
    for (now, (which, event, trusted)) in events.iter().enumerate() {
        let now = now as u64;
        let state = &mut flows[which % kinds.len()];
        let mut packet = state.clone();
        let (mut fault, mut goes_on, mut repeat) = (Fault::None, true, 1);
        match *event {
            Event::Run(n) => repeat = n,
            Event::Short(part) => packet.payload.truncate(1 + size * usize::from(part) / 65_536),
            Event::Longer => packet.payload.push(7),
            Event::Empty => packet.payload.clear(),
            Event::Flags(flags) => packet = packet.flags(flags),
            Event::Jump => packet = packet.next(size).next(size),
            Event::Repeat => goes_on = false,
            Event::IdJump => packet.ip.id = packet.ip.id.wrapping_add(7),
            Event::IdFixed => packet.ip.id = packet.ip.id.wrapping_sub(1),
            Event::OuterIdFixed => {
                if let Some(outer) = &mut packet.outer {
                    outer.ip.id = outer.ip.id.wrapping_sub(1)
                }
            }
            Event::Ttl => packet.ip.ttl ^= 3,
            Event::Tos => packet.ip.tos ^= 3,
            Event::Df => packet.ip.df ^= !packet.ip.v6,
            Event::Mac => packet.mac ^= if link == LinkKind::Ethernet { 3 } else { 0 },
            Event::Label => packet.ip.label ^= u32::from(packet.ip.v6),
            Event::Ack => {
                if let L4::Tcp { ack, .. } = &mut packet.l4 {
                    *ack += 1
                }
            }
            Event::Window => {
                if let L4::Tcp { window, .. } = &mut packet.l4 {
                    *window += 1
                }
            }
            Event::Options => {
                if let L4::Tcp { options, .. } = &mut packet.l4 {
                    options.iter_mut().rev().take(1).for_each(|o| *o ^= 1);
                }
            }
            Event::IpOptions => packet.ip.options = if packet.ip.v6 { vec![1, 4, 0, 0, 0, 0] } else { vec![1; 4] },
            Event::Fragment => packet.ip.fragment = if packet.ip.v6 { 1 } else { 0x2000 },
            Event::LaterFragment => packet.ip.fragment = if packet.ip.v6 { 0x80 } else { 0x10 },
            Event::NoChecksum => {
                if let L4::Udp { checksum } = &mut packet.l4 {
                    *checksum = false
                }
            }
            Event::Bad(f) => fault = f,
            Event::Age => {
                steps.push((now, Step::Flush(now.saturating_sub(10))));
                continue;
            }
            Event::Flush => {
                steps.push((now, Step::Flush(u64::MAX)));
                continue;
            }
        }
        // A port reports the truth.
        let trusted = *trusted
            && (fault == Fault::None || fault == Fault::Padding || (fault == Fault::IpHeader && !packet.ip.v6));
        for _ in 0..repeat {
            steps.push((now, Step::Packet(Box::new(Packet { spec: packet.clone(), fault, trusted }))));
            if goes_on {
                *state = packet.next(size);
                // Only this packet is unusual, except for lasting changes.
                if let L4::Tcp { flags, .. } = &mut state.l4 {
                    *flags = ACK
                }
                if let L4::Udp { checksum } = &mut state.l4 {
                    *checksum = true
                }
                let usual = flow(kinds[which % kinds.len()], link);
                (state.ip.options, state.ip.fragment) = (usual.ip.options, 0);
                state.payload.resize(size, 3);
                packet = state.clone();
            }
        }
    }
    steps
}

fn offload(packet: &Packet) -> Offload {
    let checksum = if packet.trusted { Checksum::Verified } else { Checksum::Unknown };
    Offload::new(checksum, None)
}

fn config(link: LinkKind) -> GroConfig {
    GroConfig::default().link(link).seed(1)
}

fn run<S: Segment>(
    gro: &mut Gro<S>,
    steps: &[(u64, Step)],
    new: impl Fn(Vec<u8>, Offload) -> S,
    done: impl Fn(S) -> (Vec<u8>, Offload),
) -> Vec<(Vec<u8>, Offload)> {
    let mut out = vec![];
    let mut sink = (|s: S| out.push(done(s)), drop);
    for (now, step) in steps {
        match step {
            Step::Packet(p) => gro.push(new(p.build(), offload(p)), *now, &mut sink),
            Step::Flush(u64::MAX) => gro.flush_all(&mut sink),
            Step::Flush(age) => gro.flush(*age, &mut sink),
        }
    }
    gro.flush_all(&mut sink);
    assert_eq!(gro.held(), 0);
    out
}

fn run_chained(config: GroConfig, steps: &[(u64, Step)]) -> Vec<(Vec<u8>, Offload)> {
    run(&mut Gro::new(config), steps, Chain::new, |c| (c.bytes(), c.offload))
}

/// Per flow, the packets in order, segmented again if need be.
fn delivered(link: LinkKind, out: &[(Vec<u8>, Offload)]) -> Vec<Vec<u8>> {
    let mut packets = vec![];
    for (bytes, offload) in out {
        if offload.gso.is_none() {
            packets.push(bytes.clone());
            continue;
        }
        let mut split = Split::new([&bytes[..]].into_iter(), link, offload, Checksums::Complete).unwrap();
        while let Some(len) = split.next_len() {
            let mut b = vec![0; len];
            split.write(&mut b).unwrap();
            packets.push(b);
        }
    }
    packets
}

fn steps() -> impl Strategy<Value = (LinkKind, Vec<(u64, Step)>)> {
    let link = prop_oneof![Just(LinkKind::Ethernet), Just(LinkKind::Ip)];
    let events = prop::collection::vec((0..4usize, event(), any::<bool>()), 1..60);
    (link, prop::collection::vec(0..64usize, 1..4), 1..300usize, events)
        .prop_map(|(link, kinds, size, events)| (link, story(link, &kinds, size, &events)))
}

fn packets(steps: &[(u64, Step)]) -> impl Iterator<Item = &Packet> {
    steps.iter().filter_map(|(_, step)| match step {
        Step::Packet(p) => Some(&**p),
        Step::Flush(_) => None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_the_reference_does((link, steps) in steps(), max_size in prop_oneof![Just(65_535usize), 200..2000usize], max_packets in prop_oneof![Just(128usize), 1..8usize]) {
        let mut reference = Reference { max_size, max_packets, ..Reference::default() };
        for (now, step) in &steps {
            match step {
                Step::Packet(p) => reference.push(p, *now),
                Step::Flush(age) => reference.flush(*age),
            }
        }
        reference.flush(u64::MAX);
        let config = config(link).max_size(max_size as u32).max_packets(max_packets as u16);
        let out = run_chained(config, &steps);
        for (i, (got, want)) in out.iter().zip(&reference.out).enumerate() {
            let super_packet = |o: Offload| o.gso.map(|gso| (gso, o.fixed_id, o.outer_fixed_id, o.tunnel));
            prop_assert_eq!(super_packet(got.1), want.1.and_then(super_packet), "output {}", i);
            prop_assert_eq!(&got.0, &want.0, "output {}", i);
        }
        prop_assert_eq!(out.len(), reference.out.len());
    }

    #[test]
    fn segmented_again_each_flow_is_what_came_in((link, steps) in steps()) {
        let delivered = delivered(link, &run_chained(config(link), &steps));
        let mut left: Vec<&Packet> = packets(&steps).collect();
        prop_assert_eq!(delivered.len(), left.len(), "nothing lost, nothing invented");
        for packet in delivered {
            let at = left.iter().position(|p| p.build() == packet);
            prop_assert!(at.is_some(), "a packet that did not come in");
            let it = left.remove(at.unwrap());
            let before = left[..at.unwrap()].iter().find(|p| identity(&p.spec) == identity(&it.spec));
            prop_assert!(before.is_none(), "order within a flow");
        }
    }

    #[test]
    fn every_super_packet_is_legal((link, steps) in steps()) {
        for (bytes, offload) in run_chained(config(link), &steps) {
            if offload.gso.is_some() {
                let legal = check::super_packet(&bytes, link, &offload);
                prop_assert!(legal.is_ok(), "{:?}", legal);
            }
        }
    }

    #[test]
    fn packets_leave_alike_whether_or_not_their_flows_are_expected((link, steps) in steps(), all_leave in 1..12usize) {
        // Flows that go on after everything left are opened again.
        let flushed = steps.into_iter().enumerate().flat_map(|(n, step)| {
            let leave = (n % all_leave == 0).then_some((step.0, Step::Flush(u64::MAX)));
            leave.into_iter().chain([step])
        });
        let steps: Vec<_> = flushed.collect();
        let hashed = run_chained(config(link), &steps);
        let expected = run(&mut Gro::new(config(link)), &steps, Handle::new, |h| (h.0.bytes(), h.0.offload));
        prop_assert_eq!(hashed, expected);
    }

    #[test]
    fn copying_gives_what_chaining_gives((link, steps) in steps()) {
        let chained = run_chained(config(link), &steps);
        let new = |mut bytes: Vec<u8>, offload| {
            let len = bytes.len();
            bytes.resize(65_535 + 14, 0);
            Linear::new(bytes, len, offload)
        };
        let copied = run(&mut Gro::new(config(link)), &steps, new, |l| (l.packet().to_vec(), l.offload()));
        prop_assert_eq!(chained, copied);
    }

    #[test]
    fn a_burst_of_unmatched_packets_leaves_as_it_came(
        (link, steps) in steps(),
        sizes in prop::collection::vec(1..5usize, 1..8),
    ) {
        let all: Vec<&Packet> = packets(&steps).collect();
        let (mut gro, mut rest, mut passed) = (Gro::new(config(link)), &all[..], 0);
        for size in sizes.iter().cycle() {
            let (burst, later) = rest.split_at((*size).min(rest.len()));
            let burst: Vec<Chain> = burst.iter().map(|p| Chain::new(p.build(), offload(p))).collect();
            let came: Vec<_> = burst.iter().map(|c| (c.bytes(), c.offload)).collect();
            let unmatched = gro.pass_unmatched(&burst, Segment::head);
            passed += if unmatched { burst.len() as u64 } else { 0 };
            let mut left = vec![];
            gro.push_and_flush(burst, &mut (|c: Chain| left.push((c.bytes(), c.offload)), drop));
            if unmatched {
                let sorted = |mut packets: Vec<(Vec<u8>, Offload)>| {
                    packets.sort_by(|a, b| a.0.cmp(&b.0));
                    packets
                };
                prop_assert_eq!(sorted(left), sorted(came));
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        // They were counted as if they had been pushed, and then they were.
        prop_assert_eq!(gro.stats().packets, all.len() as u64 + passed);
    }

    #[test]
    fn a_burst_pushed_and_flushed_at_once_leaves_as_it_does_when_pushed_and_then_flushed(
        (link, steps) in steps(),
        sizes in prop::collection::vec((1..9usize, any::<bool>()), 1..8),
    ) {
        let all: Vec<&Packet> = packets(&steps).collect();
        let run = |at_once: bool| {
            let (mut gro, mut rest, mut out) = (Gro::new(config(link)), &all[..], vec![]);
            for (size, leaves) in sizes.iter().cycle() {
                let (burst, later) = rest.split_at((*size).min(rest.len()));
                let burst: Vec<Chain> = burst.iter().map(|p| Chain::new(p.build(), offload(p))).collect();
                let mut left = vec![];
                let mut sink = (|c: Chain| left.push((c.bytes(), c.offload)), drop);
                match (leaves, at_once) {
                    (false, _) => gro.push_batch(burst, 0, &mut sink),
                    (true, true) => gro.push_and_flush(burst, &mut sink),
                    (true, false) => {
                        gro.push_batch(burst, 0, &mut sink);
                        gro.flush_all(&mut sink);
                    }
                }
                out.push(left);
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            out.push(vec![]);
            gro.flush_all(&mut (|c: Chain| out.last_mut().unwrap().push((c.bytes(), c.offload)), drop));
            out
        };
        let (mut wanted, got) = (run(false), run(true));
        // The same packets leave after each burst. Which flow's first may differ; each flow's in
        // the order they came.
        for (wanted, got) in wanted.iter_mut().zip(&got) {
            prop_assert_eq!(wanted.len(), got.len());
            for leaves in got {
                let at = wanted.iter().position(|other| other == leaves);
                prop_assert!(at.is_some(), "something else leaves");
                wanted.remove(at.unwrap());
            }
        }
        let mut left = all;
        for packet in delivered(link, &got.concat()) {
            let at = left.iter().position(|p| p.build() == packet).unwrap();
            let it = left.remove(at);
            let before = left[..at].iter().find(|p| identity(&p.spec) == identity(&it.spec));
            prop_assert!(before.is_none(), "order within a flow");
        }
    }

    #[test]
    fn a_small_table_loses_nothing_and_keeps_order((link, steps) in steps()) {
        let one = config(link).flows(1).seed(3);
        let delivered = delivered(link, &run_chained(one, &steps));
        let came: Vec<Vec<u8>> = packets(&steps).map(Packet::build).collect();
        prop_assert_eq!(delivered.len(), came.len());
    }

    #[test]
    fn no_bytes_make_it_panic_or_lose_a_packet(
        kinds in prop::collection::vec((0..64usize, 0..4usize), 1..40),
        flips in prop::collection::vec((0..40usize, 0..120usize, any::<u8>()), 0..30),
        cuts in prop::collection::vec((0..40usize, 0..200usize), 0..6),
    ) {
        let mut packets: Vec<Vec<u8>> = vec![];
        for (i, (kind, _)) in kinds.iter().enumerate() {
            packets.push(Spec { payload: vec![i as u8; 40], ..flow(*kind, LinkKind::Ethernet) }.build());
        }
        for (packet, at, value) in flips {
            if let Some(b) = packets.get_mut(packet).and_then(|p| p.get_mut(at)) { *b = value; }
        }
        for (packet, len) in cuts {
            if let Some(p) = packets.get_mut(packet) { p.truncate(len); }
        }
        let mut out = 0;
        let mut gro = Gro::new(config(LinkKind::Ethernet));
        let mut sink = (|c: Chain| out += c.pieces.len(), drop);
        gro.push_batch(packets.iter().map(|p| Chain::new(p.clone(), Offload::new(Checksum::Verified, None))), 0, &mut sink);
        gro.flush_all(&mut sink);
        prop_assert_eq!(out, packets.len());
    }
}

//! Runs one operation many times, so that an instruction counter can tell what one costs:
//!
//! ```text
//! cargo build --release -p towpath-wire --example wire_ops
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/wire_ops dissect_v4 100000
//! ```
//!
//! Run it for two counts and divide the difference: what remains is the operation. Without
//! arguments it names the operations.

use std::hint::black_box;
use std::process::ExitCode;
use towpath_wire::emit::{self, Checksums, Headers, Ip, Link, Network, Transport, Udp};
use towpath_wire::vlan::{Tag, Tci};
use towpath_wire::{Dissected, LinkKind, Toeplitz, checksum, dissect};

const VLAN: Tag = Tag { tpid: 0x8100, tci: Tci(42) };
const OUTER: Tag = Tag { tpid: 0x88a8, tci: Tci(43) };

fn frame(ip: Ip, transport: Transport<'_>, tags: [Tag; 2]) -> Vec<u8> {
    let link = Some(Link { tags, ..Link::default() });
    let headers = Headers { link, network: Network::Ip(ip, transport) };
    let mut frame = vec![0; headers.len() + 1448];
    headers.write(&mut frame, Checksums::Complete).expect("a frame of legal length");
    frame
}

fn tcp<'a>() -> Transport<'a> {
    let tcp = emit::Tcp { src_port: 40_000, dst_port: 443, flags: 0x10, ..Default::default() };
    Transport::Tcp(tcp)
}

/// An operation, and what runs it once.
type Operation = (&'static str, Box<dyn FnMut()>);

fn operations() -> Vec<Operation> {
    let v4 = Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]);
    let v6 = Ip::v6([0xfd; 16], [0xfc; 16]);
    let none = [Tag::default(); 2];
    let frames = [
        ("nothing", Vec::new()),
        ("dissect_v4", frame(v4, tcp(), none)),
        ("dissect_v4_udp", frame(v4, Transport::Udp(Udp::default()), none)),
        ("dissect_v4_vlan", frame(v4, tcp(), [VLAN, Tag::default()])),
        ("dissect_v4_qinq", frame(v4, tcp(), [OUTER, VLAN])),
        ("dissect_v6", frame(v6, tcp(), none)),
        ("dissect_v6_vlan", frame(v6, tcp(), [VLAN, Tag::default()])),
    ];
    let mut operations: Vec<Operation> = Vec::new();
    for (name, frame) in frames {
        let run = move || {
            if frame.is_empty() {
                return;
            }
            let found = dissect(black_box(&frame), LinkKind::Ethernet);
            black_box(&found);
            black_box(found.symmetric_hash(1));
        };
        operations.push((name, Box::new(run)));
    }

    let found: Dissected = dissect(&frame(v4, tcp(), none), LinkKind::Ethernet);
    operations.push((
        "hash",
        Box::new(move || {
            black_box(black_box(&found).symmetric_hash(1));
        }),
    ));
    let key = Toeplitz::new(&Toeplitz::MICROSOFT_KEY);
    operations.push((
        "toeplitz_v4",
        Box::new(move || {
            black_box(black_box(&found).toeplitz(&key));
        }),
    ));

    let data = frame(v4, tcp(), none);
    for (name, len) in [("checksum_20", 20), ("checksum_1468", 1468)] {
        let data = data[14..14 + len].to_vec();
        operations.push((
            name,
            Box::new(move || {
                black_box(checksum::sum(black_box(&data)));
            }),
        ));
    }
    let (src, mut dst) = (data[14..14 + 1448].to_vec(), vec![0; 1448]);
    operations.push((
        "copy_1448",
        Box::new(move || {
            black_box(checksum::copy(black_box(&mut dst), black_box(&src)));
        }),
    ));
    operations
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (name, count) = (arguments.next(), arguments.next());
    let mut operations = operations();
    let chosen = operations.iter_mut().find(|(known, _)| Some(*known) == name.as_deref());
    let count: Option<u64> = count.and_then(|count| count.parse().ok());
    let (Some((_, run)), Some(count)) = (chosen, count) else {
        eprintln!("usage: wire_ops OPERATION COUNT");
        for (known, _) in &operations {
            eprintln!("  {known}");
        }
        return ExitCode::from(2);
    };
    for _ in 0..count {
        run();
    }
    ExitCode::SUCCESS
}

//! Compressed captures: recognised, damaged, from pipes.

use super::*;

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
    std::fs::write(&path, include_bytes!("../../../tests/data/two.pcap.xz")).unwrap();
    assert_eq!(read(&path), records(include_bytes!("../../../tests/data/two.pcap")).0);
}

#[test]
fn a_compressed_capture_that_is_cut_short_or_changed_is_damaged_and_says_so() {
    let xz = include_bytes!("../../../tests/data/two.pcap.xz").to_vec();
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

//! Captures that are written: cut, rotated, flushed.

use super::*;

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

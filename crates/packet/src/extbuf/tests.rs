use super::*;
use crate::{Backing, Batch, Cache, Direction, Pool, Region};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

#[derive(Default)]
struct Calls(AtomicUsize, Mutex<Vec<u64>>);
impl ExtBufOwner for Calls {
    fn on_free(&self) {
        self.0.fetch_add(1, Relaxed);
    }
    fn on_free_orphaned(&self, token: u64) {
        self.1.lock().unwrap().push(token);
    }
}

struct Rig {
    bufs: ExtBufPool,
    calls: Arc<Calls>,
    cache: Cache,
}

impl Rig {
    fn new(capacity: usize) -> Rig {
        let region = UntrustedMem::new(Region::new(8192, Backing::Memfd).unwrap());
        let calls = Arc::new(Calls::default());
        let bufs = ExtBufPool::new(capacity, region, calls.clone()).unwrap();
        let config = PoolConfig::default().capacity(256).backing(Backing::Anonymous);
        Rig { bufs, calls, cache: Pool::new(config).unwrap().cache(Direction::Tx).unwrap() }
    }

    fn packet(&mut self, tokens: impl IntoIterator<Item = u64>) -> Packet {
        let mut packet = self.cache.alloc().unwrap();
        for token in tokens {
            packet.append_buf(self.bufs.attach(token as usize, 1, token).unwrap()).unwrap();
        }
        packet
    }

    fn drain(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        self.bufs.drain_freed(usize::MAX, |token, len| {
            assert_eq!(len, 1);
            tokens.push(token);
        });
        tokens
    }
}

#[test]
fn an_external_buffer_becomes_a_fragment_and_its_token_is_drained_when_it_is_dropped() {
    let mut rig = Rig::new(4);
    assert!(rig.bufs.memory.put(100, &[42]));
    let packet = rig.packet([100]);
    assert_eq!((packet.len(), packet.linear().len()), (1, 0));
    assert!(packet.chunks().next().unwrap().bytes().is_none(), "no reference into untrusted memory");
    assert_eq!(packet.to_vec(), [42]);
    assert!(!rig.bufs.has_freed() && rig.drain().is_empty());
    drop(packet);
    assert!(rig.bufs.has_freed());
    assert_eq!(rig.drain(), [100]);
    assert_eq!((rig.bufs.available(), rig.bufs.in_use()), (4, 0));
}

#[test]
fn buffers_that_are_freed_together_return_in_order_and_with_one_call() {
    let mut rig = Rig::new(64);
    let mut batch = Batch::<64>::new();
    for token in 0..20 {
        // Packets of one buffer, of several, and of none.
        let packet = rig.packet(3 * token..3 * token + token % 4);
        batch.push(packet).unwrap();
    }
    let expected: Vec<_> = (0..20).flat_map(|token| 3 * token..3 * token + token % 4).collect();
    rig.cache.free_bulk(&mut batch);
    assert_eq!(rig.calls.0.load(Relaxed), 1);
    assert_eq!(rig.drain(), expected);
    assert_eq!(rig.bufs.in_use(), 0);
}

#[test]
fn buffers_of_two_owners_in_one_batch_each_return_to_their_own() {
    let (mut a, mut b) = (Rig::new(32), Rig::new(32));
    let mut batch = Batch::<64>::new();
    for token in 0..24 {
        let packet = if token % 3 == 0 { b.packet([token]) } else { a.packet([token]) };
        batch.push(packet).unwrap();
    }
    // A packet with buffers of both.
    let mut mixed = a.packet([100]);
    mixed.append(b.packet([200])).unwrap();
    batch.push(mixed).unwrap();
    a.cache.free_bulk(&mut batch);
    let sorted = |mut tokens: Vec<u64>| {
        tokens.sort_unstable();
        tokens
    };
    let (of_b, of_a): (Vec<u64>, Vec<u64>) = (0..24).partition(|token| token % 3 == 0);
    assert_eq!(sorted(a.drain()), [of_a, vec![100]].concat());
    assert_eq!(sorted(b.drain()), [of_b, vec![200]].concat());
}

#[test]
fn no_more_are_drained_than_requested_and_the_others_wait() {
    let mut rig = Rig::new(8);
    drop((0..8).map(|token| rig.packet([token])).collect::<Vec<_>>());
    assert_eq!(rig.calls.0.load(Relaxed), 1, "only the first is put on an empty list");
    let mut tokens = Vec::new();
    assert_eq!(rig.bufs.drain_freed(3, |token, _| tokens.push(token)), 3);
    assert_eq!((rig.bufs.available(), rig.bufs.has_freed()), (3, true));
    tokens.extend(rig.drain());
    tokens.sort_unstable();
    assert_eq!(tokens, (0..8).collect::<Vec<_>>());
}

#[test]
fn bytes_outside_the_region_and_buffers_beyond_the_capacity_are_refused() {
    let mut rig = Rig::new(4);
    assert!(rig.bufs.attach(8192, 1, 0).is_none());
    assert!(rig.bufs.attach(usize::MAX, 2, 0).is_none());
    assert!(rig.bufs.attach(0, 0, 0).is_none());
    let held: Vec<_> = (0..5).map(|token| rig.bufs.attach(0, 1, token)).collect();
    assert_eq!(held.iter().flatten().count(), 4);
    drop(held);
    assert!(rig.bufs.attach(0, 1, 9).is_none(), "not before it was drained");
    assert_eq!(rig.drain().len(), 4);
    assert!(rig.bufs.attach(0, 1, 9).is_some());
}

#[test]
fn a_copy_takes_the_bytes_and_no_buffer() {
    let mut rig = Rig::new(4);
    assert!(rig.bufs.memory.put(8191, &[42]));
    let mut packet = rig.cache.alloc().unwrap();
    assert!(rig.bufs.copy(8190, 2, &mut packet) && !rig.bufs.copy(8191, 2, &mut packet));
    assert_eq!((packet.linear(), packet.frags(), rig.bufs.available()), (&[0, 42][..], 0, 4));
    let room = packet.tailroom();
    assert!(!rig.bufs.copy(0, room + 1, &mut packet) && rig.bufs.copy(0, room, &mut packet));
}

#[test]
fn buffers_and_their_memory_outlive_the_handle() {
    let mut rig = Rig::new(4);
    let buf = rig.bufs.attach(5, 3, 1).unwrap();
    // Freed, but not drained.
    let _ = rig.packet([7, 8]);
    drop(rig.bufs);
    assert_eq!(buf.chunk().copy_to(0, &mut [0; 8]), 3);
    std::thread::spawn(move || drop(buf)).join().unwrap();
    assert_eq!(Arc::strong_count(&rig.calls), 1, "the pool, and with it the region, is gone");
    let mut late = rig.calls.1.lock().unwrap().clone();
    late.sort_unstable();
    assert_eq!(late, [1, 7, 8], "each buffer in use is reported, and no free one");
}

/// A packet that is an external buffer of `len` bytes, each of which is its offset.
fn single(rig: &mut Rig, offset: u8, len: u8) -> Packet {
    for at in offset..offset + len {
        assert!(rig.bufs.memory.put(at.into(), &[at]));
    }
    rig.bufs.packet(offset.into(), len.into(), offset.into()).unwrap()
}

fn tokens(rig: &mut Rig) -> Vec<(u64, u16)> {
    let mut all = Vec::new();
    rig.bufs.drain_freed(usize::MAX, |token, len| all.push((token, len)));
    all
}

#[test]
fn a_single_buffer_is_a_packet_of_one_fragment_without_any_room() {
    let mut rig = Rig::new(4);
    let mut packet = single(&mut rig, 10, 5);
    assert_eq!((packet.len(), packet.frags(), packet.headroom(), packet.tailroom()), (5, 1, 0, 0));
    assert!(packet.is_extbuf() && packet.linear().is_empty() && packet.linear_mut().is_empty());
    assert_eq!(packet.chunks().map(|chunk| (chunk.len(), chunk.bytes())).collect::<Vec<_>>(), [(5, None)]);
    assert_eq!((packet.to_vec(), packet.truesize()), (vec![10, 11, 12, 13, 14], 64 + 5));
    assert_eq!(packet.extbuf_regions().count(), 1);
    assert!(packet.push_front(1).is_err() && packet.push_back(1).is_err() && packet.make_linear(1).is_err());
    assert!(packet.set_headroom(0).is_err() && packet.make_linear(0).is_ok());
    let more = rig.packet([7]);
    let more = packet.append(more).unwrap_err();
    let more = packet.append_from(more, 0).unwrap_err();
    assert!(packet.append_buf(rig.bufs.attach(0, 1, 8).unwrap()).is_err());
    let linear = Packet::copy_from(&mut rig.cache, b"xy").unwrap();
    assert!(packet.append_from(linear, 1).is_err());
    assert_eq!(packet.to_vec(), [10, 11, 12, 13, 14]);
    let packet = packet.into_linear_buf().unwrap_err();
    drop((packet, more));
    let mut drained = tokens(&mut rig);
    drained.sort_unstable();
    assert_eq!(drained, [(7, 1), (8, 1), (10, 5)]);
}

#[test]
fn a_single_buffer_is_cut_at_both_ends_down_to_nothing_and_is_drained_by_its_first_token_and_length() {
    let mut rig = Rig::new(4);
    let mut packet = single(&mut rig, 20, 9);
    assert!(packet.pull_front(2) && !packet.pull_front(8));
    packet.truncate(4);
    assert_eq!((packet.len(), packet.to_vec()), (4, vec![22, 23, 24, 25]));
    packet.truncate(5);
    assert!(packet.pull_front(4));
    assert_eq!((packet.len(), packet.to_vec()), (0, vec![]));
    drop(packet);
    let mut packet = single(&mut rig, 30, 3);
    packet.truncate(0);
    // Nothing of it is left to become a fragment.
    let mut head = rig.cache.alloc().unwrap();
    head.append(packet).unwrap();
    assert_eq!((head.len(), head.frags()), (0, 0));
    assert_eq!(tokens(&mut rig), [(30, 3), (20, 9)]);
}

#[test]
fn a_single_buffer_becomes_a_fragment_of_another_packet() {
    let mut rig = Rig::new(8);
    let mut packet = Packet::copy_from(&mut rig.cache, b"head").unwrap();
    let (mut a, b) = (single(&mut rig, 40, 4), single(&mut rig, 50, 3));
    a.pull_front(1);
    packet.append(a).unwrap();
    packet.append_from(b, 1).unwrap();
    assert_eq!((packet.len(), packet.frags()), (9, 2));
    assert_eq!(packet.to_vec(), [&b"head"[..], &[41, 42, 43], &[51, 52]].concat());
    assert!(packet.pull_front(6));
    assert_eq!((packet.frags(), packet.to_vec()), (2, vec![43, 51, 52]));
    drop(packet);
    assert_eq!(tokens(&mut rig), [(40, 4), (50, 3)]);
}

#[test]
fn a_single_buffer_gets_a_head_and_keeps_its_metadata() {
    use crate::{Checksum, Gso, GsoKind, Vlan};
    let mut rig = Rig::new(4);
    let mut packet = single(&mut rig, 60, 30);
    let (csum, vlan) = (Checksum::Partial { start: 14, offset: 6 }, Some(Vlan { tci: 5, service: true }));
    let gso = Some(Gso { kind: GsoKind::Udp, ecn: false, size: 9, segs: 2, hdr_len: 8 });
    let set_metadata = |packet: &mut Packet| {
        packet.set_csum(csum);
        packet.set_vlan(vlan);
        packet.set_gso(gso);
        packet.set_flow_hash(77);
        packet.set_lane(Some(3));
        packet.set_ingress(1, 2);
        packet.set_timestamp(99);
    };
    set_metadata(&mut packet);
    assert_eq!(packet.to_vec(), (60..90).collect::<Vec<u8>>(), "no metadata lies in the fields of the buffer");
    assert!(rig.cache.ensure_head(&mut packet) && !packet.is_extbuf());
    assert_eq!((packet.csum(), packet.vlan(), packet.gso()), (csum, vlan, gso));
    assert_eq!(
        (packet.flow_hash(), packet.lane(), packet.ingress(), packet.timestamp()),
        (Some(77), Some(3), (1, 2), 99)
    );
    packet.make_linear(8).unwrap();
    assert_eq!((packet.linear().len(), packet.frags(), packet.to_vec()), (8, 1, (60..90).collect()));
    assert!(rig.cache.ensure_head(&mut packet), "it has one");
    assert_eq!(packet.linear().len(), 8);
    drop(packet);
    assert_eq!(tokens(&mut rig), [(60, 30)]);
}

#[test]
fn single_buffers_return_together_with_others_and_heads_to_their_pool() {
    let mut rig = Rig::new(64);
    let mut batch = Batch::<64>::new();
    for token in 0..30 {
        let packet = if token % 3 == 0 { rig.packet([token]) } else { rig.bufs.packet(0, 1, token).unwrap() };
        batch.push(packet).unwrap();
    }
    rig.cache.free_bulk(&mut batch);
    assert_eq!(rig.calls.0.load(Relaxed), 1);
    assert_eq!(rig.drain(), (0..30).collect::<Vec<_>>());
    assert_eq!(rig.bufs.in_use(), 0);
    let heads: Vec<_> = std::iter::from_fn(|| rig.cache.alloc()).collect();
    assert_eq!(heads.len(), 256, "every head can be allocated again");
    drop(heads);
    rig.cache.free(rig.bufs.packet(3, 1, 3).unwrap());
    assert_eq!(rig.drain(), [3]);
}

#[test]
fn a_closure_that_panics_while_buffers_are_drained_makes_no_buffer_free_twice() {
    // Not dropped: the drop of a pool with a buffer twice in its list does not end.
    let mut rig = std::mem::ManuallyDrop::new(Rig::new(4));
    drop([1, 2, 3].map(|token| rig.bufs.attach(0, 16, token).unwrap()));
    assert_eq!(rig.bufs.drain_freed(1, |_, _| {}), 1);
    let panics = std::panic::AssertUnwindSafe(|| rig.bufs.drain_freed(1, |_, _| panic!("on purpose")));
    std::panic::catch_unwind(panics).unwrap_err();
    assert_eq!(rig.bufs.available(), 3);
    assert_eq!(rig.bufs.drain_freed(4, |_, _| {}), 1);
    let bufs: Vec<_> = (0..4).map(|i| rig.bufs.attach(i, 16 + i, 0).unwrap()).collect();
    assert!(bufs.iter().enumerate().all(|(i, buf)| buf.len() == 16 + i), "each has a length of its own");
    assert!(rig.bufs.attach(0, 1, 0).is_none());
}

/// An owner that panics when its buffer is freed.
struct Panics;

impl ExtBufOwner for Panics {
    fn on_free(&self) {
        panic!("on purpose");
    }
}

#[test]
fn an_owner_that_panics_in_the_middle_of_a_batch_ends_the_process() {
    const CHILD: &str = "TOWPATH_TEST_PANICKING_OWNER";
    let test = "extbuf::tests::an_owner_that_panics_in_the_middle_of_a_batch_ends_the_process";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let out = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let status = std::os::unix::process::ExitStatusExt::signal(&out.status);
        assert_eq!(status, Some(libc::SIGABRT), "{out:?}");
        return;
    }
    let memory = || UntrustedMem::new(Region::new(4096, Backing::Memfd).unwrap());
    let pool = Pool::new(PoolConfig::default().capacity(32).backing(Backing::Anonymous)).unwrap();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let owners: [Arc<dyn ExtBufOwner>; 2] = [Arc::new(Panics), Arc::new(Calls::default())];
    let mut bufs = owners.map(|owner| ExtBufPool::new(4, memory(), owner).unwrap());
    let mut batch = Batch::<4>::new();
    for bufs in &mut bufs {
        let mut packet = cache.alloc().unwrap();
        packet.append_buf(bufs.attach(0, 9, 1).unwrap()).unwrap();
        batch.push(packet).unwrap();
    }
    // The run of the first pool's buffers is returned while the batch still has their packets.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.free_bulk(&mut batch)));
    std::process::exit(0);
}

use crate::{Backing, BadLength, Batch, Cache, Checksum, Direction, MAX_FRAGS, NoRoom, Packet, Pool, PoolConfig};
use bytes::Bytes;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes whose owner counts when it is dropped.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Relaxed);
    }
}

#[derive(Default)]
struct Drops(Arc<AtomicUsize>);

impl Drops {
    fn packet(&self, bytes: &[u8]) -> Packet {
        Packet::from_owner(Counted(bytes.to_vec(), self.0.clone())).unwrap()
    }

    fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(512).chunk(128).headroom(32).backing(Backing::Anonymous)).unwrap()
}

fn cache() -> Cache {
    pool().cache(Direction::Tx).unwrap()
}

/// The bytes of a packet of one piece, and where they lie.
fn only_piece(packet: &Packet) -> &[u8] {
    let mut chunks = packet.chunks();
    let piece = chunks.next().unwrap();
    assert!(chunks.next().is_none());
    piece.bytes().unwrap()
}

fn stays_in_place<T: AsRef<[u8]> + Send + 'static>(owner: T) {
    let (at, bytes) = (owner.as_ref().as_ptr(), owner.as_ref().to_vec());
    let packet = Packet::from_owner(owner).unwrap();
    assert_eq!((only_piece(&packet).as_ptr(), only_piece(&packet)), (at, &bytes[..]));
    assert!(packet.is_extbuf() && packet.linear().is_empty());
    assert_eq!((packet.len(), packet.headroom(), packet.tailroom()), (bytes.len(), 0, 0));
    assert!(packet.extbuf_regions().next().is_none(), "nothing that a device could map");
}

#[test]
fn bytes_of_any_owner_stay_where_they_are() {
    stays_in_place(vec![1; 60]);
    stays_in_place(vec![2; 65535].into_boxed_slice());
    stays_in_place(Bytes::from(vec![3; 1514]).slice(14..));
    stays_in_place(Arc::<[u8]>::from(&[4; 100][..]));
    stays_in_place(&[5u8][..]);
}

#[test]
fn bytes_inside_of_the_owner_itself_have_the_address_that_they_end_up_at() {
    #[repr(align(256))]
    struct Aligned([u8; 300]);
    impl AsRef<[u8]> for Aligned {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let packet = Packet::from_owner([7u8; 20]).unwrap();
    assert_eq!(only_piece(&packet), [7; 20]);
    let packet = Packet::from_owner(Aligned([8; 300])).unwrap();
    assert_eq!(only_piece(&packet), [8; 300]);
    assert_eq!(only_piece(&packet).as_ptr().addr() % 256, 0);
}

#[test]
fn two_packets_share_the_bytes_of_a_clone() {
    let bytes = Bytes::from(vec![9; 100]);
    let packets = [Packet::from_owner(bytes.clone()).unwrap(), Packet::from_owner(bytes.clone()).unwrap()];
    assert_eq!(only_piece(&packets[0]).as_ptr(), only_piece(&packets[1]).as_ptr());
    assert!(!bytes.is_unique());
    drop(packets);
    assert!(bytes.is_unique());
}

#[test]
fn no_bytes_and_too_many_are_refused_and_their_owner_returned() {
    for len in [0, 65536, 65600] {
        let drops = Drops::default();
        let error = Packet::from_owner(Counted(vec![1; len], drops.0.clone())).unwrap_err();
        let message = "bytes: must be from 1 to 65535; longer data is given as fragments";
        assert_eq!(error.to_string(), format!("packet of {len} {message}"));
        let BadLength { owner, len: reported } = error;
        assert_eq!((owner.0.len(), reported, drops.count()), (len, len, 0));
        drop(owner);
        assert_eq!(drops.count(), 1);
    }
}

#[test]
fn an_owner_is_dropped_once_however_its_packet_ends() {
    let (drops, mut cache) = (Drops::default(), cache());
    drop(drops.packet(b"dropped"));
    assert_eq!(drops.count(), 1);
    cache.free(drops.packet(b"freed by a cache"));
    assert_eq!(drops.count(), 2);

    let mut batch: Batch = Batch::new();
    for i in 0..60 {
        // Alone, behind a head, and two behind each other, between packets of the pool.
        let mut packet = match i % 4 {
            0 => drops.packet(b"alone"),
            _ => cache.alloc().unwrap(),
        };
        for _ in 1..i % 4 {
            packet.append(drops.packet(b"behind")).unwrap();
        }
        batch.push(packet).unwrap();
    }
    cache.free_bulk(&mut batch);
    assert_eq!(drops.count(), 2 + 15 + 15 + 30);
    drop((batch, cache));
}

#[test]
fn fragments_are_dropped_as_soon_as_they_are_cut_off() {
    let (drops, mut cache) = (Drops::default(), cache());
    let mut packet = Packet::copy_from(&mut cache, b"head").unwrap();
    for fragment in [b"one", b"two", b"six"] {
        packet.append(drops.packet(fragment)).unwrap();
    }
    packet.truncate(9);
    assert_eq!((packet.to_vec().as_slice(), drops.count()), (&b"headonetw"[..], 1));
    assert!(packet.pull_front(8));
    assert_eq!((packet.to_vec().as_slice(), drops.count()), (&b"w"[..], 2));
    packet.make_linear(1).unwrap();
    assert_eq!((packet.linear(), drops.count()), (&b"w"[..], 3));
}

#[test]
fn another_thread_drops_the_owner_with_the_packet() {
    let drops = Drops::default();
    let packet = drops.packet(b"there");
    std::thread::spawn(move || drop(packet)).join().unwrap();
    assert_eq!(drops.count(), 1);
}

#[test]
fn an_owner_that_panics_when_it_is_asked_for_its_bytes_is_dropped() {
    struct Panics(Counted);
    impl AsRef<[u8]> for Panics {
        fn as_ref(&self) -> &[u8] {
            panic!("no bytes, {} of them", self.0.as_ref().len())
        }
    }
    let drops = Drops::default();
    let owner = Panics(Counted(vec![1], drops.0.clone()));
    assert!(std::panic::catch_unwind(move || Packet::from_owner(owner)).is_err());
    assert_eq!(drops.count(), 1);
}

#[test]
fn headers_go_into_a_head_and_the_bytes_stay_as_they_are() {
    let (drops, mut cache) = (Drops::default(), cache());
    let mut packet = drops.packet(b"payload");
    assert_eq!(packet.push_front(1), Err(NoRoom), "nothing is written in front of the owner's bytes");
    assert_eq!(packet.push_back(1), Err(NoRoom));
    packet.set_csum(Checksum::Verified);
    let at = only_piece(&packet).as_ptr();
    assert!(cache.ensure_head(&mut packet));
    packet.push_front(6).unwrap().copy_from_slice(b"header");
    assert_eq!((packet.csum(), packet.to_vec().as_slice()), (Checksum::Verified, &b"headerpayload"[..]));
    assert_eq!(packet.chunks().nth(1).unwrap().as_ptr(), at);
    let copy = packet.duplicate(&mut cache).unwrap();
    drop(packet);
    assert_eq!((copy.to_vec().as_slice(), drops.count()), (&b"headerpayload"[..], 1));
}

#[derive(Debug, Clone)]
enum Op {
    Append(usize),
    AppendFrom(usize, usize),
    EnsureHead,
    PullFront(usize),
    Truncate(usize),
    MakeLinear(usize),
    Duplicate,
    Send,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1usize..300).prop_map(Op::Append),
        (1usize..300, 0usize..300).prop_map(|(len, skip)| Op::AppendFrom(len, skip)),
        Just(Op::EnsureHead),
        (0usize..300).prop_map(Op::PullFront),
        (0usize..600).prop_map(Op::Truncate),
        (0usize..100).prop_map(Op::MakeLinear),
        Just(Op::Duplicate),
        Just(Op::Send),
    ]
}

proptest! {
    #[test]
    fn any_life_of_owned_bytes_ends_with_one_drop_each(ops in proptest::collection::vec(op(), 0..30)) {
        let (drops, pool) = (Drops::default(), pool());
        let mut cache = pool.cache(Direction::Tx).unwrap();
        let (mut p, mut model) = (drops.packet(b"first"), b"first".to_vec());
        let (mut made, mut next) = (1, 0u8);
        let mut fresh = |n: usize| -> Vec<u8> { (0..n).map(|_| { next = next.wrapping_add(1); next }).collect() };
        for op in ops {
            match op {
                Op::Append(n) => {
                    let bytes = fresh(n);
                    made += 1;
                    let full = p.is_extbuf() || p.frags() == MAX_FRAGS;
                    let result = p.append(drops.packet(&bytes));
                    prop_assert_eq!(result.is_err(), full);
                    if !full { model.extend(bytes); }
                }
                Op::AppendFrom(n, skip) => {
                    let bytes = fresh(n);
                    made += 1;
                    if p.append_from(drops.packet(&bytes), skip).is_ok() { model.extend(&bytes[skip..]); }
                }
                Op::EnsureHead => { cache.ensure_head(&mut p); }
                Op::PullFront(n) => {
                    prop_assert_eq!(p.pull_front(n), n <= model.len());
                    if n <= model.len() { model.drain(..n); }
                }
                Op::Truncate(n) => { p.truncate(n); model.truncate(n); }
                Op::MakeLinear(n) => {
                    let room = p.tailroom();
                    if p.make_linear(n).is_err() { prop_assert!(n > model.len() || n > room); }
                }
                Op::Duplicate => {
                    if let Some(copy) = p.duplicate(&mut cache) { cache.free(std::mem::replace(&mut p, copy)); }
                }
                Op::Send => {
                    p = std::thread::spawn(move || p).join().unwrap();
                }
            }
            prop_assert_eq!(p.to_vec(), &model[..]);
        }
        cache.free(p);
        drop(cache);
        prop_assert_eq!((drops.count(), pool.stats().free), (made, 512));
    }
}

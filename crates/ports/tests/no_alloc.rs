//! The hot paths allocate nothing: an allocator counts the allocations of each thread that moves
//! packets.

use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Offloads, Pool, PoolConfig};
use towpath_ports::{fault, generator, null, pcap, sock, veth};
use towpath_testing::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn pool() -> Pool {
    Pool::new(PoolConfig::default().capacity(4096)).unwrap()
}

fn start<P: Port>(port: P, pool: &Pool) -> Queues<P::Rx, P::Tx> {
    port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap()
}

fn source(options: &str) -> generator::GenPort {
    generator::open(generator::Config::from_uri(&format!("gen:{options}").parse().unwrap()).unwrap()).unwrap()
}

fn sink() -> null::NullPort {
    null::open(null::Config::default()).unwrap()
}

#[test]
fn the_counter_counts() {
    assert!(allocations(|| Vec::<u8>::with_capacity(64).capacity()) >= 1000);
}

#[test]
fn generating_and_freeing_packets_allocates_nothing() {
    let pool = pool();
    for options in ["", "size=1448,proto=tcp", "size=imix,ip=6", "size=9000", "size=60000,gso=1400", "rate=1G"] {
        let (mut rx, mut tx) = (start(source(options), &pool).rx.remove(0), start(sink(), &pool).tx.remove(0));
        let mut batch = Batch::new();
        let n = allocations(|| {
            rx.rx(&mut batch);
            tx.tx(&mut batch)
        });
        assert_eq!(n, 0, "gen:{options}");
    }
}

#[test]
fn a_pair_in_memory_allocates_nothing_on_either_side_also_between_threads() {
    let pool = pool();
    let (a, b) = veth::pair(&veth::Config::default()).unwrap();
    let (mut a, mut b) = (start(a, &pool), start(b, &pool));
    let (mut rx, mut tx) =
        (start(source("verify=on"), &pool).rx.remove(0), start(source("verify=on"), &pool).tx.remove(0));
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            let mut batch = Batch::new();
            allocations(|| {
                while b.rx[0].rx(&mut batch) == 0 {
                    b.rx[0].state();
                    std::thread::yield_now();
                }
                tx.tx(&mut batch).max(32)
            })
        });
        let mut batch = Batch::new();
        let near = allocations(|| {
            rx.rx(&mut batch);
            while !batch.is_empty() && !far.is_finished() {
                if a.tx[0].tx(&mut batch) == 0 {
                    std::thread::yield_now();
                }
                a.tx[0].kick();
            }
            64
        });
        // The other side needs as many bursts, or more if they arrive in parts.
        while !far.is_finished() {
            rx.rx(&mut batch);
            a.tx[0].tx(&mut batch);
            a.tx[0].kick();
        }
        assert_eq!((near, far.join().unwrap()), (0, 0));
    });
}

#[test]
fn writing_and_reading_captures_allocates_nothing_per_packet() {
    let (dir, pool) = (tempfile::tempdir().unwrap(), pool());
    for name in ["x.pcap", "x.pcapng"] {
        let path = dir.path().join(name);
        let mut tx = start(pcap::open(pcap::Config::write(&path)).unwrap(), &pool).tx.remove(0);
        let mut rx = start(source("size=imix"), &pool).rx.remove(0);
        let mut batch = Batch::new();
        let written = allocations(|| {
            rx.rx(&mut batch);
            tx.reclaim();
            tx.tx(&mut batch)
        });
        drop(tx);
        let mut rx = start(pcap::open(pcap::Config::read(&path)).unwrap(), &pool).rx.remove(0);
        let mut tx = start(sink(), &pool).tx.remove(0);
        let read = allocations(|| {
            rx.rx(&mut batch);
            tx.tx(&mut batch)
        });
        assert_eq!((written, read), (0, 0), "{name}");
    }
}

#[test]
fn reading_packets_with_options_allocates_nothing_per_packet() {
    let (dir, pool) = (tempfile::tempdir().unwrap(), pool());
    let path = dir.path().join("x.pcapng");
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    };
    let section = block(0x0a0d_0d0a, &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    let words = |words: [u32; 5]| words.map(u32::to_le_bytes).concat();
    // Direction flags and the end mark.
    let packet = block(6, &[&words([0, 0, 1, 60, 60])[..], &[7; 60], &[2, 0, 4, 0, 1, 0, 0, 0, 0, 0, 0, 0]].concat());
    std::fs::write(&path, [section, block(1, &[1, 0, 0, 0, 0, 0, 0, 0]), packet.repeat(80_000)].concat()).unwrap();
    let mut rx = start(pcap::open(pcap::Config::read(&path)).unwrap(), &pool).rx.remove(0);
    let mut tx = start(sink(), &pool).tx.remove(0);
    let mut batch = Batch::new();
    let read = allocations(|| {
        rx.rx(&mut batch);
        tx.tx(&mut batch)
    });
    assert_eq!(read, 0);
}

#[test]
fn faults_allocate_nothing_either() {
    let pool = pool();
    let faults = "fault:drop=10%,duplicate=10%,reorder=10%,corrupt=10%@null:";
    let (config, _) = fault::Config::from_uri(&faults.parse().unwrap()).unwrap();
    let mut rx = start(fault::open(config, source("")).unwrap(), &pool).rx.remove(0);
    let mut tx = start(fault::open(config, sink()).unwrap(), &pool).tx.remove(0);
    let mut batch = Batch::new();
    let n = allocations(|| {
        rx.rx(&mut batch);
        tx.reclaim();
        let mut taken = 0;
        while !batch.is_empty() {
            taken += tx.tx(&mut batch);
        }
        taken
    });
    assert_eq!(n, 0);
}

#[test]
fn sending_from_and_receiving_into_an_application_allocates_nothing_on_either_side() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let config = sock::Config::new(&path);
    let Queues { mut rx, mut tx } = start(sock::open(config).unwrap(), &pool());
    let umem = towpath_client::Umem::new(512, 2048).unwrap();
    let mut app = towpath_client::Socket::connect(&umem, &path, &towpath_client::Config::default()).unwrap();
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(256).collect();
    let mut out: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(64).collect();
    let (mut fresh, mut got) = (Vec::with_capacity(512), Vec::with_capacity(512));
    let mut batch = Batch::new();
    app.fill(&mut empty).unwrap();
    out.iter_mut().for_each(|frame| assert!(frame.set_range(0, 100)));
    app.tx(&mut out).unwrap();
    // The session's halves reach the queues from another thread.
    while batch.is_empty() || tx[0].tx(&mut batch) == 0 {
        std::thread::yield_now();
        tx[0].reclaim();
        rx[0].rx(&mut batch);
    }
    let dropped = tx[0].counters().snapshot().all_drops();
    let n = allocations(|| {
        out.append(&mut fresh);
        out.iter_mut().for_each(|frame| assert!(frame.set_range(0, 100)));
        app.fill(&mut empty).unwrap();
        app.tx(&mut out).unwrap();
        // The session receives its own packets.
        tx[0].reclaim();
        rx[0].rx(&mut batch);
        let moved = tx[0].tx(&mut batch);
        tx[0].kick();
        rx[0].rx(&mut batch);
        app.completions(&mut fresh).unwrap();
        app.rx(&mut got).unwrap();
        empty.append(&mut got);
        moved
    });
    assert_eq!(n, 0);
    assert_eq!(tx[0].counters().snapshot().all_drops(), dropped);
}

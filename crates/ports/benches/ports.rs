//! Time per packet of the ports in memory: `cargo bench -p towpath-ports --bench ports`.
//!
//! Each iteration moves one burst of 64 packets; criterion's throughput line shows packets per
//! second.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use towpath_engine::route::{Route, RouteConfig};
use towpath_engine::rules::Rules;
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Direction, Offloads, Pool, PoolConfig};
use towpath_ports::{generator, null, veth};

fn start<P: Port>(port: P, pool: &Pool) -> Queues<P::Rx, P::Tx> {
    let start = Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL };
    port.start(start).unwrap()
}

fn gen_port(options: &str) -> generator::GenPort {
    let uri = format!("gen:{options}").parse();
    uri.and_then(|uri| generator::open(generator::Config::from_uri(&uri)?)).unwrap()
}

fn ports(c: &mut Criterion) {
    let pool = Pool::new(PoolConfig::default().capacity(4096)).unwrap();
    let mut group = c.benchmark_group("ports");
    group.throughput(Throughput::Elements(64));
    for (name, options) in [
        ("gen to null, 64 B", "size=64"),
        ("gen to null, 64 B, 1024 flows", "size=64,flows=1024"),
        ("gen to null, 84 B, TCP over IPv6", "size=84,proto=tcp,ip=6"),
        ("gen to null, 1448 B", "size=1448"),
        ("gen to null, mix", "size=imix"),
        ("gen to null, 64 kB super-packets", "size=65000,gso=1448,proto=tcp"),
    ] {
        let (mut rx, mut tx) = (start(gen_port(options), &pool).rx, start(null(), &pool).tx);
        group.bench_function(name, |b| {
            let mut batch = Batch::new();
            b.iter(|| {
                rx[0].rx(&mut batch);
                tx[0].tx(black_box(&mut batch))
            });
        });
    }
    let mut looped = start(gen_port("verify=on"), &pool);
    group.bench_function("gen to gen with verification, 64 B", |b| {
        let mut batch = Batch::new();
        b.iter(|| {
            looped.rx[0].rx(&mut batch);
            looped.tx[0].tx(black_box(&mut batch))
        });
    });
    let (a, b) = veth::pair(&veth::Config::default()).unwrap();
    let (mut a, mut far) = (start(a, &pool), start(b, &pool));
    let mut rx = start(gen_port(""), &pool).rx;
    let mut batch = Batch::new();
    rx[0].rx(&mut batch);
    group.bench_function("veth to veth, one core", |b| {
        b.iter(|| {
            a.tx[0].tx(&mut batch);
            a.tx[0].kick();
            far.rx[0].rx(black_box(&mut batch))
        });
    });
    group.finish();
}

/// The cost of a worker: 64 frames into one veth, a turn of the route, out of the other veth.
fn routes(c: &mut Criterion) {
    let pool = Pool::new(PoolConfig::default().capacity(4096)).unwrap();
    let mut group = c.benchmark_group("route");
    group.throughput(Throughput::Elements(64));
    for (name, rules) in
        [("veth, worker, veth", [].as_slice()), ("veth, worker with a rule, veth", &["drop udp dport 53"])]
    {
        let (near, from) = veth::pair(&veth::Config::default()).unwrap();
        let (to, far) = veth::pair(&veth::Config::default()).unwrap();
        let (mut near, from) = (start(near, &pool), start(from, &pool));
        let (to, mut far) = (start(to, &pool), start(far, &pool));
        let (rx, tx) = (from.rx.into_iter().next().unwrap(), to.tx.into_iter().next().unwrap());
        let mut route = Route::new(rx, tx, pool.cache(Direction::Tx).unwrap(), RouteConfig::default());
        if !rules.is_empty() {
            route = route.with_classifier(Box::new(Rules::parse(rules).unwrap()));
        }
        let mut batch = Batch::new();
        start(gen_port(""), &pool).rx[0].rx(&mut batch);
        group.bench_function(name, |b| {
            b.iter(|| {
                near.tx[0].tx(&mut batch);
                near.tx[0].kick();
                route.turn(false);
                far.rx[0].rx(black_box(&mut batch))
            });
        });
    }
    group.finish();
}

fn null() -> null::NullPort {
    null::open(null::Config::default()).unwrap()
}

criterion_group!(benches, ports, routes);
criterion_main!(benches);

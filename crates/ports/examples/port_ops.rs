//! Moves bursts between ports in memory, for instruction counts:
//!
//! ```text
//! cargo build --release -p towpath-ports --example port_ops
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/port_ops gen 1000
//! ```
//!
//! Run it with two numbers of bursts and divide the difference by that of the packets (64 a burst):
//! the setup cancels out. Operations: `gen`, `gen-1448`, `gen-imix`, `veth`.

use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Batch, Offloads, Pool, PoolConfig};
use towpath_ports::{generator, null, veth};

type Failure = Box<dyn std::error::Error>;

fn start<P: Port>(port: P, pool: &Pool) -> Result<Queues<P::Rx, P::Tx>, Failure> {
    Ok(port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL })?)
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let operation = args.next().unwrap_or_else(|| "gen".to_owned());
    let bursts: u64 = args.next().as_deref().unwrap_or("1000").parse()?;
    let pool = Pool::new(PoolConfig::default().capacity(4096))?;
    let size = match operation.as_str() {
        "gen-1448" => "1448",
        "gen-imix" => "imix",
        _ => "64",
    };
    let config = generator::Config::from_uri(&format!("gen:size={size}").parse()?)?;
    let mut rx = start(generator::open(config)?, &pool)?.rx.remove(0);
    let mut tx = start(null::open(null::Config::default())?, &pool)?.tx.remove(0);
    let (a, b) = veth::pair(&veth::Config::default())?;
    let (mut a, mut b) = (start(a, &pool)?.tx.remove(0), start(b, &pool)?.rx.remove(0));
    let (mut batch, mut packets) = (Batch::new(), 0);
    rx.rx(&mut batch);
    for _ in 0..bursts {
        if operation == "veth" {
            a.tx(&mut batch);
            a.kick();
            packets += b.rx(&mut batch);
        } else {
            packets += tx.tx(&mut batch);
            rx.rx(&mut batch);
        }
    }
    println!("{packets} packets");
    Ok(())
}

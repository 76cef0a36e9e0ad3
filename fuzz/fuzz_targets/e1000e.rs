//! The e1000e driver and its device, in any order and with any fault: the input chooses each
//! action.
//!
//! Four bytes configure the port and the device; each action after them is one byte and its
//! arguments. Buffers and mappings balance in the end, and a device without faults reports no
//! violation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use towpath_bus::{DmaPolicy, Flush};
use towpath_fuzz::Input;
use towpath_model::e1000e::{self as model, Faults};
use towpath_model::wire::{Wire, cable};
use towpath_nic::e1000e::{Config, Copybreak, E1000e, InterruptMode, Pauses, RecycleMode, RingSize};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Checksum, Direction, Gso, GsoKind, Offloads, Packet, Pool, PoolConfig, Vlan};

/// The time after which frames hang, by the device's clock.
const STALL: Duration = Duration::from_millis(10);

fn config(how: u8, threshold: u8) -> Config {
    let policy = match how & 3 {
        0 => DmaPolicy::Persistent,
        1 => DmaPolicy::PerBuffer { flush: Flush::Deferred },
        _ => DmaPolicy::PerBuffer { flush: Flush::Strict },
    };
    let mut config = Config::default();
    config.policy = policy;
    config.queues = 1 + u16::from(how >> 2 & 1);
    config.mtu = if how & 8 != 0 { 9000 } else { 1500 };
    config.recycle = if how & 16 != 0 { RecycleMode::UnmapFirst } else { RecycleMode::KeepMapped };
    config.vlan = how & 32 == 0;
    config.csum = how & 64 == 0;
    config.interrupts = if how & 128 != 0 { InterruptMode::Auto } else { InterruptMode::Off };
    config.copybreak = Copybreak::new(u64::from(threshold) * 16).ok();
    config.rx_ring = RingSize::new("rx", 80).unwrap();
    config.tx_ring = RingSize::new("tx", 80).unwrap();
    config.pauses = Pauses::None;
    config.stall = STALL;
    config
}

thread_local! {
    /// A pool for all inputs, as each of them ends with all buffers.
    static POOL: Pool = Pool::new(PoolConfig::default().capacity(512).backing(Backing::Anonymous)).unwrap();
}

fn faults(which: u8, seed: u8) -> Faults {
    let rate = |bit: u8| if which & bit != 0 { 50_000 } else { 0 };
    Faults::default()
        .seed(seed.into())
        .crc(rate(1))
        .bad_length(rate(2))
        .no_eop(rate(4))
        .garbage(rate(8))
        .reorder(rate(16))
        .wild(rate(32))
        .lose(rate(64))
        .flap(rate(128))
        .flap_turns(3)
}

/// A packet of any layout with any offloads, and the input's bytes as headers.
fn packet(input: &mut Input<'_>, cache: &mut towpath_packet::Cache) -> Option<Packet> {
    let (len, how, piece) = (usize::from(input.word()) % 20_000, input.byte(), usize::from(input.byte()) * 8 + 1);
    let mut bytes = vec![how; len];
    for byte in bytes.iter_mut().take(usize::from(input.byte() % 96)) {
        *byte = input.byte();
    }
    let mut packet = cache.alloc()?;
    for part in bytes.chunks(piece.max(len / 200)) {
        packet.append(Packet::copy_from(cache, part)?).ok()?;
    }
    if how & 1 != 0 {
        packet.set_csum(Checksum::Partial { start: input.word(), offset: input.byte() });
    }
    if how & 2 != 0 {
        let kind = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp][usize::from(how >> 3) % 3];
        let (size, hdr_len) = (input.word().max(1), input.byte().into());
        packet.set_gso(Some(Gso { kind, ecn: how & 64 != 0, size, segs: 0, hdr_len }));
    }
    packet.set_vlan((how & 4 != 0).then_some(Vlan { tci: input.word(), service: how & 128 != 0 }));
    Some(packet)
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let config = config(input.byte(), input.byte());
    let which = input.byte();
    let device = model::Config::default().strict(true).faults(faults(which, input.byte()));
    let (near, mut far) = cable(256);
    let bus = model::launch(device, near).unwrap();
    let device = bus.device();
    let (pool, queues) = (POOL.with(Pool::clone), config.queues);
    let port = E1000e::open(bus, "e1000e:model", config).unwrap();
    let control = port.control();
    let accept = if which & 1 != 0 { Offloads::NONE } else { Offloads::ALL };
    let Queues { mut rx, mut tx } = port.start(Start { pool: pool.clone(), queues, accept }).unwrap();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let mut held: Vec<Packet> = Vec::new();

    while !input.0.is_empty() {
        let action = input.byte();
        let queue = usize::from(action >> 7);
        let (rx_at, tx_at) = (rx.get_mut(queue), tx.get_mut(queue));
        match action & 0x0f {
            0..=2 => {
                let _ = device.steps(usize::from(input.byte()), input.word().into());
            }
            3 => {
                let _ = device.turn();
            }
            4 | 5 => {
                let frame = vec![action; usize::from(input.word()) % 10_000 + 1];
                let _ = far.send(&frame);
            }
            6..=8 => {
                let mut batch: Batch = Batch::new();
                if let Some(packet) = packet(&mut input, &mut cache) {
                    let _ = batch.push(packet);
                }
                if let Some(tx) = tx_at {
                    tx.tx(&mut batch);
                }
            }
            9 => tx_at.into_iter().for_each(TxQueue::kick),
            10 => tx_at.into_iter().for_each(|tx| {
                let _ = tx.reclaim();
            }),
            11 => rx_at.into_iter().for_each(|rx| {
                let _ = rx.refill();
            }),
            12 => {
                let mut out: Batch = Batch::new();
                rx_at.into_iter().for_each(|rx| {
                    let _ = rx.rx(&mut out);
                });
                held.extend(out.drain_front(64));
            }
            13 => held.clear(),
            14 => drop(rx_at.map(|rx| rx.wake())),
            _ => match input.byte() {
                0xff if action & 0x10 != 0 => drop(rx.pop()),
                0xff => drop(tx.pop()),
                // A queue reads the clock after idle calls.
                0x80..0xff => {
                    device.advance(STALL);
                    if let Some(tx) = tx_at {
                        (0..16).for_each(|_| _ = tx.reclaim());
                    }
                    if let Some(rx) = rx_at {
                        (0..16).for_each(|_| _ = rx.rx(&mut Batch::<64>::new()));
                    }
                }
                _ => drop(control.set_copybreak(input.word().into())),
            },
        }
    }

    drop((held, rx, tx, cache));
    assert_eq!(pool.stats().free, pool.stats().capacity, "buffers are missing: {:?}", control.faults());
    let counts = device.iommu().counts();
    assert_eq!(counts.maps, counts.unmaps, "mappings are left");
    if which == 0 {
        assert_eq!(device.violation(), None);
    }
});

//! The CPSW driver and its device, in any order and with any fault: the input chooses each action.
//!
//! Two bytes configure both; each action after them is one byte and its arguments. Descriptors,
//! buffers and mappings balance in the end. A device that does nothing wrong finds no violation of
//! its rules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::collections::VecDeque;
use towpath_bus::{DmaPolicy, Flush};
use towpath_fuzz::Input;
use towpath_model::cpsw::{Corruption, Injected};
use towpath_model::iommu::Refuse;
use towpath_model::wire::Wire;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_packet::{Batch, Checksum, Gso, GsoKind, Packet, Pool};

#[allow(dead_code, reason = "the target needs a part of what the tests need")]
#[path = "../../crates/nic/tests/cpsw/rig.rs"]
mod rig;

use rig::{Rig, Variant};

/// Packets that the program holds at a time.
const HELD: usize = 64;

fn rig(how: u8, more: u8) -> Rig {
    let variant = Variant::ALL[usize::from(how & 3)];
    let policy = match how >> 2 & 3 {
        0 => DmaPolicy::PerBuffer { flush: Flush::Deferred },
        1 => DmaPolicy::PerBuffer { flush: Flush::Strict },
        _ => DmaPolicy::Persistent,
    };
    let ports = 1 + (how >> 4 & 1);
    // Exposed rings have no chains.
    let chains = more & 1 != 0 && variant != Variant::Udma;
    let config = rig::config(variant, ports).policy(policy).rx_flows(1 + (more >> 1 & 1));
    let config = if chains { config.rx_buffers(3).max_len(5000).tx_descriptors(32) } else { config };
    let model = rig::model_config(variant, ports);
    let iommu = model.iommu.clone().bounce(more & 8 != 0);
    let poison = how & 32 != 0;
    let model = model.iommu(iommu).poison(poison).prefetch(1 + (how >> 6)).lag(more & 4 != 0).steps_per_read(3);
    Rig::with_pool(config, model, pool())
}

thread_local! {
    /// The pool of the inputs so far. A device that did not stop has some of its buffers.
    static POOL: RefCell<Pool> = RefCell::new(rig::pool(BUFFERS));
}

/// Buffers of a pool, and those that an input needs.
const BUFFERS: usize = 512;
const NEEDED: usize = 400;

fn pool() -> Pool {
    POOL.with_borrow_mut(|pool| {
        if pool.stats().free < NEEDED {
            *pool = rig::pool(BUFFERS);
        }
        pool.clone()
    })
}

/// A packet of any layout with any offloads; `None` if there are no buffers.
fn packet(input: &mut Input<'_>, rig: &mut Rig) -> Option<Packet> {
    let (len, how) = (usize::from(input.word()) % 6000, input.byte());
    let piece = (usize::from(input.byte()) * 8 + 1).max(len / 60).min(1900);
    let bytes = vec![how; len];
    let mut packet = rig.cache.alloc()?;
    for part in bytes.chunks(piece) {
        packet.append(Packet::copy_from(&mut rig.cache, part)?).ok()?;
    }
    if how & 1 != 0 {
        packet.set_csum(Checksum::Partial { start: input.word(), offset: input.byte() });
    }
    if how & 6 == 6 {
        packet.set_gso(Some(Gso { kind: GsoKind::Udp, ecn: false, size: input.word().max(1), segs: 0, hdr_len: 42 }));
    }
    Some(packet)
}

/// One action of the program, the wire or the device; whether the device did nothing wrong.
fn act(input: &mut Input<'_>, rig: &mut Rig, held: &mut VecDeque<Packet>) -> bool {
    let action = input.byte();
    let port = usize::from(action >> 7) % rig.ports.len();
    match action & 15 {
        0..=3 => drop(rig.model.run(input.byte().into(), input.byte().into())),
        4 => drop(rig.model.settle()),
        5 => drop(rig.plugs[port].send(&rig::stamp(1, 0, usize::from(input.word()) % 6000))),
        6 | 7 => {
            let (what, len) = (input.byte(), usize::from(input.word()) % 6000);
            let corruption = match what & 7 {
                0 => Corruption::TooLong(input.word().into()),
                1 => Corruption::NextUnknown,
                2 => Corruption::NextLoop,
                3 => Corruption::NextMissing,
                _ => Corruption::None,
            };
            let error = if what & 8 != 0 { what >> 4 } else { 0 };
            let meta = Injected { priority: what >> 5, error, timestamp: 0, corruption };
            let _ = rig.model.inject(port as u8 + 1, &rig::stamp(1, 0, len), meta);
            return corruption == Corruption::None;
        }
        8 | 9 => {
            let mut batch: Batch = Batch::new();
            for _ in 0..=input.byte() % 4 {
                if let Some(packet) = packet(input, rig) {
                    let _ = batch.push(packet);
                }
            }
            let queue = &mut rig.ports[port].tx[0];
            queue.tx(&mut batch);
            queue.kick();
        }
        10 => drop(rig.ports[port].tx[0].reclaim()),
        11 => rig.ports[port].rx.iter_mut().for_each(|rx| {
            let _ = rx.refill();
            let mut out: Batch = Batch::new();
            let _ = rx.rx(&mut out);
            held.extend(out.drain_front(64));
        }),
        12 => held.clear(),
        13 => {
            rig.model.repeat_completions(input.byte().into());
            return false;
        }
        14 => rig.model.iommu().refuse(match input.byte() {
            0 => Refuse::Always,
            few @ 1..=20 => Refuse::Every(few.into()),
            _ => Refuse::Never,
        }),
        _ => rig.model.stall(port as u8 + 1, input.byte() & 1 != 0),
    }
    held.drain(..held.len().saturating_sub(HELD)).for_each(drop);
    true
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let free = pool().stats().free;
    let mut rig = rig(input.byte(), input.byte());
    let mut held = VecDeque::new();
    let mut faithful = true;
    while !input.0.is_empty() {
        faithful &= act(&mut input, &mut rig, &mut held);
    }
    held.clear();
    rig.model.iommu().refuse(Refuse::Never);
    (1..=2).for_each(|port| rig.model.stall(port, false));
    rig.model.set_steps_per_read(4);
    rig.stop();
    if faithful {
        rig.assert_all_free();
    }
    let orderly = rig.control.stops().iter().all(|stop| stop.orderly);
    let (model, pool) = (rig.model.clone(), rig.pool.clone());
    drop(rig);
    // What a device that does not stop may still reach is neither unmapped nor freed.
    if orderly {
        assert_eq!(pool.stats().free, free, "buffers are missing");
        let counts = model.iommu().counts();
        assert_eq!(counts.maps, counts.unmaps, "mappings are left");
    }
});

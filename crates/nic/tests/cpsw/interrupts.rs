//! Level and edge interrupts (M8), and interrupts of channels beside a stalled one (M17).

use super::rig::{Rig, Variant, assert_stamps, config, model_config, stamp};
use std::os::fd::{BorrowedFd, RawFd};
use towpath_bus::{Bus, Irq};
use towpath_model::cpsw::{Injected, IrqMode};
use towpath_packet::Batch;
use towpath_packet::port::{RxQueue, TxQueue, Wake};
use towpath_sys::poll;

fn is_readable(fd: RawFd) -> bool {
    // SAFETY: the device of the rig owns the descriptor and is there.
    poll::is_readable(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn descriptor(rig: &Rig) -> RawFd {
    match rig.ports[0].rx[0].wake() {
        Wake::Fd(fd) => fd,
        other => panic!("{other:?}"),
    }
}

/// A receiver that polls its queue only after a wake-up, until the queue is empty. Good frames are
/// numbered.
fn woken_receiver(variant: Variant, irq: IrqMode, seed: u64) {
    let mut rig = Rig::with(config(variant, 1), model_config(variant, 1).irq(irq).seed(seed));
    let fd = descriptor(&rig);
    let (mut batch, mut got, mut number, mut damaged) = (Batch::<64>::new(), Vec::new(), 0, 0);
    for turn in 0..600_u64 {
        if turn < 300 && turn % 3 == seed % 3 {
            // A damaged frame must not hide the frames behind it from the receiver.
            let error = u8::from(turn % 4 == 1);
            assert!(rig.model.inject(1, &stamp(0, number, 90), Injected { error, ..Injected::default() }));
            number += u32::from(error == 0);
            damaged += u64::from(error);
        }
        rig.run((turn * 7 + seed) as usize % 5);
        if turn > 300 {
            rig.model.settle();
        }
        if !is_readable(fd) {
            continue;
        }
        assert_eq!(descriptor(&rig), fd, "the same descriptor");
        while rig.ports[0].rx[0].rx(&mut batch) > 0 {
            got.extend(batch.iter().map(|packet| packet.to_vec()));
            rig.cache.free_bulk(&mut batch);
            // The device runs while the queue is emptied.
            rig.run(2);
        }
        rig.ports[0].rx[0].refill();
    }
    let broken = rig.ports[0].rx[0].counts()[0].broken;
    assert_eq!(
        got.len() as u64 + broken + rig.model.starved(),
        u64::from(number) + damaged,
        "{variant:?} {irq:?} {seed}"
    );
    assert!(got.len() > 60 && broken > 10, "{} good, {broken} broken", got.len());
    rig.finish();
}

#[test]
fn m8_a_receiver_that_sleeps_on_its_interrupt_misses_no_frame_by_level_or_by_edges() {
    for variant in Variant::ALL {
        for irq in [IrqMode::Level, IrqMode::Edge] {
            (0..6).for_each(|seed| woken_receiver(variant, irq, seed));
        }
    }
}

#[test]
fn m8_a_burst_of_damaged_frames_does_not_hide_the_frames_behind_it_from_the_receiver() {
    for variant in Variant::ALL {
        for irq in [IrqMode::Level, IrqMode::Edge] {
            let model = model_config(variant, 1).irq(irq);
            let mut rig = Rig::with(config(variant, 1).rx_ring(128), model);
            // More than a batch.
            for number in 0..75 {
                let error = u8::from(number < 70);
                assert!(rig.model.inject(1, &stamp(0, number, 90), Injected { error, ..Injected::default() }));
            }
            rig.model.settle();
            let mut got = Vec::new();
            while is_readable(descriptor(&rig)) || got.is_empty() {
                match rig.receive(0) {
                    frames if frames.is_empty() => break,
                    frames => got.extend(frames),
                }
            }
            assert_eq!(got.len(), 5, "{variant:?} {irq:?}");
            assert_stamps(&got, 0, 70);
            rig.finish();
        }
    }
}

#[test]
fn m17_a_stalled_port_delays_neither_completions_nor_interrupts_of_other_channels() {
    for variant in Variant::ALL {
        for seed in 0..4 {
            let config = config(variant, 8).tx_ring(64).tx_descriptors(64);
            let mut rig = Rig::with(config, model_config(variant, 8).seed(seed).port_depth(2));
            let irqs = rig.model.bus().irqs(8).unwrap();
            rig.model.stall(3, true);
            for number in 0..24 {
                for port in 0..8_u8 {
                    let packet = rig.packet(&stamp(port, number, 90));
                    let mut batch = Batch::<64>::new();
                    batch.push(packet).unwrap();
                    assert_eq!(rig.ports[usize::from(port)].tx[0].tx(&mut batch), 1);
                    rig.ports[usize::from(port)].tx[0].kick();
                }
                rig.run(30 + seed as usize);
            }
            rig.model.settle();
            let signalled: Vec<_> = irqs.iter().map(|irq| irq.take() > 0).collect();
            assert_eq!(signalled, [true; 8], "the frames that the stalled port took are complete, too");
            for (port, irq) in irqs.iter().enumerate() {
                let tx = &mut rig.ports[port].tx[0];
                let done = tx.reclaim() + tx.reclaim();
                // Two frames wait in the port. The frames that the engine has fetched for it are
                // not complete.
                assert_eq!((done, tx.pending()), if port == 2 { (2, 22) } else { (24, 0) }, "{variant:?} port {port}");
                irq.take();
                assert_eq!(irq.take(), 0, "the level has fallen");
            }
            rig.model.stall(3, false);
            rig.settle();
            for port in 0..8 {
                let sent = rig.plugs[port].drain();
                assert_eq!(sent.len(), 24);
                assert_stamps(&sent, port as u8, 0);
            }
            rig.finish();
        }
    }
}

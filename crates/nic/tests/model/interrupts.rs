//! Kinds of interrupts, from MSI-X with fewer vectors than wanted to a line: a sleeping worker
//! wakes up for frames and for the link, and an idle queue causes no interrupt.

use super::rig::*;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};
use towpath_bus::IrqKind;
use towpath_model::e1000e::{self as model, Interrupts};
use towpath_model::wire::cable;
use towpath_nic::e1000e::{E1000e, InterruptMode};
use towpath_packet::port::{Port, RxQueue, Start, State, TxQueue, Wake};
use towpath_packet::{Batch, Offloads};
use towpath_sys::poll::is_readable;

/// What a function offers, what the configuration asks for, queues, and what the port says of it.
fn cases() -> Vec<(Interrupts, InterruptMode, u16, &'static str)> {
    use InterruptMode::{Auto, Only};
    let mut cases = vec![
        (Interrupts::Msi, Auto, 1, "MSI,"),
        (Interrupts::Intx, Auto, 1, "INTx,"),
        (Interrupts::MsiX(5), Only(IrqKind::Msi), 1, "MSI,"),
        (Interrupts::Msi, Only(IrqKind::Intx), 1, "INTx,"),
    ];
    for vectors in 1..=5 {
        cases.extend([1, 2].map(|queues| (Interrupts::MsiX(vectors), Auto, queues, "MSI-X,")));
    }
    cases
}

fn device(interrupts: Interrupts) -> model::Config {
    strict().interrupts(interrupts)
}

/// The workers go to sleep; what each waits for.
fn sleep(r: &mut Rig) -> Vec<RawFd> {
    r.rx.iter_mut().for_each(|queue| _ = queue.refill());
    let wakes = r.rx.iter().map(RxQueue::wake);
    wakes.map(|wake| if let Wake::Fd(fd) = wake { fd } else { panic!("it polls: {wake:?}") }).collect()
}

/// Whether a worker that sleeps wakes up.
fn is_woken(fd: RawFd) -> bool {
    // SAFETY: the queue holds the descriptor, and outlives this handle of it.
    is_readable(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// The workers go to sleep when nothing is left to wake up for; what each waits for.
#[track_caller]
fn sleep_soundly(r: &mut Rig) -> Vec<RawFd> {
    let begun = Instant::now();
    loop {
        let fds = sleep(r);
        if !fds.iter().any(|fd| is_woken(*fd)) {
            return fds;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it wakes up again and again");
        r.settle();
    }
}

#[test]
fn a_sleeping_worker_wakes_up_for_frames_with_every_kind_of_interrupt() {
    for (offered, mode, queues, name) in cases() {
        let mut r = rig(with(|c| (c.queues, c.interrupts) = (queues, mode)), device(offered));
        r.settle();
        for round in 0..20 {
            let fds = sleep_soundly(&mut r);
            r.arrive([frame(60, round).as_slice()]);
            r.device.run_until_idle();
            assert!(fds.iter().any(|fd| is_woken(*fd)), "{offered:?} {mode:?} {queues} {name} round {round}");
            assert_eq!(r.settle().len(), 1);
        }
        // Polled queues cause no interrupts.
        let before = r.device.interrupts().0;
        for round in 0..50 {
            r.arrive([frame(60, round).as_slice()]);
            assert_eq!(r.settle().len(), 1);
        }
        assert_eq!(r.device.interrupts().0, before, "{offered:?} {mode:?} {queues}");
        r.end();
    }
}

#[test]
fn a_sleeping_worker_sees_at_once_that_the_link_has_changed() {
    for (offered, mode, queues, name) in cases() {
        let mut r = rig(with(|c| (c.queues, c.interrupts) = (queues, mode)), device(offered));
        r.settle();
        for up in [false, true, false, true] {
            let fds = sleep_soundly(&mut r);
            r.far.set_carrier(up);
            r.device.turn();
            assert!(fds.iter().all(|fd| is_woken(*fd)), "{offered:?} {mode:?} {queues} {name}");
            // One call of the worker, without the watchdog's period.
            r.rx.iter_mut().for_each(|queue| _ = queue.refill());
            assert_eq!(r.tx[0].state() == State::Up, up, "{offered:?} {mode:?} {queues} {name}");
        }
        r.end();
    }
}

#[test]
fn each_worker_of_two_is_woken_by_its_own_frames_alone() {
    let mut r = rig(with(|c| (c.queues, c.interrupts) = (2, InterruptMode::Auto)), device(Interrupts::MsiX(3)));
    r.settle();
    for round in 0..40 {
        let fds = sleep_soundly(&mut r);
        let before: Vec<_> = r.rx.iter().map(|queue| queue.counters().snapshot().packets).collect();
        let mut bytes = frame(80, round);
        // UDP over IPv4 between addresses that differ: the hash chooses a queue.
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34].copy_from_slice(&[0x45, 0, 0, 66, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, round as u8, 10, 0, 1, 1]);
        r.arrive([bytes.as_slice()]);
        r.device.run_until_idle();
        let wakes = [is_woken(fds[0]), is_woken(fds[1])];
        r.settle();
        let got = [0, 1].map(|queue| r.rx[queue].counters().snapshot().packets > before[queue]);
        assert_eq!(wakes, got, "round {round}");
    }
    r.end();
}

#[test]
fn what_a_function_does_not_offer_is_refused_by_name() {
    let refusal = |offered, mode, queues| {
        let (near, _far) = cable(8);
        let bus = model::launch(device(offered), near).unwrap();
        let config = with(|c| (c.queues, c.interrupts) = (queues, mode));
        E1000e::open(bus, "e1000e:model", config).err().unwrap().to_string()
    };
    let text = refusal(Interrupts::Msi, InterruptMode::Auto, 2);
    assert_eq!(text, "interrupts=on: 2 queues need MSI-X, and this is MSI: set queues=1, or interrupts=off");
    let text = refusal(Interrupts::Intx, InterruptMode::Only(IrqKind::Msi), 1);
    assert_eq!(text, "interrupts=msi: the function offers INTx here: set interrupts=off, or another kind");
}

#[test]
fn a_function_whose_messages_are_lost_uses_its_line_or_is_refused() {
    let lossy = || device(Interrupts::Msi).loses_msi(true);
    let mut r = rig(with(|c| c.interrupts = InterruptMode::Auto), lossy());
    r.settle();
    let fds = sleep_soundly(&mut r);
    r.arrive([frame(60, 1).as_slice()]);
    r.device.run_until_idle();
    assert!(is_woken(fds[0]));
    assert_eq!(r.settle().len(), 1);
    r.end();
    let (near, _far) = cable(8);
    let bus = model::launch(lossy(), near).unwrap();
    let port = E1000e::open(bus, "e1000e:model", with(|c| c.interrupts = InterruptMode::Only(IrqKind::Msi))).unwrap();
    let error = port.start(Start { pool: pool_of(2048), queues: 1, accept: Offloads::ALL }).err().unwrap().to_string();
    assert!(error.contains("MSI") && error.contains("interrupts=intx"), "{error}");
}

#[test]
fn interrupts_work_again_after_a_reset() {
    for (offered, mode, queues, name) in cases() {
        let faults = model::Faults::default().stall(30_000);
        let mut r = rig(with(|c| (c.queues, c.interrupts) = (queues, mode)), device(offered).faults(faults));
        let begun = Instant::now();
        while r.control.faults().resets == 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "the device never stalls");
            let packet = r.packet(&frame(60, 1));
            let mut batch = Batch::new();
            let _ = batch.push(packet);
            r.tx[0].tx(&mut batch);
            r.tx[0].kick();
            r.turn(&mut Vec::new());
        }
        r.settle();
        let fds = sleep_soundly(&mut r);
        r.far.set_carrier(false);
        r.device.turn();
        assert!(fds.iter().all(|fd| is_woken(*fd)), "{offered:?} {mode:?} {queues} {name}");
        let Rig { rx, tx, .. } = r;
        drop((rx, tx));
    }
}

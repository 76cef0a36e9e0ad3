//! Memory of applications, which a running port shares with its back end.

use crate::backend::{Backend, HEADER};
use crate::rig::{EVERYTHING, PATIENCE, Rig, frame};
use crate::rings::{config, until};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::TxQueue;
use towpath_packet::{Backing, ExtBufOwner, ExtBufPool, Region, UntrustedMem};

struct Owner;

impl ExtBufOwner for Owner {
    fn on_free(&self) {}
}

#[test]
fn a_page_of_an_application_goes_out_as_it_is_and_its_memory_is_shared_on_the_way() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    let memory = UntrustedMem::new(Region::new(1 << 16, Backing::Memfd).unwrap());
    let bytes = frame(9, 1400);
    assert!(memory.put(8192, &bytes));
    let mut pages = ExtBufPool::new(16, memory, Arc::new(Owner)).unwrap();
    let shared = |backend: &Backend| {
        let state = backend.lock();
        (state.tables, state.regions.len())
    };
    let (tables, regions) = shared(&backend);
    let copied = goes_out_as_it_is(&mut rig, &backend, &mut pages, &bytes);
    assert_eq!(shared(&backend), (tables + 1, regions + 1));
    for _ in 0..3 {
        let page = pages.packet(8192, bytes.len(), 0).unwrap();
        assert!(rig.send(0, page));
    }
    let got = backend.take(0);
    assert!(got.iter().all(|got| got[HEADER..] == bytes) && got.len() == 3);
    assert_eq!(rig.tx[0].reclaim(), 3);
    assert_eq!((rig.control.faults().bounced, pages.drain_freed(16, |_, _| {})), (copied, 3));
    // An application without a file of its memory is copied.
    let private = UntrustedMem::new(Region::new(1 << 16, Backing::Anonymous).unwrap());
    assert!(private.put(0, &bytes));
    let mut private = ExtBufPool::new(16, private, Arc::new(Owner)).unwrap();
    let page = private.packet(0, bytes.len(), 0).unwrap();
    assert!(rig.send(0, page));
    assert_eq!(backend.take(0)[0][HEADER..], bytes);
    assert_eq!(rig.control.faults().bounced, copied + 1);
    rig.end();
}

/// An application's memory, and its pages; a frame lies in the third.
fn application(bytes: &[u8]) -> ExtBufPool {
    let memory = UntrustedMem::new(Region::new(1 << 16, Backing::Memfd).unwrap());
    assert!(memory.put(8192, bytes));
    ExtBufPool::new(16, memory, Arc::new(Owner)).unwrap()
}

/// Less than the five seconds after which a reply that does not come is given up; what is left is
/// for a busy machine.
const SOON: Duration = Duration::from_secs(4);

/// Sends a page; returns whether it went out as it is. No call on the port takes long.
fn is_sent_as_it_is(rig: &mut Rig, pages: &mut ExtBufPool, bytes: &[u8]) -> bool {
    let (copied, begun) = (rig.control.faults().bounced, Instant::now());
    let page = pages.packet(8192, bytes.len(), 0).unwrap();
    assert!(rig.send(0, page));
    rig.receive(0);
    rig.tx[0].reclaim();
    assert!(begun.elapsed() < SOON, "the back end was waited for: {:?}", begun.elapsed());
    pages.drain_freed(16, |_, _| {});
    rig.control.faults().bounced == copied
}

/// Sends pages until one goes out as it is; returns how many were copied.
fn goes_out_as_it_is(rig: &mut Rig, backend: &Backend, pages: &mut ExtBufPool, bytes: &[u8]) -> u64 {
    let (begun, before) = (Instant::now(), rig.control.faults().bounced);
    while !is_sent_as_it_is(rig, pages, bytes) {
        assert!(begun.elapsed() < PATIENCE, "the back end does not get the memory");
        assert!(backend.take(0).iter().all(|got| got[HEADER..] == *bytes), "a copy is another frame");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(backend.take(0)[0][HEADER..], *bytes);
    rig.tx[0].reclaim();
    pages.drain_freed(16, |_, _| {});
    rig.control.faults().bounced - before
}

#[test]
fn nothing_waits_for_a_back_end_that_is_silent_about_memory_and_packets_are_copied_meanwhile() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    let bytes = frame(9, 1400);
    let (mut late, mut left) = (application(&bytes), application(&bytes));
    let regions = backend.lock().regions.len() + 1;
    backend.lock().silent = true;
    for _ in 0..20 {
        assert!(!is_sent_as_it_is(&mut rig, &mut late, &bytes));
        assert!(!is_sent_as_it_is(&mut rig, &mut left, &bytes));
        let got = backend.take(0);
        assert!(got.len() == 2 && got.iter().all(|got| got[HEADER..] == bytes));
        rig.tx[0].reclaim();
    }
    // It leaves before the back end gets a table with it.
    drop(left);
    backend.lock().silent = false;
    goes_out_as_it_is(&mut rig, &backend, &mut late, &bytes);
    until(&mut rig, |_| backend.lock().regions.len() == regions);
    drop(late);
    // The queue is idle: its memory is taken back.
    let mut next = application(&bytes);
    goes_out_as_it_is(&mut rig, &backend, &mut next, &bytes);
    until(&mut rig, |_| backend.lock().regions.len() == regions);
    assert_eq!(backend.lock().connections, 1);
    drop(next);
    rig.end();
}

#[test]
fn a_back_end_that_never_acknowledges_memory_is_given_up_and_looked_for_again() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    let bytes = frame(9, 1400);
    let mut pages = application(&bytes);
    backend.lock().silent = true;
    let begun = Instant::now();
    while backend.lock().ended == 0 {
        assert!(begun.elapsed() < PATIENCE, "it is not given up");
        is_sent_as_it_is(&mut rig, &mut pages, &bytes);
        backend.take(0);
        std::thread::sleep(Duration::from_millis(5));
    }
    backend.lock().silent = false;
    until(&mut rig, |rig| rig.control.faults().link_losses == 1 && rig.control.link_is_up());
    // The next back end has all memory from the beginning.
    until(&mut rig, |rig| is_sent_as_it_is(rig, &mut pages, &bytes));
    assert_eq!(backend.lock().connections, 2);
    rig.end();
}

#[test]
fn memory_that_a_back_end_refuses_is_copied_and_that_of_others_is_not() {
    let backend = Backend::new(EVERYTHING, 1);
    let mut rig = Rig::new(config(|_| {}), &backend);
    let bytes = frame(9, 1400);
    let (mut refused, mut other) = (application(&bytes), application(&bytes));
    backend.lock().refuses_memory = true;
    assert!(!is_sent_as_it_is(&mut rig, &mut refused, &bytes));
    drop(backend.until("the table is refused", |state| state.tables == 2));
    std::thread::sleep(Duration::from_millis(50));
    backend.lock().refuses_memory = false;
    backend.take(0);
    for _ in 0..3 {
        assert!(!is_sent_as_it_is(&mut rig, &mut refused, &bytes), "it is refused once and for all");
        backend.take(0);
        rig.tx[0].reclaim();
    }
    goes_out_as_it_is(&mut rig, &backend, &mut other, &bytes);
    assert!(!is_sent_as_it_is(&mut rig, &mut refused, &bytes));
    assert_eq!(backend.take(0)[0][HEADER..], bytes);
    rig.tx[0].reclaim();
    assert_eq!(backend.lock().connections, 1);
    rig.end();
}

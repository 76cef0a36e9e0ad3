//! Rings that start, stop, and go on.

use super::front_end::*;
use std::os::fd::AsFd;
use std::time::Duration;
use towpath_packet::UntrustedMem;
use towpath_packet::port::{RxQueue, State};
use towpath_sys::EventFd;
use towpath_testing::sealed_memory;
use towpath_virtio::vhost_user::{Log, MemoryTable, Request, SingleRegion, VringAddr};

/// The guest receives on even rings, and sends on odd ones.
fn passes_packets(rig: &mut Rig, front: &mut FrontEnd, pair: u32, mark: u8) {
    front.transmit(2 * pair + 1, &frame(mark));
    assert_eq!(rig.receive(pair as usize), frame(mark));
    until(|| front.used(2 * pair + 1).is_some());
    let at = front.post(2 * pair);
    assert_eq!(rig.send(pair as usize, &frame(mark ^ 1)), 1);
    let used = front.used(2 * pair).unwrap();
    assert_eq!(front.received(at, used), frame(mark ^ 1));
}

#[test]
fn a_front_end_that_keeps_to_the_protocol_sends_and_receives() {
    for (features, pairs) in [(PLAIN, 1), (PLAIN | PACKED, 1), (PLAIN | 1 << 22, 2), (PLAIN | PACKED | 1 << 35, 2)] {
        let mut rig = Rig::new("", pairs);
        let mut front = FrontEnd::connect(&rig.path);
        front.bring_up(features, 2 * u32::from(pairs));
        for pair in 0..u32::from(pairs) {
            for mark in 0..100 {
                passes_packets(&mut rig, &mut front, pair, mark);
            }
            assert!(front.ring(2 * pair + 1).call.take() > 0);
        }
        assert_eq!(rig.event("requests-refused"), 0);
        drop(front);
        until(|| rig.event("connections-ended") == 1);
        assert!(rig.log().contains("mergeable") && rig.log().ends_with("left"), "{}", rig.log());
        assert!(rig.receives_nothing() && matches!(rig.rx[0].state(), State::Down(_)));
        let pool = rig.pool.clone();
        rig.end();
        assert_eq!(pool.stats().free, 1024);
    }
}

#[test]
fn rings_that_were_enabled_before_there_were_features_run() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    let offered = front.ask_u64(Request::GetProtocolFeatures);
    front.send(Request::SetProtocolFeatures, &offered.to_ne_bytes(), &[]);
    assert!(front.enable(0, true) && front.enable(1, true));
    front.set_features(PLAIN);
    assert!(front.set_memory());
    for index in 0..2 {
        front.make_ring(index);
        assert!(front.start_ring(index, None));
    }
    passes_packets(&mut rig, &mut front, 0, 1);
    // The same features come again for a second pair.
    front.set_features(PLAIN);
    passes_packets(&mut rig, &mut front, 0, 2);
}

#[test]
fn the_memory_may_come_last() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN);
    for index in 0..2 {
        front.make_ring(index);
        assert!(front.start_ring(index, None) && front.enable(index, true));
    }
    assert!(front.set_memory());
    passes_packets(&mut rig, &mut front, 0, 1);
}

#[test]
fn a_ring_without_its_bit_for_enabling_is_enabled_from_the_start() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN & !(1 << 30));
    assert!(front.set_memory());
    for index in 0..2 {
        front.make_ring(index);
        assert!(front.start_ring(index, None));
    }
    passes_packets(&mut rig, &mut front, 0, 1);
}

#[test]
fn frames_that_are_there_before_the_ring_is_enabled_for_the_first_time_wait_for_that() {
    for features in [PLAIN, PLAIN | PACKED] {
        let mut rig = Rig::new("", 1);
        let mut front = FrontEnd::connect(&rig.path);
        front.negotiate(features);
        assert!(front.set_memory());
        front.make_ring(1);
        front.transmit(1, &frame(1));
        assert!(front.start_ring(1, None));
        assert!(rig.receives_nothing());
        let wake = rig.rx[0].wake();
        assert!(matches!(wake, towpath_packet::port::Wake::Fd(_)) && rig.receives_nothing());
        assert!(front.enable(1, true));
        assert_eq!(rig.receive(0), frame(1));
    }
}

#[test]
fn a_ring_that_is_disabled_is_left_alone_and_its_frames_wait() {
    for features in [PLAIN, PLAIN | PACKED] {
        let mut rig = Rig::new("", 1);
        let mut front = FrontEnd::connect(&rig.path);
        front.bring_up(features, 2);
        passes_packets(&mut rig, &mut front, 0, 1);
        assert!(front.enable(1, false) && front.enable(0, false));
        front.transmit(1, &frame(2));
        let at = front.post(0);
        assert!(rig.receives_nothing());
        rig.send(0, &frame(3));
        assert!(front.used(0).is_none() && front.used(1).is_none());
        assert!(front.enable(1, true) && front.enable(0, true));
        assert_eq!(rig.receive(0), frame(2));
        rig.send(0, &frame(4));
        let used = front.used(0).unwrap();
        assert_eq!(front.received(at, used), frame(4));
    }
}

#[test]
fn a_guest_whose_device_was_reset_by_disabling_its_rings_alone_sets_them_up_anew() {
    // Cloud Hypervisor's sequence, with other features than before, and memory that is new.
    for (before, after, base) in [(PLAIN, PLAIN | PACKED, 0x8000_8000), (PLAIN | PACKED, PLAIN, 0)] {
        let mut rig = Rig::new("", 1);
        let mut front = FrontEnd::connect(&rig.path);
        front.bring_up(before, 2);
        (0..40).for_each(|mark| passes_packets(&mut rig, &mut front, 0, mark));
        assert!(front.enable(0, false) && front.enable(1, false));
        front.set_features(after);
        assert!(front.set_memory());
        for index in 0..2 {
            front.make_ring(index);
            assert!(front.start_ring(index, Some(base)) && front.enable(index, true));
        }
        (0..40).for_each(|mark| passes_packets(&mut rig, &mut front, 0, mark));
        assert_eq!(rig.event("requests-refused"), 0);
    }
}

#[test]
fn a_ring_that_was_stopped_goes_on_where_it_was_and_is_not_touched_in_between() {
    for features in [PLAIN, PLAIN | PACKED] {
        let mut rig = Rig::new("", 1);
        let mut front = FrontEnd::connect(&rig.path);
        front.bring_up(features, 2);
        for mark in 0..80 {
            passes_packets(&mut rig, &mut front, 0, mark);
        }
        let base = front.get_base(1);
        let expected = if features & PACKED != 0 { (80 % 64) | (80 % 64) << 16 } else { 80 };
        assert_eq!(base, expected);
        front.transmit(1, &frame(99));
        assert!(rig.receives_nothing());
        assert_eq!(front.get_base(1), base, "a second time");
        assert!(front.start_ring(1, Some(base)));
        assert_eq!(rig.receive(0), frame(99), "a kick from before the start is not lost");
        passes_packets(&mut rig, &mut front, 0, 7);
    }
}

#[test]
fn what_decides_where_a_running_ring_lies_can_not_change() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    assert!(!front.state(Request::SetVringNum, 1, 32));
    assert!(!front.state(Request::SetVringBase, 1, 5));
    let moved = VringAddr { used: USER, ..front.addr(1, 0) };
    assert!(!front.asks(Request::SetVringAddr, &moved.to_bytes(), &[]));
    let same = front.addr(1, 0).to_bytes();
    assert!(front.asks(Request::SetVringAddr, &same, &[]));
    assert!(!front.asks(Request::SetFeatures, &(PLAIN | 1).to_ne_bytes(), &[]));
    assert!(rig.log().contains("csum"), "{}", rig.log());
    passes_packets(&mut rig, &mut front, 0, 1);
}

#[test]
fn kicks_and_calls_are_replaced_while_the_ring_runs() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    let (kick, call) = (EventFd::new().unwrap(), EventFd::new().unwrap());
    assert!(front.event(Request::SetVringKick, 1, Some(&kick)) && front.event(Request::SetVringCall, 1, Some(&call)));
    (front.ring(1).kick, front.ring(1).call) = (kick, call);
    passes_packets(&mut rig, &mut front, 0, 1);
    assert!(front.ring(1).call.take() > 0);
    // None: the ring is polled, and nothing is announced.
    assert!(front.event(Request::SetVringKick, 1, None) && front.event(Request::SetVringCall, 1, None));
    passes_packets(&mut rig, &mut front, 0, 2);
    assert_eq!(front.ring(1).call.take(), 0);
}

#[test]
fn memory_is_exchanged_under_rings_that_run() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    passes_packets(&mut rig, &mut front, 0, 1);
    assert!(front.set_memory());
    passes_packets(&mut rig, &mut front, 0, 2);
    let more = sealed_memory(8192);
    let region = |guest| SingleRegion {
        padding: 0,
        region: towpath_virtio::vhost_user::MemoryRegion { guest, size: 8192, user: guest, offset: 0 },
    };
    assert!(front.asks(Request::AddMemReg, &region(0x1000).to_bytes(), &[more.as_fd()]));
    passes_packets(&mut rig, &mut front, 0, 3);
    assert!(!front.asks(Request::AddMemReg, &region(0x2000).to_bytes(), &[more.as_fd()]), "it overlaps");
    assert!(front.asks(Request::RemMemReg, &region(0x1000).to_bytes(), &[]));
    assert!(!front.asks(Request::RemMemReg, &region(0x1000).to_bytes(), &[more.as_fd()]), "it is gone");
    passes_packets(&mut rig, &mut front, 0, 4);
    // The region of the rings goes and comes.
    let own = SingleRegion { padding: 0, region: FrontEnd::region() }.to_bytes();
    assert!(front.asks(Request::RemMemReg, &own, &[]));
    front.transmit(1, &frame(9));
    assert!(rig.receives_nothing());
    let file = front.file.try_clone().unwrap();
    assert!(front.asks(Request::AddMemReg, &own, &[file.as_fd()]));
    assert_eq!(rig.receive(0), frame(9));
}

#[test]
fn a_ring_of_a_guest_without_version_1_is_not_started_and_the_log_says_why() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(1 << 30, 2);
    front.transmit(1, &frame(1));
    assert!(rig.receives_nothing());
    assert!(rig.log().contains("VERSION_1"), "{}", rig.log());
    assert!(rig.event("rings-refused") > 0);
    assert_eq!(front.get_base(1), 0);
}

#[test]
fn pages_that_are_written_are_logged_while_the_guest_migrates() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    let size = (GUEST + MEMORY) >> 15;
    let file = sealed_memory(size as i64);
    let log = UntrustedMem::from_file(file.try_clone().unwrap(), size as usize).unwrap();
    let is_marked = |addr: u64| log.get::<1>((addr >> 15) as usize).unwrap()[0] >> ((addr >> 12) % 8) & 1 != 0;
    let payload = Log { size, offset: 0 }.to_bytes();
    front.send(Request::SetLogBase, &payload, &[file.as_fd()]);
    assert!(front.channel.receive_reply(Request::SetLogBase, soon()).unwrap().payload.is_empty());
    passes_packets(&mut rig, &mut front, 0, 1);
    assert!((0..MEMORY >> 12).all(|page| !is_marked(GUEST + (page << 12))), "not before the feature");
    front.set_features(PLAIN | FrontEnd::log_all());
    let addr = front.addr(0, VringAddr::LOG);
    assert!(front.asks(Request::SetVringAddr, &addr.to_bytes(), &[]));
    let at = front.post(0);
    assert_eq!(rig.send(0, &frame(1)), 1);
    assert!(is_marked(GUEST + at) && is_marked(addr.log));
    front.set_features(PLAIN);
    passes_packets(&mut rig, &mut front, 0, 1);
}

#[test]
fn a_guest_whose_memory_is_truncated_was_hung_up_on() {
    let rig = &mut Rig::new("", 1);
    let file = std::fs::File::from(memfd());
    file.set_len(MEMORY).unwrap();
    let socket = towpath_sys::unix_socket::connect(&rig.path, towpath_sys::unix_socket::Kind::Stream, Some(soon()));
    let mut front = FrontEnd::with_memory(socket.unwrap(), file.try_clone().unwrap().into());
    front.bring_up(PLAIN, 2);
    passes_packets(rig, &mut front, 0, 1);
    file.set_len(0).unwrap();
    assert!(rig.receives_nothing());
    assert!(front.was_hung_up_on());
    until(|| rig.log().ends_with("its memory was truncated"));
}

/// A file in memory without seals.
fn memfd() -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the name ends with a zero; the descriptor is new.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(libc::memfd_create(c"t".as_ptr(), libc::MFD_CLOEXEC)) }
}

/// Makes the counter of a ring's calls blocking, and fills it.
fn fill_calls(front: &mut FrontEnd, index: u32) {
    let call = front.ring(index).call.fd();
    let full = (u64::MAX - 1).to_ne_bytes();
    // SAFETY: eight bytes live across the call; no other pointers.
    unsafe {
        assert_eq!(libc::write(call, full.as_ptr().cast(), 8), 8);
        assert_eq!(libc::fcntl(call, libc::F_SETFL, 0), 0);
    }
}

/// Whether a front end that connects now is left waiting.
fn is_left_waiting(rig: &Rig) -> bool {
    let connections = rig.event("connections");
    let front = FrontEnd::connect(&rig.path);
    front.send(Request::GetFeatures, &[], &[]);
    std::thread::sleep(Duration::from_millis(50));
    rig.event("connections") == connections
}

#[test]
fn a_front_end_that_holds_a_worker_by_a_full_counter_is_hung_up_on_and_the_next_one_waits() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    fill_calls(&mut front, 1);
    front.transmit(1, &frame(1));
    assert_eq!(rig.receive(0), frame(1));
    assert!(front.was_hung_up_on());
    until(|| rig.event("connections-ended") == 1);
    assert_eq!(rig.event("call-full"), 1);
    assert!(is_left_waiting(&rig));
}

#[test]
fn no_front_end_of_another_user_holds_a_worker_by_a_full_counter() {
    for options in ["mode=660", "server=off"] {
        let mut rig = Rig::new(options, 1);
        let mut front = if options == "server=off" {
            let listener = std::os::unix::net::UnixListener::bind(&rig.path).unwrap();
            FrontEnd::on(listener.accept().unwrap().0.into())
        } else {
            FrontEnd::connect(&rig.path)
        };
        front.bring_up(PLAIN, 2);
        (0..2).for_each(|index| fill_calls(&mut front, index));
        // Longer than the control thread lets a worker be held that writes.
        for round in 1..=30 {
            passes_packets(&mut rig, &mut front, 0, round);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(["call-full", "connections", "connections-ended"].map(|event| rig.event(event)), [0, 1, 0]);
        let full = front.ring(1).call.take();
        assert_eq!(full, u64::MAX, "the worker has called");
    }
}

#[test]
fn a_front_end_that_leaves_while_a_worker_is_held_by_its_counter_makes_the_next_one_wait() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    fill_calls(&mut front, 1);
    front.transmit(1, &frame(1));
    drop(front);
    // The worker may see the ring before the control thread takes it out, or not.
    let mut batch = towpath_packet::Batch::new();
    let _ = rig.rx[0].rx(&mut batch);
    until(|| rig.event("connections-ended") == 1);
    assert!(rig.event("call-full") == 0 || is_left_waiting(&rig));
}

#[test]
fn a_device_that_is_reset_starts_anew_with_other_features() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    passes_packets(&mut rig, &mut front, 0, 1);
    assert!(front.asks(Request::ResetDevice, &[], &[]));
    assert!(rig.receives_nothing());
    front.bring_up(PLAIN | PACKED, 2);
    passes_packets(&mut rig, &mut front, 0, 2);
    // As a guest's reset of QEMU: the rings stop, and other features come.
    for index in 0..2 {
        front.get_base(index);
    }
    front.set_features(PLAIN);
    let table = MemoryTable { regions: vec![FrontEnd::region()] }.to_bytes();
    let file = front.file.try_clone().unwrap();
    assert!(front.asks(Request::SetMemTable, &table, &[file.as_fd()]));
    for index in 0..2 {
        front.make_ring(index);
        assert!(front.start_ring(index, Some(0)));
    }
    passes_packets(&mut rig, &mut front, 0, 3);
}

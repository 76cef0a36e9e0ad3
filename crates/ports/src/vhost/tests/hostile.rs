//! Front ends that break the protocol: none of them stops the port, and no descriptor stays.

use super::front_end::*;
use crate::random::Random;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use towpath_sys::EventFd;
use towpath_virtio::vhost_user::{MemoryTable, Request, VringFd};

/// A descriptor of a kind that no request takes, and what tells that its last copy was closed.
fn foreign() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

/// Blocks until the other end is closed everywhere.
fn is_closed(mut end: UnixStream) -> bool {
    end.read(&mut [0]).unwrap() == 0
}

#[test]
fn descriptors_that_no_request_takes_are_closed() {
    let rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN);
    let event = EventFd::new().unwrap();
    let kick = |has_fd| VringFd { index: 0, has_fd }.to_bytes().to_vec();
    let table = |n| MemoryTable { regions: vec![FrontEnd::region(); n] }.to_bytes();
    let cases: [(Request, Vec<u8>, usize); 8] = [
        (Request::SetOwner, Vec::new(), 1),
        (Request::SetVringNum, vec![0; 8], 3),
        (Request::SetVringKick, kick(true), 1),
        (Request::SetVringKick, kick(true), 2),
        (Request::SetVringCall, kick(false), 1),
        (Request::SetMemTable, table(1), 1),
        (Request::SetMemTable, table(1), 200),
        (Request::RemMemReg, vec![0; 40], 1),
    ];
    for (request, payload, n) in cases {
        let (sent, end) = foreign();
        assert!(!front.asks(request, &payload, &vec![sent.as_fd(); n]), "{request}");
        drop(sent);
        assert!(is_closed(end), "{request}");
    }
    assert!(!front.asks(Request::SetVringKick, &kick(true), &[]), "one is missing");
    assert!(!front.asks(Request::SetMemTable, &table(2), &[event.as_fd()]));
    assert!(front.asks(Request::SetOwner, &[], &[]), "it goes on");
}

#[test]
fn descriptors_of_a_connection_that_ends_are_closed() {
    let rig = Rig::new("", 1);
    // One that no message belongs to, one of an unknown request, one behind the end.
    for bytes in [&[1u8, 0, 0][..], &[99, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], &[0xff; 12]] {
        let front = FrontEnd::connect(&rig.path);
        let (sent, end) = foreign();
        towpath_sys::stream::send(front.channel.as_fd(), bytes, &[sent.as_fd()]).unwrap();
        let _ = towpath_sys::stream::send(front.channel.as_fd(), &[0; 64], &[sent.as_fd(); 20]);
        drop((sent, front));
        assert!(is_closed(end));
    }
}

#[test]
fn a_payload_of_another_size_is_refused() {
    let rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN);
    for &request in Request::ALL.iter().filter(|request| !request.has_reply()) {
        for size in [1, 7, 9, 39, 41, 4096] {
            assert!(!front.asks(request, &vec![0; size], &[]), "{request} with {size} bytes");
        }
    }
    drop(front);
    for &request in Request::ALL.iter().filter(|request| request.has_reply()) {
        until(|| rig.event("connections-ended") == rig.event("connections"));
        let front = FrontEnd::connect(&rig.path);
        front.send(request, &[0; 33], &[]);
        assert!(front.was_hung_up_on(), "{request}");
    }
}

#[test]
fn no_message_stops_the_port() {
    let mut rig = Rig::new("", 1);
    let mut random = Random::new(11);
    let (event, memory, file) = (EventFd::new().unwrap(), towpath_testing::sealed_memory(1 << 16), foreign());
    for round in 0..60 {
        let mut front = FrontEnd::connect(&rig.path);
        front.negotiate(PLAIN | (random.below(2) << 34));
        if round % 2 == 0 {
            front.set_memory();
            front.make_ring(1);
            front.start_ring(1, None);
        }
        for _ in 0..40 {
            let number = Request::ALL[random.below(Request::ALL.len() as u64) as usize];
            let size = [0, 8, 8, 8, 16, 20, 40, 40, 72][random.below(9) as usize];
            let mut payload = vec![0; size];
            random.fill(&mut payload);
            for word in payload.chunks_exact_mut(4) {
                // Mostly small numbers, and addresses that exist.
                match random.below(4) {
                    0 => {}
                    1 => word.copy_from_slice(&((USER >> 32) as u32).to_ne_bytes()),
                    _ => word.copy_from_slice(&(random.below(4) as u32).to_ne_bytes()),
                }
            }
            let kinds: [BorrowedFd<'_>; 3] = [event.as_fd(), memory.as_fd(), file.0.as_fd()];
            let fds: Vec<_> = (0..random.below(3)).map(|_| kinds[random.below(3) as usize]).collect();
            if front.channel.request(number, &payload, &fds, random.below(4) > 0).is_err() {
                break;
            }
            let _ = rig.receives_nothing();
        }
        drop(front);
        let mut more = towpath_packet::Batch::new();
        let _ = towpath_packet::port::RxQueue::rx(&mut rig.rx[0], &mut more);
        until(|| rig.event("connections-ended") == rig.event("connections"));
    }
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    front.transmit(1, &frame(1));
    assert_eq!(rig.receive(0), frame(1));
}

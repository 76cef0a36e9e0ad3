//! Records of chains in flight: asked for, given back, and what a back end does with those of one
//! that is no more.

use super::front_end::*;
use crate::random::Random;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use towpath_packet::port::RxQueue;
use towpath_packet::{Batch, Packet};
use towpath_virtio::vhost_user::{Channel, InFlightArea, Request};

const IN_ORDER: u64 = 1 << 35;

fn request(queues: u16, queue_size: u16) -> InFlightArea {
    InFlightArea { size: 0, offset: 0, queues, queue_size }
}

/// Asks for records.
fn get(front: &mut FrontEnd, area: InFlightArea) -> (InFlightArea, OwnedFd) {
    front.send(Request::GetInflightFd, &area.to_bytes(), &[]);
    let mut reply = front.channel.receive_reply(Request::GetInflightFd, soon()).unwrap();
    assert_eq!(reply.fds.len(), 1);
    (InFlightArea::from_bytes(&reply.payload).unwrap(), reply.fds.remove(0))
}

fn set(front: &mut FrontEnd, area: InFlightArea, file: &OwnedFd) -> bool {
    front.asks(Request::SetInflightFd, &area.to_bytes(), &[file.as_fd()])
}

#[test]
fn records_are_made_given_back_and_made_again() {
    let rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN | PACKED);
    let (area, file) = get(&mut front, request(2, 64));
    assert_eq!(area, InFlightArea { size: 2 * (64 + 64 * 32), ..request(2, 64) });
    assert_eq!(towpath_sys::memfd::size(file.as_fd()).unwrap().0, 8192);
    assert!(set(&mut front, area, &file));
    let (again, other) = get(&mut front, request(1, 1024));
    assert_eq!(again.size, 64 + 1024 * 32);
    assert!(set(&mut front, again, &other) && set(&mut front, area, &file));
    // As a front end does whose structure is padded.
    let padded = [&request(2, 64).to_bytes()[..], &[0; 4]].concat();
    assert_eq!(front.ask(Request::GetInflightFd, &padded).len(), 24);
}

#[test]
fn records_beyond_the_device_and_those_of_rings_that_run_are_refused() {
    let rig = Rig::new("queue-size=256", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN);
    let (area, file) = get(&mut front, request(2, 256));
    for wrong in [
        InFlightArea { queues: 3, ..area },
        InFlightArea { queues: 0, ..area },
        InFlightArea { queue_size: 257, ..area },
        InFlightArea { queue_size: 0, ..area },
        InFlightArea { size: area.size - 1, ..area },
        InFlightArea { size: u64::MAX, offset: 8, ..area },
        InFlightArea { offset: 1 << 20, ..area },
        InFlightArea { offset: 1, ..area },
    ] {
        assert!(!set(&mut front, wrong, &file), "{wrong:?}");
    }
    assert!(!front.asks(Request::SetInflightFd, &area.to_bytes(), &[]), "the file is missing");
    assert!(!front.asks(Request::SetInflightFd, &area.to_bytes(), &[file.as_fd(), file.as_fd()]));
    assert!(set(&mut front, area, &file));
    front.bring_up(PLAIN, 2);
    assert!(!set(&mut front, area, &file) && rig.log().contains("while a ring runs"), "{}", rig.log());
    front.get_base(0);
    front.get_base(1);
    assert!(set(&mut front, area, &file));
    front.send(Request::GetInflightFd, &request(9, 64).to_bytes(), &[]);
    assert!(front.was_hung_up_on(), "there is no answer");
}

#[test]
fn a_ring_does_not_start_with_a_record_that_is_damaged() {
    for features in [PLAIN, PLAIN | PACKED] {
        let rig = Rig::new("", 1);
        let mut front = FrontEnd::connect(&rig.path);
        front.negotiate(features);
        let (area, file) = get(&mut front, request(2, SIZE));
        let memory = towpath_packet::UntrustedMem::from_file(file.try_clone().unwrap(), area.size as usize).unwrap();
        // The version of the second record.
        assert!(memory.put(area.size as usize / 2 + 8, &7u16.to_le_bytes()));
        assert!(set(&mut front, area, &file) && front.set_memory());
        for index in 0..2 {
            front.make_ring(index);
            assert!(front.enable(index, true));
            assert_eq!(front.start_ring(index, None), index == 0);
        }
        assert!(rig.log().contains("the record of chains in flight"), "{}", rig.log());
    }
}

/// A front end that outlives back ends, with its rings and the records of them.
struct Survivor {
    front: FrontEnd,
    records: (InFlightArea, OwnedFd),
    /// Frames whose chains are not used, with the ids, in the order of availability.
    sent: VecDeque<(u16, Vec<u8>)>,
}

impl Survivor {
    /// What a front end does whose back end is gone, with the next one.
    fn reconnects(self, rig: &Rig) -> Survivor {
        let Survivor { front, records: (area, file), sent } = self;
        let FrontEnd { file: memory, rings, features, next, .. } = front;
        let socket = FrontEnd::connect(&rig.path).channel.into_parts().0;
        let mut front = FrontEnd { rings, next, ..FrontEnd::with_memory(socket, memory) };
        front.negotiate(features);
        assert!(front.set_memory() && set(&mut front, area, &file));
        for index in 0..2 {
            // A base of which nothing is true.
            let base = if features & PACKED != 0 { 0x8000_8000 } else { 0 };
            assert!(front.start_ring(index, Some(base)), "{}", rig.log());
            // The record of a ring that has not run here stays.
            front.get_base(index);
            assert!(front.start_ring(index, Some(base)) && front.enable(index, true), "{}", rig.log());
        }
        Survivor { front, records: (area, file), sent }
    }

    fn transmit(&mut self, frame: Vec<u8>) {
        let id = self.front.transmit(1, &frame);
        self.sent.push_back((id, frame));
    }

    /// Takes chains back that are used.
    fn reap(&mut self) {
        while let Some(used) = self.front.used(1) {
            let at = self.sent.iter().position(|(id, _)| *id == used.id).expect("a chain that was not used before");
            self.sent.remove(at);
        }
    }
}

#[test]
fn chains_in_flight_are_taken_again_by_the_next_back_end_and_each_is_used_once() {
    for features in [PLAIN, PLAIN | IN_ORDER, PLAIN | PACKED, PLAIN | PACKED | IN_ORDER] {
        let mut random = Random::new(features);
        let mut rig = Rig::new("", 1);
        let mut front = FrontEnd::connect(&rig.path);
        front.negotiate(features);
        let records = get(&mut front, request(2, SIZE));
        front.bring_up(features, 2);
        let mut guest = Survivor { front, records, sent: VecDeque::new() };
        // Packets of back ends before stay out: their pages do not matter to any other one.
        let mut out: Vec<Packet> = Vec::new();
        for round in 0..6u8 {
            let (mut held, mut taken, frames): (Vec<Packet>, usize, usize) = (Vec::new(), 0, 40);
            for n in 0..frames as u8 {
                let len = if random.below(2) == 0 { 60 } else { 1000 };
                let mut frame = vec![round; len];
                frame[14] = n;
                guest.transmit(frame);
                let mut batch = Batch::new();
                if random.below(3) == 0 {
                    taken += rig.rx[0].rx(&mut batch);
                    held.extend(batch.drain_front(64));
                    while held.len() > 8 {
                        drop(held.swap_remove(random.below(held.len() as u64) as usize));
                    }
                    taken += rig.rx[0].rx(&mut batch);
                    held.extend(batch.drain_front(64));
                }
                guest.reap();
                assert!(guest.sent.len() < usize::from(SIZE));
            }
            out.append(&mut held);
            let posted = guest.front.post(0);
            // What the back end had taken stays so, as if it had been killed.
            let (nothing, _) = std::os::unix::net::UnixStream::pair().unwrap();
            guest.front.channel = Channel::new(nothing.into());
            until(|| rig.event("connections-ended") == 1);
            rig = Rig::new("", 1);
            guest = guest.reconnects(&rig);
            guest.reap();
            let mut again = Vec::new();
            until(|| {
                let mut batch = Batch::new();
                rig.rx[0].rx(&mut batch);
                again.extend(batch.drain_front(64).map(|packet| packet.to_vec()));
                again.len() >= guest.sent.len()
            });
            let used = frames - guest.sent.len();
            assert_eq!(rig.event("chains-taken-again") as usize, taken - used, "{features:#x} {round}");
            assert!(again.iter().eq(guest.sent.iter().map(|(_, frame)| frame)), "{features:#x} {round}");
            until(|| {
                rig.rx[0].rx(&mut Batch::new());
                guest.reap();
                guest.sent.is_empty()
            });
            assert!(rig.receives_nothing());
            assert_eq!(rig.send(0, &frame(round)), 1);
            let used = guest.front.used(0).unwrap();
            assert_eq!(guest.front.received(posted, used), frame(round));
        }
        assert_eq!(guest.front.ring(1).driver.in_flight(), 0);
    }
}

#[test]
fn the_base_of_a_ring_that_was_stopped_counts_and_its_record_does_not() {
    for (features, disabled) in [(PLAIN, false), (PLAIN, true), (PLAIN | PACKED, false), (PLAIN | PACKED, true)] {
        let mut rig = Rig::new("", 1);
        let mut front = FrontEnd::connect(&rig.path);
        front.negotiate(features);
        let (area, file) = get(&mut front, request(2, SIZE));
        front.bring_up(features, 2);
        for mark in 0..5 {
            front.transmit(1, &frame(mark));
            assert_eq!(rig.receive(0), frame(mark));
        }
        // As a guest that resets its device: the drivers begin anew.
        if disabled {
            (0..2).for_each(|index| assert!(front.enable(index, false)));
        } else {
            (0..2).for_each(|index| _ = front.get_base(index));
            assert!(set(&mut front, area, &file));
        }
        for index in 0..2 {
            front.make_ring(index);
            let base = if features & PACKED != 0 { 0x8000_8000 } else { 0 };
            assert!(front.start_ring(index, Some(base)) && front.enable(index, true), "{}", rig.log());
        }
        front.transmit(1, &frame(9));
        assert_eq!(rig.receive(0), frame(9));
    }
}

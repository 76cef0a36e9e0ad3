use super::*;
use crate::abi::Ring;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use towpath_client::protocol::Rings;

/// A socket whose other end is this test in place of a datapath, and whose TX ring is the FILL ring
/// of an area without a session.
struct Rig {
    ours: UnixDatagram,
    datapath: UnixDatagram,
    ring: Ring,
    entry: Option<PollEntry>,
}

impl Rig {
    fn new() -> Rig {
        let (ours, datapath) = UnixDatagram::pair().unwrap();
        datapath.set_nonblocking(true).unwrap();
        let area = Arc::new(RingArea::reserve(16, 16).unwrap());
        let (Rings { fill, .. }, _) = Rings::lay_out(&area.sizes(2, 2));
        let (ring, _) = area.prepared();
        let entry = Some(PollEntry::of(ours.as_raw_fd(), area, Some(fill)));
        Rig { ours, datapath, ring, entry }
    }

    /// Sets the flag, and the number of entries.
    fn set(&self, need_wakeup: bool, entries: u32) {
        // SAFETY: the entry holds the area of the ring; nothing else writes to it.
        unsafe {
            self.ring.flags.write_volatile(u32::from(need_wakeup));
            let consumed = self.ring.consumer.read_volatile();
            self.ring.producer.write_volatile(consumed.wrapping_add(entries));
        }
    }

    /// Kicks since the last call.
    fn kicks(&self) -> usize {
        std::iter::from_fn(|| self.datapath.recv(&mut [0]).ok()).inspect(|len| assert_eq!(*len, 0)).count()
    }
}

/// All functions, once each, for some descriptors.
fn wait(fds: &[c_int]) {
    let mut fds: Vec<pollfd> = fds.iter().map(|fd| pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let (at, n, bytes, now) =
        (fds.as_mut_ptr(), fds.len() as nfds_t, size_of_val(&fds[..]), timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the descriptors live across the calls.
    let done = unsafe {
        [
            poll(at, n, 0),
            ppoll(at, n, &now, null()),
            __poll_chk(at, n, 0, bytes),
            __ppoll_chk(at, n, &now, null(), bytes),
        ]
    };
    assert_eq!(done, [0; 4]);
}

#[test]
fn a_sleeping_datapath_is_woken_if_there_is_something_to_send() {
    let (rig, other) = (Rig::new(), UnixDatagram::unbound().unwrap());
    let fds = [-1, other.as_raw_fd(), rig.ours.as_raw_fd()];
    for (need_wakeup, entries, kicks) in [(true, 1, 4), (true, 0, 0), (false, 1, 0), (true, 16, 4)] {
        rig.set(need_wakeup, entries);
        wait(&fds);
        assert_eq!(rig.kicks(), kicks, "{need_wakeup} {entries}");
        wait(&fds[..2]);
        assert_eq!(rig.kicks(), 0);
    }
}

#[test]
fn each_socket_is_woken_by_its_own_descriptor() {
    let rigs = [Rig::new(), Rig::new(), Rig::new()];
    rigs.iter().for_each(|rig| rig.set(true, 1));
    wait(&[rigs[1].ours.as_raw_fd()]);
    assert_eq!(rigs.each_ref().map(Rig::kicks), [0, 4, 0]);
    wait(&rigs.each_ref().map(|rig| rig.ours.as_raw_fd()));
    assert_eq!(rigs.each_ref().map(Rig::kicks), [4, 4, 4]);
}

#[test]
fn a_deleted_socket_is_left_alone() {
    let mut rig = Rig::new();
    rig.set(true, 1);
    rig.entry = None;
    wait(&[rig.ours.as_raw_fd()]);
    assert_eq!(rig.kicks(), 0);
}

#[test]
fn a_socket_with_a_reader_that_a_fork_left_behind_can_be_deleted() {
    let mut rig = Rig::new();
    rig.set(true, 1);
    let slot = rig.entry.as_ref().unwrap().0.unwrap();
    slot.readers.fetch_add(1, Ordering::SeqCst);
    rig.entry = None;
    wait(&[rig.ours.as_raw_fd()]);
    assert_eq!(rig.kicks(), 0);
    slot.readers.fetch_sub(1, Ordering::SeqCst);
}

#[test]
fn another_socket_at_the_number_of_a_closed_one_is_left_alone() {
    let (rig, (other, far)) = (Rig::new(), UnixDatagram::pair().unwrap());
    rig.set(true, 1);
    // SAFETY: both are open, and the first one stays so.
    assert!(unsafe { libc::dup2(other.as_raw_fd(), rig.ours.as_raw_fd()) } >= 0);
    wait(&[rig.ours.as_raw_fd()]);
    far.set_nonblocking(true).unwrap();
    assert!(far.recv(&mut [0]).is_err());
}

#[test]
fn sockets_come_and_go_while_others_wait() {
    let rig = Rig::new();
    rig.set(true, 1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (0..200).for_each(|_| wait(&[rig.ours.as_raw_fd()])));
        while !waiting.is_finished() {
            drop(Rig::new());
        }
    });
    assert!(rig.kicks() > 0);
}

#[test]
fn reading_without_room_leaves_the_record_that_makes_the_socket_readable() {
    let (rig, other) = (Rig::new(), UnixDatagram::pair().unwrap());
    let read = |fd: &UnixDatagram, len| {
        let mut byte = 0u8;
        let (at, flags) = ((&raw mut byte).cast(), libc::MSG_DONTWAIT);
        // SAFETY: there is room for a byte.
        unsafe { recvfrom(fd.as_raw_fd(), at, len, flags, null_mut(), null_mut()) }
    };
    for far in [&rig.datapath, &other.1] {
        far.send(&[7]).unwrap();
    }
    assert_eq!((0..3).map(|_| read(&rig.ours, 0)).collect::<Vec<_>>(), [0; 3]);
    assert_eq!((read(&rig.ours, 1), read(&rig.ours, 1)), (1, -1));
    // Another socket's record is taken.
    assert_eq!((read(&other.0, 0), read(&other.0, 0)), (0, -1));
}

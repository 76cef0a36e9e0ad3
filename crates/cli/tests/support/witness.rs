//! Detects reordering from the packets themselves.
//!
//! ```text
//!   host 1 ── e0 ── cable, towpath, cable ── e0 ── host 2
//!             │                              │
//!           Witness                        Witness       both directions, by AF_PACKET, in order
//! ```
//!
//! TCP's reordering counter is an inference: a sender derives it from received acknowledgements.
//! Where some of those are lost or delayed, it takes a gap that is reported late for a segment that
//! arrived late (`tcp_check_sack_reordering` in `net/ipv4/tcp_input.c`). Two witnesses observe
//! instead. A segment is overtaken if it left before, and arrived after, another segment of its
//! direction. A retransmission is another segment, distinguished by its timestamp, which counts
//! milliseconds. A lost segment overtakes nothing: of identical ones, of which some are lost, those
//! arrived that were in order.
//!
//! Resets are not observed: the kernel answers with them for connections that are gone, under no
//! lock, so two cores may pass the witness in one order and the interface in the other
//! (`tcp_v4_send_reset` in `net/ipv4/tcp_ipv4.c`).

use super::Namespace;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Length of the virtio-net header in front of every packet.
const VNET: usize = 10;
/// Captured bytes of each packet: enough for IPv6 and the longest TCP header.
const CAPTURED: usize = 14 + 40 + 60;

/// The flag of a reset ([RFC 9293, 3.1](https://www.rfc-editor.org/rfc/rfc9293#section-3.1)).
const RST: u8 = 4;

/// Addresses and ports of one direction of a connection.
type Flow = (u128, u128, [u8; 4]);

/// Identifies a segment within its direction: sequence number, length, acknowledgement number,
/// timestamp.
type SegmentId = (u32, usize, u32, u32);

/// Segments by direction, in their order.
type Segments = HashMap<Flow, Vec<SegmentId>>;

/// TCP segments that a witness saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    left: Segments,
    arrived: Segments,
    /// Packets that the socket dropped.
    unseen: u64,
}

/// A segment that another one overtook, by their places among those of their direction that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overtaken {
    flow: Flow,
    segment: (usize, SegmentId),
    by: (usize, SegmentId),
}

/// The comparison of both witnesses.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Segments that left one host and arrived at the other.
    pub(crate) arrived: u64,
    /// Segments that did not arrive.
    pub(crate) lost: u64,
    /// Segments that arrived after one that had left later.
    pub(crate) overtaken: u64,
    /// The first of them.
    pub(crate) first_overtaken: Option<Overtaken>,
    /// Packets that a witness missed: none of the above counts them.
    pub(crate) unseen: u64,
}

/// Compares the segments that left one host with those that arrived at the other, both ways.
pub(crate) fn compare(one: &Seen, two: &Seen) -> Comparison {
    let mut result = Comparison { unseen: one.unseen + two.unseen, ..Comparison::default() };
    for (from, to) in [(one, two), (two, one)] {
        for (flow, left) in &from.left {
            let mut indices: HashMap<SegmentId, Vec<usize>> = HashMap::with_capacity(left.len());
            for (index, id) in left.iter().enumerate() {
                indices.entry(*id).or_default().push(index);
            }
            let mut last = None;
            let mut arrived = 0;
            for id in to.arrived.get(flow).into_iter().flatten() {
                let Some(same) = indices.get_mut(id).filter(|same| !same.is_empty()) else { continue };
                // Of identical segments the first that nothing has overtaken.
                let index = same.remove(same.iter().position(|&index| Some(index) > last).unwrap_or(0));
                arrived += 1;
                if let Some(by) = last.filter(|last| *last > index) {
                    result.overtaken += 1;
                    let place = |index| (index, left[index]);
                    let overtaken = Overtaken { flow: *flow, segment: place(index), by: place(by) };
                    result.first_overtaken.get_or_insert(overtaken);
                }
                last = last.max(Some(index));
            }
            result.arrived += arrived;
            result.lost += left.len() as u64 - arrived;
        }
    }
    result
}

/// Captures all packets that leave and enter through an interface until it is stopped.
pub(crate) struct Witness {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Seen>>,
}

impl Witness {
    /// Starts the capture. The interface must exist.
    #[track_caller]
    pub(crate) fn new(ns: &Namespace, interface: &str) -> Witness {
        let socket = ns.inside(|| socket(interface)).unwrap_or_else(|e| panic!("a witness at {interface}: {e}"));
        let stop: Arc<AtomicBool> = Arc::default();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut seen, mut packet) = (Seen::default(), [0; VNET + CAPTURED]);
            loop {
                match receive(&socket, &mut packet) {
                    Ok((n, outgoing)) => drop(seen.packet(&packet[..n], outgoing)),
                    // Packets that had arrived by the stop have been read.
                    Err(_) if stopped.load(Ordering::Acquire) => break,
                    Err(_) => {}
                }
            }
            seen.unseen = unseen(&socket);
            seen
        });
        Witness { stop, thread: Some(thread) }
    }

    /// Stops the capture and returns the segments.
    pub(crate) fn stop(&mut self) -> Seen {
        self.stop.store(true, Ordering::Release);
        self.thread.take().map(|thread| thread.join().expect("no panic")).unwrap_or_default()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Seen {
    /// Records a packet; `None` if it is not observed.
    fn packet(&mut self, bytes: &[u8], outgoing: bool) -> Option<()> {
        let (vnet, frame) = bytes.split_at_checked(VNET)?;
        let be = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let address = |at: usize, len: usize| {
            Some(frame.get(at..at + len)?.iter().fold(0, |address, byte| address << 8 | u128::from(*byte)))
        };
        let (from, to, tcp, len) = match (be(12)?, *frame.get(14)? >> 4, frame.get(14 + 6), frame.get(14 + 9)) {
            (0x0800, 4, _, Some(6)) => {
                let header = usize::from(frame[14] & 15) * 4;
                (address(26, 4)?, address(30, 4)?, 14 + header, usize::from(be(16)?).checked_sub(header)?)
            }
            (0x86dd, 6, Some(6), _) => (address(22, 16)?, address(38, 16)?, 54, usize::from(be(18)?)),
            _ => return None,
        };
        let word = |at: usize| Some(u32::from_be_bytes(frame.get(tcp + at..tcp + at + 4)?.try_into().ok()?));
        let header = usize::from(*frame.get(tcp + 12)? >> 4) * 4;
        if frame.get(tcp + 13)? & RST != 0 {
            return None;
        }
        let timestamp = timestamp(frame.get(tcp + 20..tcp + header)?).unwrap_or_default();
        let payload = len.checked_sub(header)?;
        let segment = match usize::from(u16::from_le_bytes([vnet[4], vnet[5]])) {
            size if vnet[1] != 0 && size > 0 => size,
            _ => payload.max(1),
        };
        let direction = if outgoing { &mut self.left } else { &mut self.arrived };
        let segments = direction.entry((from, to, frame[tcp..tcp + 4].try_into().ok()?)).or_default();
        let (first, acknowledged) = (word(4)?, word(8)?);
        for start in (0..payload.max(1)).step_by(segment) {
            let len = segment.min(payload - start.min(payload));
            segments.push((first.wrapping_add(start as u32), len, acknowledged, timestamp));
        }
        Some(())
    }
}

/// The sender's timestamp among a segment's options
/// ([RFC 7323, 3.2](https://www.rfc-editor.org/rfc/rfc7323#section-3.2)).
fn timestamp(mut options: &[u8]) -> Option<u32> {
    loop {
        match options {
            [0, ..] => return None,
            [1, rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Some(u32::from_be_bytes([*a, *b, *c, *d])),
            [_, len, ..] if *len >= 2 => options = options.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

/// A socket that captures the beginning of every packet in both directions, with its virtio-net
/// header in front.
fn socket(interface: &str) -> io::Result<OwnedFd> {
    let check = |n: i32| if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n) };
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut short =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: CAPTURED as u32 }];
    let program = libc::sock_fprog { len: 1, filter: short.as_mut_ptr() };
    let timeout = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(1i32 << 29))?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)?;
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: a string that ends with a zero and lives until the call returns.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut at = address();
    at.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    at.sll_ifindex = index as i32;
    // SAFETY: address and length describe one sockaddr_ll that lives until the call returns.
    check(unsafe { libc::bind(fd, (&raw const at).cast(), size_of_val(&at) as libc::socklen_t) })?;
    Ok(socket)
}

fn address() -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// The next packet: its bytes, and whether it is outgoing.
fn receive(socket: &OwnedFd, packet: &mut [u8]) -> io::Result<(usize, bool)> {
    let mut from = address();
    let mut len = size_of_val(&from) as libc::socklen_t;
    let (fd, at) = (socket.as_raw_fd(), packet.as_mut_ptr().cast());
    // SAFETY: address and length describe the packet buffer and one sockaddr_ll, both borrowed
    // exclusively.
    let n = unsafe { libc::recvfrom(fd, at, packet.len(), 0, (&raw mut from).cast(), &mut len) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    Ok((n, from.sll_pkttype == libc::PACKET_OUTGOING))
}

fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: address and length describe the borrowed value, which the kernel only reads.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const *value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unseen(socket: &OwnedFd) -> u64 {
    let (mut statistics, mut len) = ([0u32; 2], size_of::<[u32; 2]>() as libc::socklen_t);
    let at = statistics.as_mut_ptr().cast();
    // SAFETY: address and length describe the array, which the kernel fills with integers.
    unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, at, &mut len) };
    statistics[1].into()
}

/// What two witnesses see of one direction: segments by their numbers, equal ones identical.
fn one_way(left: &[u32], arrived: &[u32]) -> Comparison {
    let segments =
        |numbers: &[u32]| Segments::from([((1, 2, [0; 4]), numbers.iter().map(|&n| (n, 1, 0, 0)).collect())]);
    let one = Seen { left: segments(left), ..Seen::default() };
    compare(&one, &Seen { arrived: segments(arrived), ..Seen::default() })
}

#[test]
fn identical_segments_arrive_in_order_if_some_of_them_can_have_done_so() {
    let counts = |left: &[u32], arrived: &[u32]| {
        let Comparison { arrived, lost, overtaken, .. } = one_way(left, arrived);
        (arrived, lost, overtaken)
    };
    assert_eq!(counts(&[1, 2, 3], &[1, 2, 3]), (3, 0, 0));
    assert_eq!(counts(&[1, 2, 3], &[1, 3, 2]), (3, 0, 1));
    assert_eq!(counts(&[1, 2, 3], &[3]), (1, 2, 0), "a lost segment overtakes nothing");
    assert_eq!(counts(&[1, 2, 1], &[2, 1]), (2, 1, 0), "the first was lost, and the second one is the last");
    assert_eq!(counts(&[1, 2, 1, 3], &[2, 3, 1]), (3, 1, 1), "3 left behind both");
    let first = one_way(&[1, 2, 1], &[2, 1, 1]).first_overtaken.expect("two arrived behind 2, one left behind it");
    assert_eq!((first.segment.0, first.by.0), (0, 2));
}

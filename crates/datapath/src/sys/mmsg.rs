//! Many packets with one call: `recvmmsg(2)` into buffers that are held ready, `sendmmsg(2)` out of packets as they lie.
//!
//! ```text
//!   message i ──► header i (10 bytes), head i, tail i       receiving: stays posted until a packet landed there
//!   message i ──► header i (10 bytes), chunk, chunk, …      sending: written anew for each call
//! ```

use super::check;
use super::gather::{self, MAX_CHUNKS};
use crate::landing::{Landing, Place};
use crate::vnet::VnetHeader;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;
use towpath_packet::{Packet, Vlan};

/// Messages per call at most: as many as a batch has packets.
pub(crate) const MESSAGES: usize = 64;

type Header = [u8; VnetHeader::LEN];

const NOWHERE: libc::iovec = libc::iovec { iov_base: null_mut(), iov_len: 0 };

fn messages() -> Box<[libc::mmsghdr]> {
    // SAFETY: mmsghdr is plain data; all zeroes are a message with nothing in it.
    (0..MESSAGES).map(|_| unsafe { MaybeUninit::zeroed().assume_init() }).collect()
}

/// Bytes of one control message with a `tpacket_auxdata`.
const CONTROL: usize = 40;
/// Where the data of a control message begins: behind its length, level and type.
const AUX: usize = size_of::<libc::cmsghdr>();

/// Room for what the kernel says beside a packet.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// Buffers posted to the kernel, and what it put into them.
pub(crate) struct Receiver {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[[libc::iovec; 3]]>,
    headers: Box<[Header]>,
    control: Box<[Control]>,
    places: Box<[Place]>,
    /// Messages from the first on that are ready to receive.
    ready: usize,
    /// Messages behind which none needs anything.
    missing: usize,
}

// SAFETY: the addresses in messages and vectors point into this value's own boxes and into chunks that its places own; all of
// them move with it, and none refers to the thread.
unsafe impl Send for Receiver {}

/// One packet as it was received.
pub(crate) struct Received {
    pub(crate) header: VnetHeader,
    pub(crate) packet: Packet,
    /// The tag that was taken off: `Err` for one that [`Vlan`] can't say.
    pub(crate) vlan: Result<Option<Vlan>, u16>,
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        let mut receiver = Receiver {
            messages: messages(),
            vectors: vec![[NOWHERE; 3]; MESSAGES].into(),
            headers: vec![[0; VnetHeader::LEN]; MESSAGES].into(),
            control: (0..MESSAGES).map(|_| Control([0; CONTROL])).collect(),
            places: (0..MESSAGES).map(|_| Place::default()).collect(),
            ready: 0,
            missing: MESSAGES,
        };
        let Receiver { messages, vectors, headers, control, .. } = &mut receiver;
        for (((message, vector), header), control) in messages.iter_mut().zip(vectors).zip(headers).zip(control) {
            vector[0] = libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() };
            message.msg_hdr.msg_iov = vector.as_mut_ptr();
            message.msg_hdr.msg_iovlen = vector.len() as _;
            message.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        }
        receiver
    }

    /// Posts buffers where there are none; whether at least one message can be received.
    #[inline]
    pub(crate) fn refill(&mut self, landing: &mut Landing) -> bool {
        while self.ready < self.missing {
            let i = self.ready;
            if !landing.fill(&mut self.places[i]) {
                return i > 0;
            }
            let (head, tail) = self.places[i].room();
            self.vectors[i][1] = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
            self.vectors[i][2] = libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() };
            self.messages[i].msg_hdr.msg_controllen = CONTROL as _;
            self.ready += 1;
        }
        self.ready = MESSAGES;
        self.missing = 0;
        true
    }

    /// Receives up to `max` packets; returns how many.
    #[inline]
    pub(crate) fn receive(&mut self, from: impl AsFd, max: usize) -> io::Result<usize> {
        let n = self.ready.min(max);
        let fd = from.as_fd().as_raw_fd();
        // SAFETY: the first `ready` messages point to headers and control buffers of this value, and to heads and tails that its
        // places own and that nobody reads or writes meanwhile; each with the length of what it points to.
        let got = check(unsafe {
            libc::recvmmsg(fd, self.messages.as_mut_ptr(), n as libc::c_uint, libc::MSG_DONTWAIT, null_mut())
        })?;
        let got = usize::try_from(got).unwrap_or(0).min(n);
        self.missing = self.missing.max(got);
        self.ready = 0;
        Ok(got)
    }

    /// Takes out the packet that message `i` of the last call received.
    #[inline]
    pub(crate) fn take(&mut self, i: usize) -> Option<Received> {
        let message = self.messages.get(i)?;
        let len = (message.msg_len as usize).checked_sub(VnetHeader::LEN).filter(|&len| len > 0)?;
        let vlan = tag(&self.control.get(i)?.0, message.msg_hdr.msg_controllen as usize);
        let packet = self.places.get_mut(i)?.take(len)?;
        Some(Received { header: VnetHeader::read(self.headers.get(i)?), packet, vlan })
    }
}

/// The VLAN tag in a control message with a `tpacket_auxdata`: status u32, len u32, snaplen u32, mac u16, net u16, tci u16,
/// tpid u16.
#[inline]
fn tag(control: &[u8; CONTROL], len: usize) -> Result<Option<Vlan>, u16> {
    let word = |at: usize| u16::from_ne_bytes([control[AUX + at], control[AUX + at + 1]]);
    let status = u32::from_ne_bytes([control[AUX], control[AUX + 1], control[AUX + 2], control[AUX + 3]]);
    if len < AUX + 20 || status & libc::TP_STATUS_VLAN_VALID == 0 {
        return Ok(None);
    }
    let tci = word(16);
    match (status & libc::TP_STATUS_VLAN_TPID_VALID != 0).then(|| word(18)) {
        None | Some(0x8100) => Ok(Some(Vlan { tci, service: false })),
        Some(0x88a8) => Ok(Some(Vlan { tci, service: true })),
        Some(other) => Err(other),
    }
}

/// Entries for the chunks of all packets of one call: any single packet fits, and four chunks of each in a full batch.
const VECTORS: usize = 5 * MESSAGES;

const _: () = assert!(VECTORS > MAX_CHUNKS);

/// The lists that `sendmmsg(2)` takes, kept from one call to the next.
pub(crate) struct Sender {
    messages: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
}

// SAFETY: the addresses in both lists are used only within `send`, which puts them there.
unsafe impl Send for Sender {}

impl Sender {
    pub(crate) fn new() -> Sender {
        Sender { messages: messages(), vectors: vec![NOWHERE; VECTORS].into() }
    }

    /// Sends packets from the front, each behind its header, as many as there are of both and as one call takes; returns how
    /// many. Chunks that others may write to meanwhile are named by address, never looked at.
    #[inline]
    pub(crate) fn send(&mut self, to: impl AsFd, headers: &[Header], packets: &[Packet]) -> io::Result<usize> {
        let mut vectors = &mut *self.vectors;
        let mut n = 0;
        for ((message, header), packet) in self.messages.iter_mut().zip(headers).zip(packets) {
            if packet.frags() + 2 > vectors.len() {
                break;
            }
            let used = gather::fill(vectors, header, packet);
            let (mine, rest) = std::mem::take(&mut vectors).split_at_mut(used);
            message.msg_hdr.msg_iov = mine.as_mut_ptr();
            message.msg_hdr.msg_iovlen = mine.len() as _;
            vectors = rest;
            n += 1;
        }
        let fd = to.as_fd().as_raw_fd();
        // SAFETY: the first n messages were just filled from headers and packets that are borrowed until the call returns; the
        // kernel only reads what they point to.
        let sent =
            check(unsafe { libc::sendmmsg(fd, self.messages.as_mut_ptr(), n as libc::c_uint, libc::MSG_DONTWAIT) })?;
        Ok(usize::try_from(sent).unwrap_or(0).min(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(status: u32, tci: u16, tpid: u16) -> [u8; CONTROL] {
        let mut bytes = [0; CONTROL];
        bytes[AUX..AUX + 4].copy_from_slice(&status.to_ne_bytes());
        bytes[AUX + 16..AUX + 18].copy_from_slice(&tci.to_ne_bytes());
        bytes[AUX + 18..AUX + 20].copy_from_slice(&tpid.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_tag_counts_only_when_the_kernel_says_that_it_is_one() {
        assert_eq!(tag(&control(0, 5, 0x8100), CONTROL), Ok(None));
        assert_eq!(tag(&control(0x10, 5, 0), 0), Ok(None), "no control message at all");
        assert_eq!(tag(&control(0x10, 5, 0), CONTROL), Ok(Some(Vlan { tci: 5, service: false })));
        assert_eq!(tag(&control(0x50, 5, 0x88a8), CONTROL), Ok(Some(Vlan { tci: 5, service: true })));
        assert_eq!(tag(&control(0x50, 5, 0x9100), CONTROL), Err(0x9100));
    }
}

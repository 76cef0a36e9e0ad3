//! The announcement of a guest that was migrated here and does not announce itself: the front end
//! asks for it (`SEND_RARP`), and it leaves as if the guest had sent it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the frame.
const RARP_LEN: usize = 60;
/// Marks a word with an address.
const PENDING: u64 = 1 << 63;

/// The announcement that waits for the worker, if there is one.
#[derive(Debug, Default)]
pub(super) struct Rarp(AtomicU64);

impl Rarp {
    /// Control thread: asks for the announcement of an address.
    pub(super) fn post(&self, mac: [u8; 6]) {
        let [a, b, c, d, e, f] = mac;
        self.0.store(u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | PENDING, Ordering::Relaxed);
    }

    /// Worker: the frame to announce, once.
    #[inline]
    pub(super) fn take(&self) -> Option<[u8; RARP_LEN]> {
        // Mostly there is none: a load does not take the cache line from others.
        if self.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let word = self.0.swap(0, Ordering::Relaxed);
        let [_, _, mac @ ..] = word.to_be_bytes();
        (word != 0).then(|| frame(mac))
    }
}

/// A reverse ARP request of a station for its own address (RFC 903).
fn frame(mac: [u8; 6]) -> [u8; RARP_LEN] {
    let mut bytes = [0; RARP_LEN];
    let parts: [&[u8]; 7] = [
        &[0xff; 6],
        &mac,
        // RARP; Ethernet and IPv4 addresses of 6 and 4 bytes; request reverse.
        &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3],
        &mac,
        &[0; 4],
        &mac,
        &[0; 4],
    ];
    for (to, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
        *to = *byte;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_taken_once_and_the_last_one_counts() {
        let (rarp, mac) = (Rarp::default(), [2, 0, 0, 0, 0, 9]);
        assert_eq!(rarp.take(), None);
        rarp.post([0; 6]);
        rarp.post(mac);
        let frame = rarp.take().unwrap();
        assert_eq!((&frame[..6], &frame[6..12], &frame[12..14]), (&[0xff; 6][..], &mac[..], &[0x80, 0x35][..]));
        assert_eq!((&frame[20..22], &frame[22..28], &frame[32..38]), (&[0, 3][..], &mac[..], &mac[..]));
        assert!(rarp.take().is_none() && frame[42..].iter().all(|byte| *byte == 0));
    }
}

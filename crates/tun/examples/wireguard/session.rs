//! Messages: transport data of WireGuard
//! ([its paper](https://www.wireguard.com/papers/wireguard.pdf), section 5.4.6), with a key of both
//! directions.
//!
//! ```text
//!   type 4 │ receiver (4) │ counter (8) │ packet, padded to 16 bytes │ tag (16)
//!                                        └──── ChaCha20-Poly1305 ────┘
//! ```

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes in front of a packet.
pub(crate) const HEADER: usize = 16;
const TAG: usize = 16;
/// Bytes that a message has beside its packet and the padding.
pub(crate) const OVERHEAD: usize = HEADER + TAG;

const TRANSPORT_DATA: u32 = 4;

pub(crate) struct Session {
    /// `None`: nothing is encrypted, for measurements.
    cipher: Option<LessSafeKey>,
    /// Random, and part of the nonce: the two senders of one key use none twice.
    sender: [u8; 4],
    /// It begins with the time in nanoseconds: no later run of this sender uses a nonce twice.
    counter: u64,
    /// The sender of the messages that were opened last.
    other: [u8; 4],
    window: Window,
}

impl Session {
    pub(crate) fn new(key: Option<[u8; 32]>) -> Session {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Session {
            cipher: key.and_then(|key| UnboundKey::new(&CHACHA20_POLY1305, &key).ok()).map(LessSafeKey::new),
            sender: (RandomState::new().build_hasher().finish() as u32).to_le_bytes(),
            counter: u64::try_from(now.as_nanos()).unwrap_or(0),
            other: [0; 4],
            window: Window::default(),
        }
    }

    /// Bytes of the message of a packet. The padding makes it no longer than that of a packet of
    /// the MTU.
    pub(crate) fn sealed_len(packet: usize, mtu: usize) -> usize {
        OVERHEAD + packet.next_multiple_of(16).min(mtu.max(packet))
    }

    /// Makes a message of a packet of `len` bytes that lies behind the header.
    pub(crate) fn seal(&mut self, message: &mut [u8], len: usize) {
        let (header, rest) = message.split_at_mut(HEADER);
        let (packet, tag) = rest.split_at_mut(rest.len() - TAG);
        header[..4].copy_from_slice(&TRANSPORT_DATA.to_le_bytes());
        header[4..8].copy_from_slice(&self.sender);
        header[8..].copy_from_slice(&self.counter.to_le_bytes());
        packet[len..].fill(0);
        self.counter += 1;
        let Some(cipher) = &self.cipher else { return };
        if let Ok(sum) = cipher.seal_in_place_separate_tag(nonce(header), Aad::empty(), packet) {
            tag.copy_from_slice(sum.as_ref());
        }
    }

    /// Opens a message in place; returns its packet. `None` for a message that the peer has not
    /// sent, or that was opened before.
    pub(crate) fn open<'a>(&mut self, message: &'a mut [u8]) -> Option<&'a [u8]> {
        let (header, sealed) = message.split_at_mut_checked(HEADER)?;
        let counter = u64::from_le_bytes(*header.last_chunk()?);
        if header[..4] != TRANSPORT_DATA.to_le_bytes() || header[4..8] == self.sender {
            return None;
        }
        // A peer that was started again has another number, and a later counter.
        let known = self.other == header[4..8];
        if known && !self.window.is_new(counter) || !known && counter < self.window.next {
            return None;
        }
        let packet = match &self.cipher {
            Some(cipher) => cipher.open_in_place(nonce(header), Aad::empty(), sealed).ok()?,
            None => sealed.split_last_chunk_mut::<TAG>()?.0,
        };
        self.other.copy_from_slice(&header[4..8]);
        self.window.mark(counter);
        packet.get(..ip_len(packet)?)
    }
}

/// Sender and counter.
fn nonce(header: &[u8]) -> Nonce {
    let mut nonce = [0; 12];
    nonce.copy_from_slice(&header[4..HEADER]);
    Nonce::assume_unique_for_key(nonce)
}

/// The length that an IP packet says of itself.
fn ip_len(packet: &[u8]) -> Option<usize> {
    let field = |at: usize| packet.get(at..)?.first_chunk().map(|&bytes| usize::from(u16::from_be_bytes(bytes)));
    match packet.first()? >> 4 {
        4 => field(2).filter(|&len| len >= 20),
        6 => field(4).map(|len| len + 40),
        _ => None,
    }
}

/// The counters of the latest messages ([RFC 6479](https://www.rfc-editor.org/rfc/rfc6479)).
struct Window {
    /// The counter behind the largest.
    next: u64,
    seen: [u64; Window::BITS as usize / 64],
}

impl Default for Window {
    fn default() -> Window {
        Window { next: 0, seen: [0; Window::BITS as usize / 64] }
    }
}

impl Window {
    const BITS: u64 = 4096;

    fn place(counter: u64) -> (usize, u64) {
        ((counter % Window::BITS / 64) as usize, 1 << (counter % 64))
    }

    fn is_new(&self, counter: u64) -> bool {
        let (word, bit) = Window::place(counter);
        counter >= self.next || (self.next - counter <= Window::BITS && self.seen[word] & bit == 0)
    }

    fn mark(&mut self, counter: u64) {
        if counter >= self.next {
            // As many counters leave the window as enter it.
            let entering = (counter - self.next).min(Window::BITS);
            for counter in counter - entering..=counter {
                let (word, bit) = Window::place(counter);
                self.seen[word] &= !bit;
            }
            self.next = counter.saturating_add(1);
        }
        let (word, bit) = Window::place(counter);
        self.seen[word] |= bit;
    }
}

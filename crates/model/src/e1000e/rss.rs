//! Receive side scaling: a hash over addresses and ports selects a queue (82574 datasheet §7.1.7).

use super::register_file::RegisterFile;
use super::regs::*;
use towpath_wire::dissect::Flags;
use towpath_wire::hash::RssInput;
use towpath_wire::ip::protocol;
use towpath_wire::{Dissected, Toeplitz};

const TCP_IPV4: u32 = 1 << 16;
const IPV4: u32 = 1 << 17;
const TCP_IPV6: u32 = 1 << 21;
const IPV6: u32 = 1 << 20 | 1 << 19;

/// The hash, as descriptors report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Hash {
    /// The RSS type; 0 without a hash.
    pub(crate) kind: u8,
    pub(crate) value: u32,
    pub(crate) queue: u8,
}

#[derive(Debug)]
pub(crate) struct Rss {
    mrqc: u32,
    /// Hashing is enabled: MRQC selects a type, and RXCSUM.PCSD reserves the field in the
    /// descriptor.
    on: bool,
    queues: [u8; 128],
    key: Option<Box<Toeplitz>>,
}

impl Rss {
    pub(crate) fn new(registers: &RegisterFile) -> Rss {
        let mrqc = registers.get(MRQC);
        let on = mrqc >> 16 != 0 && registers.get(RXCSUM) & RXCSUM_PCSD != 0;
        let key = on.then(|| {
            let mut key = [0; 40];
            for (i, bytes) in key.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *bytes = registers.get(RSSRK + 4 * i).to_le_bytes();
            }
            Box::new(Toeplitz::new(&key))
        });
        let queues = std::array::from_fn(|i| (registers.get(RETA + (i & !3)) >> (8 * (i & 3)) & 0xff) as u8 >> 7);
        Rss { mrqc, on, queues, key }
    }

    #[inline]
    pub(crate) fn hash(&self, found: &Dissected) -> Hash {
        let Some(key) = self.key.as_deref().filter(|_| self.on) else { return Hash::default() };
        let (v4, v6) = (found.is_ipv4(), found.is_ipv6());
        let tcp = found.flow.protocol == protocol::TCP && found.flags.contains(Flags::PORTS) && !found.is_fragment();
        let enabled = |bits| self.mrqc & bits != 0;
        let kind = match (v4, v6, tcp) {
            (true, _, true) if enabled(TCP_IPV4) => 1,
            (true, _, _) if enabled(IPV4) => 2,
            (_, true, true) if enabled(TCP_IPV6) => 3,
            (_, true, _) if enabled(IPV6) => 5,
            _ => return Hash::default(),
        };
        let value = key.hash(RssInput::new(&found.flow, v4, kind & 1 != 0 && kind != 5).as_bytes());
        let queue = if self.mrqc & 3 == 1 { self.queues[(value & 127) as usize] } else { 0 };
        Hash { kind, value, queue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_wire::{LinkKind, dissect};

    /// TCP from 66.9.149.187:2794 to 161.142.100.80:1766: the first of Microsoft's
    /// [test vectors].
    ///
    /// [test vectors]: https://learn.microsoft.com/windows-hardware/drivers/network/verifying-the-rss-hash-calculation
    fn vector() -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[17] = 46;
        frame[23] = 6;
        frame[26..30].copy_from_slice(&[66, 9, 149, 187]);
        frame[30..34].copy_from_slice(&[161, 142, 100, 80]);
        frame[34..38].copy_from_slice(&[0x0a, 0xea, 0x06, 0xe6]);
        frame[46] = 0x50;
        frame
    }

    fn registers(mrqc: u32) -> RegisterFile {
        let registers = RegisterFile::new([0; 6]);
        for (i, bytes) in Toeplitz::MICROSOFT_KEY.as_chunks::<4>().0.iter().enumerate() {
            registers.set(RSSRK + 4 * i, u32::from_le_bytes(*bytes));
        }
        registers.set(MRQC, mrqc);
        registers.set(RXCSUM, RXCSUM_PCSD);
        registers
    }

    fn hash(registers: &RegisterFile, frame: &[u8]) -> Hash {
        Rss::new(registers).hash(&dissect(frame, LinkKind::Ethernet))
    }

    #[test]
    fn the_hash_matches_microsofts_test_vectors() {
        assert_eq!(hash(&registers(TCP_IPV4 | IPV4), &vector()), Hash { kind: 1, value: 0x51cc_c178, queue: 0 });
        assert_eq!(hash(&registers(IPV4), &vector()), Hash { kind: 2, value: 0x323e_8fc2, queue: 0 });
    }

    #[test]
    fn the_entry_of_the_lowest_seven_bits_selects_the_queue() {
        let registers = registers(TCP_IPV4 | 1);
        let entry = 0x78;
        registers.set(RETA + entry, 0x80);
        assert_eq!(hash(&registers, &vector()).queue, 1);
        registers.set(RETA + entry, 0x8000);
        assert_eq!(hash(&registers, &vector()).queue, 0);
    }

    #[test]
    fn without_a_field_in_the_descriptor_there_is_no_hash() {
        let registers = registers(TCP_IPV4);
        registers.set(RXCSUM, 0);
        assert_eq!(hash(&registers, &vector()), Hash::default());
    }

    #[test]
    fn udp_is_hashed_by_addresses_alone() {
        let mut frame = vector();
        frame[23] = 17;
        assert_eq!(hash(&registers(TCP_IPV4 | IPV4), &frame).kind, 2);
        assert_eq!(hash(&registers(TCP_IPV4), &frame), Hash::default());
    }
}

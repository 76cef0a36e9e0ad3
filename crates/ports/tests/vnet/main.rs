//! Any virtio-net header in front of any packet.

mod check;

use proptest::prelude::*;
use towpath_packet::{Backing, Cache, Direction, Pool, PoolConfig};

fn cache() -> Cache {
    let config = PoolConfig::default().capacity(64).backing(Backing::Anonymous);
    Pool::new(config).unwrap().cache(Direction::Tx).unwrap()
}

proptest! {
    #[test]
    fn any_header_before_any_packet_gives_metadata_that_holds_or_a_refusal(bytes: [u8; 10], len in 1usize..1900) {
        check::header(&mut cache(), bytes, &vec![0; len]);
    }

    #[test]
    fn likely_headers_hold_too(
        flags in 0u8..4, kind in prop::sample::select(vec![0u8, 1, 3, 4, 5, 0x81, 0x84]),
        start in 0u8..100, offset in prop::sample::select(vec![6u8, 16]), size: u16, len in 1usize..1900,
    ) {
        let [a, b] = (size % 2000).to_ne_bytes();
        let [[s, t], [o, p]] = [u16::from(start), u16::from(offset)].map(u16::to_ne_bytes);
        check::header(&mut cache(), [flags, kind, 54, 0, a, b, s, t, o, p], &vec![0; len]);
    }
}

#[test]
fn a_true_header_is_applied() {
    let mut cache = cache();
    let [a, b] = 34u16.to_ne_bytes();
    let [c, d] = 16u16.to_ne_bytes();
    assert!(check::header(&mut cache, [1, 0, 0, 0, 0, 0, a, b, c, d], &[0; 60]));
    assert!(!check::header(&mut cache, [1, 0, 0, 0, 0, 0, a, b, c, d], &[0; 51]));
}

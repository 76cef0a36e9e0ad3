//! Any bytes as a virtio-net header, and the packet behind it.
//!
//! `crates/ports/tests/vnet/check.rs` has the checks; property tests use them as well.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use towpath_packet::{Backing, Cache, Direction, Pool, PoolConfig};

#[path = "../../crates/ports/tests/vnet/check.rs"]
mod check;

thread_local! {
    static CACHE: RefCell<Cache> = RefCell::new({
        let config = PoolConfig::default().capacity(64).backing(Backing::Anonymous);
        Pool::new(config).unwrap().cache(Direction::Tx).unwrap()
    });
}

fuzz_target!(|data: &[u8]| {
    let Some((header, packet)) = data.split_first_chunk() else { return };
    // One buffer has room for it.
    let packet = &packet[..packet.len().min(1900)];
    CACHE.with_borrow_mut(|cache| check::header(cache, *header, packet));
});

//! External buffers of applications: the device reads them in place, and the driver unmaps their
//! memory after its owner is gone.

use super::rig::{Rig, Variant, assert_stamps, stamp};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use towpath_packet::port::TxQueue;
use towpath_packet::{Backing, ExtBufOwner, ExtBufPool, Packet, Region, UntrustedMem};

const N: u32 = 40;
const CHUNK: usize = 2048;

struct NoOwner;
impl ExtBufOwner for NoOwner {
    fn on_free(&self) {}
}

#[test]
fn external_buffers_are_sent_without_a_copy_and_unmapped_after_their_owner_is_gone() {
    for variant in Variant::ALL {
        let mut rig = Rig::new(variant, 1);
        let region = UntrustedMem::new(Region::new(N as usize * CHUNK, Backing::Memfd).unwrap());
        let file: File = region.fd().unwrap().try_clone_to_owned().unwrap().into();
        let alive = region.handle().downgrade();
        let mut buffers = ExtBufPool::new(N as usize, region, Arc::new(NoOwner)).unwrap();
        for number in 0..N {
            let at = number as usize * CHUNK;
            file.write_all_at(&stamp(0, number, 90), at as u64).unwrap();
            let mut packet = rig.packet(&[]);
            packet.append_buf(buffers.attach(at, 90, number.into()).unwrap()).unwrap();
            rig.send(0, packet);
            rig.run(10);
        }
        rig.settle();
        let sent = rig.plugs[0].drain();
        assert_eq!(sent.len(), N as usize);
        assert_stamps(&sent, 0, 0);
        assert_eq!(rig.ports[0].tx[0].counters().snapshot().copied, 0, "{variant:?}");
        let mut back = Vec::new();
        buffers.drain_freed(2 * N as usize, |token, _| back.push(token));
        back.sort_unstable();
        assert!(back.iter().copied().eq(0..u64::from(N)), "each once, {variant:?}: {back:?}");
        drop(buffers);
        rig.check_link(0);
        assert!(alive.is_gone(), "the memory stays mapped: {variant:?}");
        rig.finish();
    }
}

#[test]
fn bytes_that_lie_in_no_region_are_copied_and_counted_and_their_owners_dropped_once() {
    for variant in Variant::ALL {
        let mut rig = Rig::new(variant, 1);
        let frames: Vec<Arc<[u8]>> = (0..N).map(|number| stamp(0, number, 90).into()).collect();
        for frame in &frames {
            rig.send(0, Packet::from_owner(frame.clone()).unwrap());
            rig.run(10);
        }
        rig.settle();
        let sent = rig.plugs[0].drain();
        assert_eq!(sent.len(), N as usize);
        assert_stamps(&sent, 0, 0);
        assert_eq!(rig.ports[0].tx[0].counters().snapshot().copied, N.into(), "{variant:?}");
        assert!(frames.iter().all(|frame| Arc::strong_count(frame) == 1));
        rig.finish();
    }
}

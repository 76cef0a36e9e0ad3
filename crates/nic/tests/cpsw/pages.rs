//! ExtBufPool of applications: read where they lie, and their memory let go of when its owner is gone.

use super::rig::{Rig, Way, assert_stamps, stamp};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use towpath_packet::port::TxQueue;
use towpath_packet::{Backing, ExtBufOwner, ExtBufPool, Region};

const N: u32 = 40;
const CHUNK: usize = 2048;

struct Nobody;
impl ExtBufOwner for Nobody {
    fn on_free(&self) {}
}

#[test]
fn pages_leave_without_a_copy_and_their_memory_goes_with_its_owner() {
    for way in Way::ALL {
        let mut rig = Rig::new(way, 1);
        let region = Arc::new(Region::new(N as usize * CHUNK, Backing::Memfd).unwrap());
        let file: File = region.fd().unwrap().try_clone_to_owned().unwrap().into();
        let alive = Arc::downgrade(&region);
        let mut pages = ExtBufPool::new(N as usize, region, Arc::new(Nobody)).unwrap();
        for number in 0..N {
            let at = number as usize * CHUNK;
            file.write_all_at(&stamp(0, number, 90), at as u64).unwrap();
            let mut packet = rig.packet(&[]);
            packet.append_buf(pages.attach(at, 90, number.into()).unwrap()).unwrap();
            rig.send(0, packet);
            rig.run(10);
        }
        rig.settle();
        let sent = rig.plugs[0].drain();
        assert_eq!(sent.len(), N as usize);
        assert_stamps(&sent, 0, 0);
        assert_eq!(rig.ports[0].tx[0].counters().snapshot().copied, 0, "{way:?}");
        assert_eq!(pages.reclaim(N as usize, |_, _| {}), N as usize);
        drop(pages);
        let mut turns = 0;
        while alive.strong_count() > 0 {
            assert!(turns < 100_000, "it is never let go of: {way:?}");
            rig.ports[0].tx[0].reclaim();
            turns += 1;
        }
        rig.finish();
    }
}

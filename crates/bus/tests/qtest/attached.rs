//! A machine that was started by other means.

use super::raw::{Mapped, Raw, frame, get, until};
use crate::require;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use towpath_bus::qtest::Qemu;
use towpath_bus::{Access, Bus, Dma, Window};
use towpath_testing::listens;

/// A QEMU as a user starts it, killed on drop.
struct RunningQemu {
    child: Child,
    directory: tempfile::TempDir,
}

impl RunningQemu {
    fn start(memory: &str, more: &[&str]) -> RunningQemu {
        let directory = tempfile::tempdir().unwrap();
        let firmware = directory.path().join("halt.bin");
        let mut halt = vec![0xf4; 65536];
        halt[0xfff0..0xfff4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
        std::fs::write(&firmware, halt).unwrap();
        let socket = directory.path().join("qtest");
        let child = Command::new("qemu-system-x86_64")
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg", "-m", "64M"])
            .args(["-machine", "q35,memory-backend=ram", "-object", memory, "-bios", firmware.to_str().unwrap()])
            .args(["-qtest", &format!("unix:{},server=on,wait=off", socket.display()), "-qtest-log", "/dev/null"])
            .args(more)
            .args(["-netdev", "hubport,id=n,hubid=0", "-device", "e1000e,netdev=n,addr=4.0"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let running = RunningQemu { child, directory };
        until("QEMU listens", || listens(&running.child, &running.socket()));
        running
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("qtest")
    }
}

impl Drop for RunningQemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MEMFD: &str = "memory-backend-memfd,id=ram,size=64M,share=on";

#[test]
fn a_running_machine_is_attached_and_detached_repeatedly() {
    require!("a_running_machine_is_attached_and_detached_repeatedly");
    let mut running = RunningQemu::start(MEMFD, &["-device", "intel-iommu"]);
    for _ in 0..3 {
        let qemu = Qemu::attach(&running.socket(), None).unwrap();
        let nic = Raw::new(&qemu);
        let data = Mapped::new(nic.bus.dma(), 4096, Access::Both);
        loops_back(nic, &data, &qemu);
    }
    assert!(running.child.try_wait().unwrap().is_none(), "it is still running");
}

/// The device sends a frame to itself.
fn loops_back(mut nic: Raw, data: &Mapped, qemu: &Qemu) {
    use towpath_bus::Mmio;
    nic.bar.w32(0x100, nic.bar.r32(0x100) | 0x40);
    data.put(0, &frame(3, 200));
    nic.post(data.iova.get() + 2048);
    nic.send(data.iova.get(), 200);
    assert_eq!(nic.wait_received(), 200);
    assert_eq!(data.get(2048, 200), frame(3, 200));
    assert!(qemu.faults().records.is_empty());
}

/// In caching mode QEMU's unit caches absent entries, as VT-d §6.1 allows, so mapping needs an
/// invalidation too.
#[test]
fn mapping_is_invalidated_in_caching_mode() {
    require!("mapping_is_invalidated_in_caching_mode");
    let running = RunningQemu::start(MEMFD, &["-device", "intel-iommu,caching-mode=on,aw-bits=48"]);
    let qemu = Qemu::attach(&running.socket(), None).unwrap();
    let unit = qemu.iommu().unwrap();
    assert!(unit.capabilities().caching_mode);
    let nic = Raw::new(&qemu);
    let before = unit.invalidations().batches;
    let data = Mapped::new(nic.bus.dma(), 4096, Access::Both);
    assert_eq!(unit.invalidations().batches, before + 1);
    let buffer = towpath_packet::RegionHandle::from(nic.bus.dma().alloc(4096).unwrap());
    let mut window = nic.bus.dma().window(1, 2048).unwrap();
    let before = unit.invalidations().batches;
    // SAFETY: the buffer lives longer than the window.
    unsafe { window.map(0, buffer.base(), 2048, Access::Write) }.unwrap();
    assert_eq!(unit.invalidations().batches, before + 1);
    assert_eq!(get(&buffer, 0, 1), [0]);
    loops_back(nic, &data, &qemu);
}

#[test]
fn errors_of_attaching_name_the_remedy() {
    require!("errors_of_attaching_name_the_remedy");
    let error = Qemu::attach(Path::new("/nonexistent/socket"), None).unwrap_err().to_string();
    assert!(error.contains("-qtest unix:SOCKET"), "{error}");
    let running = RunningQemu::start("memory-backend-ram,id=ram,size=64M", &[]);
    let error = Qemu::attach(&running.socket(), None).unwrap_err().to_string();
    assert!(error.contains("no memory that is shared") && error.contains("memory-backend-memfd"), "{error}");
    let error = Qemu::attach(&running.socket(), Some(Path::new("/dev/null"))).unwrap_err().to_string();
    assert!(error.contains("could shrink"), "{error}");
}

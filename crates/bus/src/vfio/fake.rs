//! A fake machine made of files, whose kernel acts on what is written to them.

use super::bdf::Bdf;
use super::bind::Kernel;
use super::host::{Host, device};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

pub(super) struct FakeHost {
    // Removed on drop.
    _files: tempfile::TempDir,
    root: PathBuf,
    host: Host,
    /// Drivers, and the devices that they match.
    matching: Vec<(String, Bdf)>,
    /// The number of the command that fails, counted from one.
    pub(super) fails: Option<usize>,
    pub(super) commands: Vec<String>,
    pub(super) used: Option<(String, String)>,
    pub(super) loadable: bool,
}

impl FakeHost {
    /// A CPU with every feature on, and no devices.
    pub(super) fn new() -> FakeHost {
        let files = tempfile::tempdir().unwrap();
        let root = files.path().to_owned();
        let host = Host::below(&root);
        let (matching, commands) = (Vec::new(), Vec::new());
        let machine =
            FakeHost { _files: files, root, host, matching, fails: None, commands, used: None, loadable: true };
        machine.file("proc/cpuinfo", "vendor_id\t: GenuineIntel\n");
        machine.file("proc/self/status", "CapEff:\t000001ffffffffff\n");
        machine.file("proc/sys/kernel/osrelease", "6.1.0\n");
        machine.file("lib/modules/6.1.0/modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko: x.ko\n");
        machine.file("sys/kernel/irq/24/chip_name", "IR-PCI-MSI\n");
        machine.file("sys/bus/pci/drivers_probe", "");
        machine.file("sys/bus/pci/drivers/vfio-pci/bind", "");
        machine.file("dev/vfio/vfio", "");
        machine
    }

    pub(super) fn file(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn remove(&self, path: &str) {
        let path = self.root.join(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    pub(super) fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// Adds an 82574L with its IOMMU group and its driver.
    pub(super) fn add(&mut self, name: &str, group: Option<u32>, driver: Option<&str>) -> Bdf {
        let bdf: Bdf = name.parse().unwrap();
        self.file(&device(bdf, "class"), "0x020000\n");
        self.file(&device(bdf, "vendor"), "0x8086\n");
        self.file(&device(bdf, "device"), "0x10d3\n");
        self.file(&device(bdf, "driver_override"), "(null)\n");
        if let Some(group) = group {
            let members = format!("sys/kernel/iommu_groups/{group}");
            self.file(&format!("{members}/devices/{bdf}"), "");
            self.link(&device(bdf, "iommu_group"), self.root.join(members));
            self.file(&format!("dev/vfio/{group}"), "");
        }
        if let Some(driver) = driver {
            self.file(&format!("sys/bus/pci/drivers/{driver}/bind"), "");
            self.matching.push((driver.to_owned(), bdf));
            self.attach(bdf, driver);
        }
        bdf
    }

    /// Puts a device, which is to be added, below a bridge.
    pub(super) fn below_bridge(&self, name: &str, bridge: &str) {
        let place = format!("sys/devices/pci0000:00/{bridge}");
        self.file(&format!("{place}/{name}/uevent"), "");
        for (of, at) in [(name, format!("{place}/{name}")), (bridge, place.clone())] {
            self.link(&format!("sys/bus/pci/devices/{of}"), self.root.join(at));
        }
    }

    /// Gives a function a configuration space with a PCI Express capability at `express`.
    pub(super) fn config(&self, bdf: Bdf, express: u8, link_control: u16) {
        let mut space = vec![0; 256];
        space[0x34] = 0xc8;
        space[0xc8..0xca].copy_from_slice(&[0x01, express]);
        space[usize::from(express)] = 0x10;
        space[usize::from(express) + 0x10..][..2].copy_from_slice(&link_control.to_le_bytes());
        let path = self.root.join(device(bdf, "config"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, space).unwrap();
    }

    /// A switch of the kernel for a state of the link, which it changes at both ends.
    fn switch_aspm(&self, bdf: Bdf, bit: u8, on: bool) {
        let ends = [Some((bdf, 0xf0)), self.host.bridge(bdf).map(|bridge| (bridge, 0x50))];
        for (bdf, at) in ends.into_iter().flatten() {
            let path = self.root.join(device(bdf, "config"));
            let mut space = fs::read(&path).unwrap();
            space[at] = if on { space[at] | bit } else { space[at] & !bit };
            fs::write(path, space).unwrap();
        }
    }

    pub(super) fn hold(&self, pid: u32, file: &str) {
        self.link(&format!("proc/{pid}/fd/5"), self.root.join(file));
    }

    pub(super) fn driver_override(&self, bdf: Bdf) -> String {
        self.host.read(&device(bdf, "driver_override")).unwrap()
    }

    fn attach(&self, bdf: Bdf, driver: &str) {
        let folder = self.root.join(format!("sys/bus/pci/drivers/{driver}"));
        fs::write(folder.join("unbind"), "").unwrap();
        self.link(&device(bdf, "driver"), folder);
    }

    fn apply(&self, path: &str, text: &str) -> io::Result<()> {
        let refused = || io::Error::from_raw_os_error(libc::ENODEV);
        if let Some(bdf) = path.strip_prefix("sys/bus/pci/devices/").and_then(|p| p.strip_suffix("/driver_override")) {
            let only = if text == "\n" { "(null)\n" } else { text };
            self.file(&device(bdf.parse().unwrap(), "driver_override"), only);
            return Ok(());
        }
        if let Some((function, switch)) = path.strip_prefix("sys/bus/pci/devices/").and_then(|p| p.split_once("/link/"))
        {
            self.switch_aspm(function.parse().unwrap(), if switch == "l1_aspm" { 2 } else { 1 }, text == "1");
            self.file(path, text);
            return Ok(());
        }
        let bdf: Bdf = text.parse().map_err(io::Error::other)?;
        if path.ends_with("/driver/unbind") {
            return fs::remove_file(self.root.join(device(bdf, "driver")));
        }
        let only = Some(self.driver_override(bdf)).filter(|only| only != "(null)");
        let fits = |driver: &str| match &only {
            Some(only) => only == driver,
            None => self.matching.contains(&(driver.to_owned(), bdf)),
        };
        let driver = match path.strip_prefix("sys/bus/pci/drivers/").and_then(|p| p.strip_suffix("/bind")) {
            Some(driver) if fits(driver) => driver.to_owned(),
            Some(_) => return Err(refused()),
            None => match self.host.list("sys/bus/pci/drivers").into_iter().find(|driver| fits(driver)) {
                Some(driver) => driver,
                None => return Ok(()),
            },
        };
        if self.host.driver(bdf).is_none() {
            self.attach(bdf, &driver);
        }
        Ok(())
    }
}

impl Kernel for FakeHost {
    fn host(&self) -> &Host {
        &self.host
    }

    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.commands.push(format!("{} > {path}", text.trim_end()));
        if self.fails == Some(self.commands.len()) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.apply(path, text)
    }

    fn write_config(&mut self, bdf: Bdf, at: usize, value: u16) -> io::Result<()> {
        self.commands.push(format!("{value:#06x} > {bdf}@{at:#x}"));
        self.host.write_config(bdf, at, value)
    }

    fn in_use(&self, interface: &str) -> Option<String> {
        self.used.as_ref().filter(|used| used.0 == interface).map(|used| used.1.clone())
    }

    fn load_module(&mut self) {
        if self.loadable {
            self.file("sys/bus/pci/drivers/vfio-pci/bind", "");
        }
    }
}

//! A machine made of files, whose kernel does what is written to its files.

use super::bdf::Bdf;
use super::bind::Kernel;
use super::host::{Host, device};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(super) struct Machine {
    // Removed on drop.
    _files: tempfile::TempDir,
    root: PathBuf,
    host: Host,
    /// Drivers, and the device each was made for.
    wants: Vec<(String, Bdf)>,
    /// The command that fails: the how-many-th, from one on.
    pub(super) fails: Option<usize>,
    pub(super) commands: Vec<String>,
    pub(super) carried: Option<(String, String)>,
    pub(super) loadable: bool,
}

impl Machine {
    /// A processor with everything turned on, but without devices.
    pub(super) fn new() -> Machine {
        let files = tempfile::tempdir().unwrap();
        let root = files.path().to_owned();
        let host = Host::below(&root);
        let (wants, commands) = (Vec::new(), Vec::new());
        let machine =
            Machine { _files: files, root, host, wants, fails: None, commands, carried: None, loadable: true };
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

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    /// A network device with its group, and the driver that was made for it.
    pub(super) fn add(&mut self, name: &str, group: Option<u32>, driver: Option<&str>) -> Bdf {
        let bdf: Bdf = name.parse().unwrap();
        self.file(&device(bdf, "class"), "0x020000\n");
        self.file(&device(bdf, "driver_override"), "(null)\n");
        if let Some(group) = group {
            let members = format!("sys/kernel/iommu_groups/{group}");
            self.file(&format!("{members}/devices/{bdf}"), "");
            self.link(&device(bdf, "iommu_group"), self.root.join(members));
            self.file(&format!("dev/vfio/{group}"), "");
        }
        if let Some(driver) = driver {
            self.file(&format!("sys/bus/pci/drivers/{driver}/bind"), "");
            self.wants.push((driver.to_owned(), bdf));
            self.attach(bdf, driver);
        }
        bdf
    }

    pub(super) fn hold(&self, pid: u32, file: &str) {
        self.link(&format!("proc/{pid}/fd/5"), self.root.join(file));
    }

    pub(super) fn only(&self, bdf: Bdf) -> String {
        self.host.read(&device(bdf, "driver_override")).unwrap()
    }

    fn attach(&self, bdf: Bdf, driver: &str) {
        let folder = self.root.join(format!("sys/bus/pci/drivers/{driver}"));
        fs::write(folder.join("unbind"), "").unwrap();
        self.link(&device(bdf, "driver"), folder);
    }

    fn obey(&self, path: &str, text: &str) -> io::Result<()> {
        let refused = || io::Error::from_raw_os_error(libc::ENODEV);
        if let Some(bdf) = path.strip_prefix("sys/bus/pci/devices/").and_then(|p| p.strip_suffix("/driver_override")) {
            let only = if text == "\n" { "(null)\n" } else { text };
            self.file(&device(bdf.parse().unwrap(), "driver_override"), only);
            return Ok(());
        }
        let bdf: Bdf = text.parse().map_err(io::Error::other)?;
        if path.ends_with("/driver/unbind") {
            return fs::remove_file(self.root.join(device(bdf, "driver")));
        }
        let only = Some(self.only(bdf)).filter(|only| only != "(null)");
        let fits = |driver: &str| match &only {
            Some(only) => only == driver,
            None => self.wants.contains(&(driver.to_owned(), bdf)),
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

impl Kernel for Machine {
    fn host(&self) -> &Host {
        &self.host
    }

    fn command(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.commands.push(format!("{} > {path}", text.trim_end()));
        if self.fails == Some(self.commands.len()) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.obey(path, text)
    }

    fn carries(&self, interface: &str) -> Option<String> {
        self.carried.as_ref().filter(|carried| carried.0 == interface).map(|carried| carried.1.clone())
    }

    fn load_module(&mut self) {
        if self.loadable {
            self.file("sys/bus/pci/drivers/vfio-pci/bind", "");
        }
    }
}

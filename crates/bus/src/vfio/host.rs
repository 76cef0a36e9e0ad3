//! What the kernel says in its file systems about devices, drivers and groups.
//!
//! All paths are below one root, so that a test can build a machine out of files.

use super::bdf::Bdf;
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The machine, by its files.
#[derive(Debug, Clone)]
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    /// This one.
    pub(super) fn this() -> Host {
        Host::below("/")
    }

    /// One whose `/sys`, `/dev`, `/proc` and `/run` lie below `root`.
    pub(super) fn below(root: impl Into<PathBuf>) -> Host {
        Host { root: root.into() }
    }

    /// A path below the root; `path` has no leading slash.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text, without blanks at its end.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim_end().to_owned())
    }

    /// Names in a folder, in order; none if it is not there.
    pub(super) fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last part of what a link points to: drivers and groups are told by it.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Whether a device is there.
    pub(super) fn has(&self, bdf: Bdf) -> bool {
        self.exists(&device(bdf, ""))
    }

    /// The driver that has a device.
    pub(super) fn driver(&self, bdf: Bdf) -> Option<String> {
        self.link(&device(bdf, "driver"))
    }

    /// The group of devices that the IOMMU can't tell from this one.
    pub(super) fn group(&self, bdf: Bdf) -> Option<u32> {
        self.link(&device(bdf, "iommu_group"))?.parse().ok()
    }

    /// Whether a device's group is one in name only: nothing translates.
    pub(super) fn unprotected(&self, bdf: Bdf) -> bool {
        self.read(&device(bdf, "iommu_group/name")).as_deref() == Some("vfio-noiommu")
    }

    /// The character device of iommufd for this device: `vfio3`.
    pub(super) fn cdev(&self, bdf: Bdf) -> Option<String> {
        self.list(&device(bdf, "vfio-dev")).into_iter().find(|name| name.starts_with("vfio"))
    }

    /// Interfaces of the kernel that a device carries, its own and those of the functions below it (virtio).
    pub(super) fn interfaces(&self, bdf: Bdf) -> Vec<String> {
        let mut names = self.list(&device(bdf, "net"));
        for below in self.list(&device(bdf, "")) {
            if below.starts_with("virtio") {
                names.extend(self.list(&device(bdf, &format!("{below}/net"))));
            }
        }
        names
    }

    /// Processes that have one of these files open.
    pub(super) fn holders(&self, files: &[String]) -> Vec<u32> {
        let targets: Vec<_> = files.iter().map(|file| self.path(file)).collect();
        let holds = |pid: &u32| {
            self.list(&format!("proc/{pid}/fd")).iter().any(|fd| {
                let open = std::fs::read_link(self.path(&format!("proc/{pid}/fd/{fd}")));
                open.is_ok_and(|open| targets.contains(&open))
            })
        };
        self.list("proc").iter().filter_map(|name| name.parse().ok()).filter(holds).collect()
    }

    /// Files by which a process holds this device: its group's and its own.
    pub(super) fn nodes(&self, bdf: Bdf) -> Vec<String> {
        let mut nodes = Vec::new();
        if let Some(group) = self.group(bdf) {
            let kind = if self.unprotected(bdf) { "noiommu-" } else { "" };
            nodes.push(format!("dev/vfio/{kind}{group}"));
        }
        nodes.extend(self.cdev(bdf).map(|name| format!("dev/vfio/devices/{name}")));
        nodes
    }

    /// Whether this process may read and write a file.
    pub(super) fn may_use(&self, path: &str) -> bool {
        let Ok(path) = CString::new(self.path(path).as_os_str().as_bytes()) else { return false };
        // SAFETY: the path ends with NUL and lives across the call.
        unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
    }

    /// Writes to a file that the kernel takes as a command: with one call, and without making it.
    pub(super) fn write(&self, path: &str, text: &str) -> io::Result<()> {
        use std::io::Write;
        std::fs::OpenOptions::new().write(true).open(self.path(path))?.write_all(text.as_bytes())
    }
}

/// A path of a device below `/sys`.
pub(super) fn device(bdf: Bdf, what: &str) -> String {
    format!("sys/bus/pci/devices/{bdf}/{what}")
}

/// Addresses of an interface of this machine, as text.
pub(super) fn addresses(interface: &str) -> Vec<String> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call fills one pointer, which lives across it.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: the list's members are valid until freeifaddrs, and its last points to null.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        // SAFETY: the name of an entry ends with NUL, and lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if name.to_bytes() == interface.as_bytes() && !entry.ifa_addr.is_null() {
            found.extend(address(entry.ifa_addr));
        }
    }
    // SAFETY: the list is the one that getifaddrs made, and is not used any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// An IPv4 address, or an IPv6 one that somebody chose (each interface that is up has one of its own in fe80::/10).
fn address(at: *const libc::sockaddr) -> Option<String> {
    use std::net::{Ipv4Addr, Ipv6Addr};
    // SAFETY: the caller has a pointer to a socket address of the kind that its first field says.
    unsafe {
        match i32::from((*at).sa_family) {
            libc::AF_INET => {
                let v4 = at.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).to_string())
            }
            libc::AF_INET6 => {
                let v6 = Ipv6Addr::from(at.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr);
                (!v6.is_unicast_link_local()).then(|| v6.to_string())
            }
            _ => None,
        }
    }
}

//! The needs of a port: what it uses of the kernel after its start, as the basis of a sandbox.
//!
//! ```text
//!   Port::needs ──► Needs ─┬─ capabilities   kept, all others are dropped
//!                          ├─ calls          added to those that every datapath makes
//!                          └─ paths          files that are opened, made or removed later
//! ```
//!
//! What a port does only while it opens and starts is not listed: a sandbox is applied afterwards.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A capability of `capabilities(7)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Files of other users, whatever their mode.
    DacOverride = 1,
    /// The configuration of interfaces, and what netlink reports of other namespaces.
    NetAdmin = 12,
    /// AF_PACKET and AF_XDP sockets.
    NetRaw = 13,
    /// Memory beyond `RLIMIT_MEMLOCK` that stays resident.
    IpcLock = 14,
    /// Entering a namespace.
    SysAdmin = 21,
}

impl Capability {
    /// All of them.
    pub const ALL: [Capability; 5] =
        [Capability::DacOverride, Capability::NetAdmin, Capability::NetRaw, Capability::IpcLock, Capability::SysAdmin];

    /// Its name, as in `setcap(8)`.
    pub fn name(self) -> &'static str {
        match self {
            Capability::DacOverride => "cap_dac_override",
            Capability::NetAdmin => "cap_net_admin",
            Capability::NetRaw => "cap_net_raw",
            Capability::IpcLock => "cap_ipc_lock",
            Capability::SysAdmin => "cap_sys_admin",
        }
    }

    /// Its bit in the sets of `capset(2)`.
    pub fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// A group of system calls that not every datapath makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Calls {
    /// Messages and options of sockets that are open.
    Sockets,
    /// Connections of a listening UNIX socket, and memory that is shared with them.
    Accept,
    /// Connections to UNIX sockets.
    Connect,
    /// Length and position of files that are open.
    Files,
    /// Files are opened or made.
    OpenFiles,
    /// Files are removed.
    RemoveFiles,
    /// The state of an interface, by an open socket.
    Interface,
    /// The offloads of a TUN/TAP device, and the end of its steering program.
    Tun,
    /// The memory and the rings that vhost-net reaches.
    VhostNet,
    /// AF_XDP sockets are opened, and the XDP program moves from the driver to the stack.
    Xdp,
    /// A program runs on frames (`BPF_PROG_TEST_RUN`).
    ProgramRun,
    /// Another network namespace is entered.
    Namespaces,
    /// A device is driven by VFIO.
    Vfio,
    /// A device is driven through a kernel module of its own (`towpath_bus::platform`).
    Platform,
    /// Counters of other processes are signalled by asynchronous requests
    /// (`towpath_sys::Signaller`).
    Aio,
}

impl Calls {
    /// All groups.
    pub const ALL: [Calls; 15] = [
        Calls::Sockets,
        Calls::Accept,
        Calls::Connect,
        Calls::Files,
        Calls::OpenFiles,
        Calls::RemoveFiles,
        Calls::Interface,
        Calls::Tun,
        Calls::VhostNet,
        Calls::Xdp,
        Calls::ProgramRun,
        Calls::Namespaces,
        Calls::Vfio,
        Calls::Platform,
        Calls::Aio,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Calls::Sockets => "sockets",
            Calls::Accept => "accept",
            Calls::Connect => "connect",
            Calls::Files => "files",
            Calls::OpenFiles => "open-files",
            Calls::RemoveFiles => "remove-files",
            Calls::Interface => "interface",
            Calls::Tun => "tun",
            Calls::VhostNet => "vhost-net",
            Calls::Xdp => "xdp",
            Calls::ProgramRun => "program-run",
            Calls::Namespaces => "namespaces",
            Calls::Vfio => "vfio",
            Calls::Platform => "platform",
            Calls::Aio => "aio",
        }
    }
}

/// How a path is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PathUse {
    /// The file is opened to be read.
    Read,
    /// Regular files are made, written and removed in the directory.
    MakeFiles,
    /// Files and sockets are removed from the directory.
    Remove,
}

/// What a port uses of the kernel after it was started.
///
/// ```
/// use towpath_packet::port::{Calls, Capability, Needs};
///
/// let tap = Needs::none().calls([Calls::Interface, Calls::Tun]);
/// let both = tap.and(Needs::none().capability(Capability::NetRaw).calls([Calls::Interface]));
/// assert_eq!(both.capabilities().count(), 1);
/// assert!(both.has(Calls::Tun) && !both.has(Calls::Vfio));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    capabilities: BTreeSet<Capability>,
    calls: BTreeSet<Calls>,
    paths: BTreeSet<(PathBuf, PathUse)>,
}

impl Needs {
    /// Nothing beyond what every datapath does: memory, time, threads, wake-ups, and reads and
    /// writes of descriptors that are open.
    pub fn none() -> Needs {
        Needs::default()
    }

    /// With a capability.
    #[must_use]
    pub fn capability(mut self, capability: Capability) -> Needs {
        self.capabilities.insert(capability);
        self
    }

    /// With groups of calls.
    #[must_use]
    pub fn calls(mut self, calls: impl IntoIterator<Item = Calls>) -> Needs {
        self.calls.extend(calls);
        self
    }

    /// With a path, and the calls that its use takes. A relative path is taken from the current
    /// directory.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<Path>, usage: PathUse) -> Needs {
        let path = std::path::absolute(&path).unwrap_or_else(|_| path.as_ref().to_owned());
        self.paths.insert((path, usage));
        self.calls(
            match usage {
                PathUse::Read => &[Calls::OpenFiles][..],
                PathUse::MakeFiles => &[Calls::OpenFiles, Calls::RemoveFiles],
                PathUse::Remove => &[Calls::RemoveFiles],
            }
            .iter()
            .copied(),
        )
    }

    /// With the directory of a path, for a [`PathUse`] of what is in it.
    #[must_use]
    pub fn directory_of(self, path: impl AsRef<Path>, usage: PathUse) -> Needs {
        let parent = path.as_ref().parent().filter(|parent| !parent.as_os_str().is_empty());
        self.path(parent.unwrap_or(Path::new(".")), usage)
    }

    /// What either needs.
    #[must_use]
    pub fn and(mut self, other: Needs) -> Needs {
        self.capabilities.extend(other.capabilities);
        self.calls.extend(other.calls);
        self.paths.extend(other.paths);
        self
    }

    /// Whether it has all that `other` needs.
    pub fn contains(&self, other: &Needs) -> bool {
        other.capabilities.is_subset(&self.capabilities)
            && other.calls.is_subset(&self.calls)
            && other.paths.is_subset(&self.paths)
    }

    /// The capabilities.
    pub fn capabilities(&self) -> impl Iterator<Item = Capability> {
        self.capabilities.iter().copied()
    }

    /// The groups of calls.
    pub fn groups(&self) -> impl Iterator<Item = Calls> {
        self.calls.iter().copied()
    }

    /// Whether a group of calls is among them.
    pub fn has(&self, calls: Calls) -> bool {
        self.calls.contains(&calls)
    }

    /// The paths, absolute.
    pub fn paths(&self) -> impl Iterator<Item = (&Path, PathUse)> {
        self.paths.iter().map(|(path, usage)| (path.as_path(), *usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_a_path_brings_its_calls_and_a_bare_name_means_the_current_directory() {
        let needs = Needs::none().directory_of("trace.pcap", PathUse::MakeFiles);
        assert!(needs.has(Calls::OpenFiles) && needs.has(Calls::RemoveFiles));
        let here = std::env::current_dir().unwrap();
        let (path, usage) = needs.paths().next().unwrap();
        assert_eq!((path.components().as_path(), usage), (here.as_path(), PathUse::MakeFiles));
        let removes = Needs::none().directory_of("/run/towpath.sock", PathUse::Remove);
        assert_eq!(removes.paths().next(), Some((Path::new("/run"), PathUse::Remove)));
        assert!(!removes.has(Calls::OpenFiles));
    }
}

//! Loading programs, attaching them to interfaces, running them.

use super::{Attr, command};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Attachment point of a link to an interface (`BPF_XDP`).
const ATTACH_XDP: u32 = 37;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;

/// Bytes for what the verifier says.
const LOG: usize = 1 << 16;

/// What a program is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Looks into packets (`BPF_PROG_TYPE_SOCKET_FILTER`), as whoever it is handed to likes.
    Filter,
    /// Decides on received frames (`BPF_PROG_TYPE_XDP`).
    Xdp {
        /// It takes packets in several pieces (`BPF_F_XDP_HAS_FRAGS`).
        frags: bool,
    },
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl AsRawFd for Program {
    fn as_raw_fd(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }
}

impl Program {
    /// Hands it to the kernel, which examines it. Takes `CAP_BPF`, and for XDP `CAP_NET_ADMIN`; or neither, for a filter where
    /// `kernel.unprivileged_bpf_disabled` is 0.
    ///
    /// # Errors
    /// What the kernel said, with the last lines of the verifier if it was the verifier's doing.
    pub fn load(kind: Kind, instructions: &[u64], name: &str) -> io::Result<Program> {
        let licence = c"Dual MIT/GPL";
        let (kind, flags) = match kind {
            Kind::Filter => (1, 0),
            Kind::Xdp { frags } => (6, if frags { 0x20 } else { 0 }),
        };
        let attr = || {
            Attr::new()
                .u32(0, kind)
                .u32(4, instructions.len() as u32)
                .at(8, instructions)
                .at(16, licence)
                .u32(44, flags)
                .name(48, name)
        };
        // SAFETY: instructions and licence are borrowed, the count is that of the instructions.
        let error = match unsafe { attr().open(command::PROG_LOAD) } {
            Ok(fd) => return Ok(Program(fd)),
            Err(error) => error,
        };
        // Once more, only to hear why.
        let mut log = vec![0u8; LOG];
        let mut attr = attr().u32(24, 1).u32(28, LOG as u32);
        let address = log.as_mut_ptr().expose_provenance() as u64;
        attr.bytes[32..40].copy_from_slice(&address.to_ne_bytes());
        // SAFETY: as above, and the log has the length that is said.
        if let Ok(fd) = unsafe { attr.open(command::PROG_LOAD) } {
            return Ok(Program(fd));
        }
        let end = log.iter().position(|&b| b == 0).unwrap_or(0);
        let said = String::from_utf8_lossy(&log[..end]);
        let lines: Vec<_> = said.lines().filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            return Err(error);
        }
        let last = lines[lines.len().saturating_sub(6)..].join("; ");
        Err(io::Error::new(error.kind(), format!("{error}: the verifier says: {last}")))
    }

    /// Runs it `repeat` times, each time on a frame of its own that begins with `data`, and lets the kernel do what it
    /// returns, `batch` frames at a time (`BPF_F_TEST_XDP_LIVE_FRAMES`, since Linux 5.18). Interrupted by a signal it has
    /// run fewer times, and says so by an error.
    pub fn run_live(&self, data: &[u8], repeat: u32, batch: u32) -> io::Result<()> {
        let mut attr = Attr::new().fd(0, &self.0).u32(8, data.len() as u32).at(16, data).u32(32, repeat);
        attr = attr.u32(64, LIVE_FRAMES).u32(72, batch);
        // SAFETY: data is borrowed and of the length that is said; nothing is written but the attribute itself.
        unsafe { attr.call(command::PROG_TEST_RUN) }.map(drop)
    }
}

/// Where in the receive path a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// In the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// In the stack, on packets that the driver has made ready for it (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

/// A program attached to an interface, for as long as this value lives.
#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped")]
pub struct Link(OwnedFd);

impl Link {
    /// Attaches `program` to the interface `index` of the calling thread's namespace.
    pub fn attach(program: &Program, index: i32, hook: Hook) -> io::Result<Link> {
        let flags = match hook {
            Hook::Generic => 2,
            Hook::Native => 4,
        };
        let mut attr = Attr::new().fd(0, &program.0).u32(4, index as u32).u32(8, ATTACH_XDP).u32(12, flags);
        // SAFETY: no addresses.
        unsafe { attr.open(command::LINK_CREATE) }.map(Link)
    }
}

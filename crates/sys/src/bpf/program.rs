//! Programs: load, attach to an interface, run.

use super::{Attr, command};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Attach type of a link to an interface (`BPF_XDP`).
const ATTACH_XDP: u32 = 37;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;

/// Bytes of the verifier's log.
const LOG: usize = 1 << 16;

/// Type of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramType {
    /// Reads packets (`BPF_PROG_TYPE_SOCKET_FILTER`); its result means what its user defines.
    SocketFilter,
    /// Decides on received frames (`BPF_PROG_TYPE_XDP`).
    Xdp {
        /// It accepts packets of several fragments (`BPF_F_XDP_HAS_FRAGS`).
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
    /// Loads a program, which the kernel verifies. It needs `CAP_BPF`, and for XDP `CAP_NET_ADMIN`;
    /// a socket filter needs neither if `kernel.unprivileged_bpf_disabled` is 0.
    ///
    /// # Errors
    /// The error of `bpf(2)`, with the last lines of the verifier's log if the verifier refused.
    pub fn load(kind: ProgramType, instructions: &[u64], name: &str) -> io::Result<Program> {
        let licence = c"Dual MIT/GPL";
        let (kind, flags) = match kind {
            ProgramType::SocketFilter => (1, 0),
            ProgramType::Xdp { frags } => (6, if frags { 0x20 } else { 0 }),
        };
        let attr = || {
            Attr::new()
                .u32(0, kind)
                .u32(4, instructions.len() as u32)
                .address(8, instructions)
                .address(16, licence)
                .u32(44, flags)
                .name(48, name)
        };
        // SAFETY: instructions and licence are borrowed, the count is that of the instructions.
        let error = match unsafe { attr().open(command::PROG_LOAD) } {
            Ok(fd) => return Ok(Program(fd)),
            Err(error) => error,
        };
        // Once more, with a log.
        let mut log = vec![0u8; LOG];
        let mut attr = attr().u32(24, 1).u32(28, LOG as u32);
        let address = log.as_mut_ptr().expose_provenance() as u64;
        attr.bytes[32..40].copy_from_slice(&address.to_ne_bytes());
        // SAFETY: as above, and the log has the length that is given.
        if let Ok(fd) = unsafe { attr.open(command::PROG_LOAD) } {
            return Ok(Program(fd));
        }
        let end = log.iter().position(|&b| b == 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&log[..end]);
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            return Err(error);
        }
        let last = lines[lines.len().saturating_sub(6)..].join("; ");
        Err(io::Error::new(error.kind(), format!("{error}: the verifier says: {last}")))
    }

    /// Runs the program `repeat` times, each time on a new frame that begins with `data`, and
    /// executes its verdicts, `batch` frames at a time (`BPF_F_TEST_XDP_LIVE_FRAMES`, since Linux
    /// 5.18).
    ///
    /// # Errors
    /// The error of `bpf(2)`; `Interrupted` if a signal ended the run early.
    pub fn run_live(&self, data: &[u8], repeat: u32, batch: u32) -> io::Result<()> {
        let mut attr = Attr::new().fd(0, &self.0).u32(8, data.len() as u32).address(16, data).u32(32, repeat);
        attr = attr.u32(64, LIVE_FRAMES).u32(72, batch);
        // SAFETY: data is borrowed and has the length that is given; the kernel writes only to the
        // attribute.
        unsafe { attr.call(command::PROG_TEST_RUN) }.map(drop)
    }
}

/// Place of a program in the receive path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// In the stack, on packets that have an `sk_buff` (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

/// A program's attachment to an interface; dropping it detaches the program.
#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped")]
pub struct XdpLink(OwnedFd);

impl XdpLink {
    /// Attaches `program` to the interface `index` of the calling thread's namespace.
    ///
    /// # Errors
    /// The error of `bpf(2)`: `EBUSY` if the interface has a program.
    pub fn attach(program: &Program, index: i32, mode: AttachMode) -> io::Result<XdpLink> {
        let flags = match mode {
            AttachMode::Generic => 2,
            AttachMode::Native => 4,
        };
        let mut attr = Attr::new().fd(0, &program.0).u32(4, index as u32).u32(8, ATTACH_XDP).u32(12, flags);
        // SAFETY: no addresses.
        unsafe { attr.open(command::LINK_CREATE) }.map(XdpLink)
    }
}

//! Programs: load, attach to an interface, run.

use super::btf::Btf;
use super::{Attr, command};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
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
pub struct Program {
    fd: OwnedFd,
    /// Why it has no BTF.
    no_btf: Option<io::Error>,
}

impl AsRawFd for Program {
    fn as_raw_fd(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }
}

impl Program {
    /// Loads a program, which the kernel verifies. It needs `CAP_BPF`, and for XDP `CAP_NET_ADMIN`;
    /// a socket filter needs neither if `kernel.unprivileged_bpf_disabled` is 0. A program of XDP
    /// has BTF, which names its function and its argument for `bpftool` and `xdpdump`, where the
    /// kernel takes it ([`no_btf`](Program::no_btf)).
    ///
    /// # Errors
    /// The error of `bpf(2)`, with the last lines of the verifier's log if the verifier refused.
    pub fn load(kind: ProgramType, instructions: &[u64], name: &str) -> io::Result<Program> {
        let licence = c"Dual MIT/GPL";
        let (kind, flags) = match kind {
            ProgramType::SocketFilter => (1, 0),
            ProgramType::Xdp { frags } => (XDP, if frags { 0x20 } else { 0 }),
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
        let described = (kind == XDP).then(|| {
            let btf = Btf::of_xdp(name)?;
            let mut attr = attr().fd(72, &btf).u32(76, size_of_val(&btf.functions) as u32).u32(88, 1);
            attr = attr.address(80, &btf.functions);
            // SAFETY: as below; one record of the size that is given is borrowed.
            unsafe { attr.open(command::PROG_LOAD) }
        });
        let no_btf = match described {
            Some(Ok(fd)) => return Ok(Program { fd, no_btf: None }),
            Some(Err(error)) => Some(error),
            None => None,
        };
        // SAFETY: instructions and licence are borrowed, the count is that of the instructions.
        let error = match unsafe { attr().open(command::PROG_LOAD) } {
            Ok(fd) => return Ok(Program { fd, no_btf }),
            Err(error) => error,
        };
        // Once more, with a log.
        let mut log = vec![0u8; LOG];
        let mut attr = attr().u32(24, 1).u32(28, LOG as u32);
        let address = log.as_mut_ptr().expose_provenance() as u64;
        attr.bytes[32..40].copy_from_slice(&address.to_ne_bytes());
        // SAFETY: as above, and the log has the length that is given.
        if let Ok(fd) = unsafe { attr.open(command::PROG_LOAD) } {
            return Ok(Program { fd, no_btf });
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

    /// Why a program of XDP has no BTF: the kernel refused it, and has taken the program without.
    pub fn no_btf(&self) -> Option<&io::Error> {
        self.no_btf.as_ref()
    }

    /// Runs the program `repeat` times, each time on a new frame that begins with `data`, and
    /// executes its verdicts, `batch` frames at a time (`BPF_F_TEST_XDP_LIVE_FRAMES`, since Linux
    /// 5.18).
    ///
    /// # Errors
    /// The error of `bpf(2)`; `Interrupted` if a signal ended the run early.
    pub fn run_live(&self, data: &[u8], repeat: u32, batch: u32) -> io::Result<()> {
        let mut attr = Attr::new().fd(0, &self.fd).u32(8, data.len() as u32).address(16, data).u32(32, repeat);
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
        let mut attr = Attr::new().fd(0, &program.fd).u32(4, index as u32).u32(8, ATTACH_XDP).u32(12, flags);
        // SAFETY: no addresses.
        unsafe { attr.open(command::LINK_CREATE) }.map(XdpLink)
    }
}

#[cfg(test)]
mod tests {
    use super::super::asm::{Alu, Asm, R0};
    use super::*;
    use towpath_testing::{Need, needs};

    #[test]
    fn a_program_whose_types_the_kernel_refuses_is_loaded_without_them_and_says_why() {
        if !needs("a_program_whose_types_the_kernel_refuses_is_loaded_without_them_and_says_why", &[Need::Root]) {
            return;
        }
        let mut pass = Asm::default();
        pass.imm(Alu::Mov, R0, 2);
        pass.exit();
        let pass = pass.finish().unwrap();
        let load = |name| Program::load(ProgramType::Xdp { frags: false }, &pass, name).unwrap();
        // A function of C begins with no digit, a program may.
        let why = load("1st").no_btf().map(io::Error::raw_os_error);
        assert_eq!(why, Some(Some(libc::EINVAL)));
        // A kernel without BTF refuses each.
        let has_btf = std::path::Path::new("/sys/kernel/btf/vmlinux").exists();
        assert_eq!(load("named").no_btf().is_none(), has_btf);
    }
}

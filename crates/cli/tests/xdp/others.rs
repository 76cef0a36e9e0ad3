//! Other users of an interface, set up by the kernel's own means.

use crate::support::Namespace;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const CHUNKS: usize = 64;
const CHUNK: usize = 2048;

#[track_caller]
fn done(result: libc::c_long) -> i32 {
    assert!(result >= 0, "{}", Error::last_os_error());
    result as i32
}

fn index(name: &str) -> u32 {
    let name = std::ffi::CString::new(name).expect("no zero inside");
    // SAFETY: a string that ends with a zero byte.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) {
    let (at, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: address and length describe the borrowed value, which the kernel only reads.
    done(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, at, len) }.into());
}

/// An AF_XDP socket on the first queue of an interface, without a program; its memory is never
/// used.
pub(crate) fn socket_on(ns: &Namespace, interface: &str) -> Result<OwnedFd, Error> {
    ns.inside(|| {
        // SAFETY: no pointers; the descriptor is new.
        let fd = unsafe {
            OwnedFd::from_raw_fd(done(libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0).into()))
        };
        let len = CHUNKS * CHUNK;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses. It stays for as long as the
        // test runs.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let (addr, len) = (memory.expose_provenance() as u64, len as u64);
        let umem =
            libc::xdp_umem_reg { addr, len, chunk_size: CHUNK as u32, headroom: 0, flags: 0, tx_metadata_len: 0 };
        set(&fd, libc::XDP_UMEM_REG, &umem);
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            set(&fd, ring, &(CHUNKS as u32));
        }
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: index(interface),
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address and its length describe one sockaddr_xdp.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 { Err(Error::last_os_error()) } else { Ok(fd) }
    })
}

/// `bpf(2)`: a command that makes a descriptor.
fn bpf(command: libc::c_long, attributes: &[u32; 32]) -> OwnedFd {
    // SAFETY: attributes and their length describe the borrowed array; what it points to lives in
    // the callers.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    // SAFETY: a new descriptor.
    unsafe { OwnedFd::from_raw_fd(done(fd)) }
}

/// A program that passes everything, attached to an interface while the returned descriptor lives.
pub(crate) fn program_on(ns: &Namespace, interface: &str) -> OwnedFd {
    const XDP: u32 = 6;
    const ATTACH: u32 = 37;
    // r0 = XDP_PASS, exit.
    let code = [0x0000_0002_0000_00b7_u64, 0x95];
    let split = |address: usize| [address as u32, (address as u64 >> 32) as u32];
    let ([code_low, code_high], [licence_low, licence_high]) =
        (split(code.as_ptr().expose_provenance()), split(c"MIT".as_ptr().expose_provenance()));
    let mut load = [0; 32];
    load[..6].copy_from_slice(&[XDP, code.len() as u32, code_low, code_high, licence_low, licence_high]);
    let program = bpf(5, &load);
    let index = ns.inside(|| index(interface));
    let mut link = [0; 32];
    link[..4].copy_from_slice(&[program.as_raw_fd() as u32, index, ATTACH, 0]);
    ns.inside(|| bpf(28, &link))
}

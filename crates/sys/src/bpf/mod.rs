//! BPF programs and maps: assembled here, loaded by `bpf(2)` (`include/uapi/linux/bpf.h`).
//!
//! ```text
//!   Asm ── finish ──► [u64] ── Program::load ──► Program ─┬─ XdpLink::attach ──► an interface
//!    ▲                   ▲        the verifier's log      ├─ descriptor, for a tap's steering
//!   Map, by fd         BTF: its name and arguments       └─ run_live: run now, on frames from this process
//!    └ mapped: its values as memory of this process
//! ```
//!
//! | file | |
//! |---|---|
//! | `asm` | the assembler |
//! | `program`, `map` | programs: loaded, attached, run; memory that they share with this process |
//! | `btf` | type information: a program's name and arguments |
//!
//! Programs, maps and links are descriptors, which the kernel closes with the process: a killed
//! process leaves none behind.

pub mod asm;
mod btf;
mod map;
mod program;

pub use map::{Map, MapMemory, MapType};
pub use program::{AttachMode, Program, ProgramType, XdpLink};

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of `bpf(2)`.
mod command {
    pub(super) const MAP_CREATE: libc::c_long = 0;
    pub(super) const MAP_UPDATE_ELEM: libc::c_long = 2;
    pub(super) const MAP_DELETE_ELEM: libc::c_long = 3;
    pub(super) const PROG_LOAD: libc::c_long = 5;
    pub(super) const PROG_TEST_RUN: libc::c_long = 10;
    pub(super) const BTF_LOAD: libc::c_long = 18;
    pub(super) const LINK_CREATE: libc::c_long = 28;
}

/// Bytes of `union bpf_attr` that are passed: all members used here. Every kernel accepts zeroes
/// behind those that it knows.
const ATTR: usize = 120;

/// `union bpf_attr`, written at the offsets of its members.
#[repr(C, align(8))]
struct Attr<'a> {
    bytes: [u8; ATTR],
    /// The memory that its addresses point to.
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Attr<'a> {
    fn new() -> Attr<'a> {
        Attr { bytes: [0; ATTR], borrowed: PhantomData }
    }

    fn u32(mut self, at: usize, value: u32) -> Attr<'a> {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: &impl AsRawFd) -> Attr<'a> {
        self.u32(at, fd.as_raw_fd() as u32)
    }

    fn address<T: ?Sized>(mut self, at: usize, value: &'a T) -> Attr<'a> {
        // Exposed: the kernel reads there.
        let address = (value as *const T).cast::<u8>().expose_provenance() as u64;
        self.bytes[at..at + 8].copy_from_slice(&address.to_ne_bytes());
        self
    }

    fn name(mut self, at: usize, name: &str) -> Attr<'a> {
        for (to, from) in self.bytes[at..at + 15].iter_mut().zip(name.bytes()) {
            *to = from;
        }
        self
    }

    /// # Safety
    /// Addresses in it are readable, and where the command writes, writable, for as many bytes as
    /// the command uses.
    unsafe fn call(&mut self, command: libc::c_long) -> io::Result<libc::c_long> {
        // SAFETY: the attribute and its length describe this value; its addresses are the caller's
        // promise.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.bytes.as_mut_ptr(), ATTR) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }

    /// # Safety
    /// As for `call`; the command returns a new descriptor.
    unsafe fn open(&mut self, command: libc::c_long) -> io::Result<OwnedFd> {
        // SAFETY: passed on from the caller; the descriptor is new and has no other owner.
        unsafe { Ok(OwnedFd::from_raw_fd(self.call(command)? as libc::c_int)) }
    }
}

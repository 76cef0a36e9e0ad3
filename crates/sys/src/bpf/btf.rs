//! BTF (`Documentation/bpf/btf.rst`): the types by which the kernel identifies a program's
//! function.
//!
//! `bpftool prog` names functions by them, and a program attaches to another one's entry and exit
//! (`fentry`, as `xdpdump` does) only if that has them. What is written here is
//!
//! ```text
//!   [1] int    [2] struct xdp_md    [3] ─► [2]    [4] int (struct xdp_md *ctx)    [5] NAME: [4]
//! ```

use super::{Attr, command};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Words of the header, without those that follow.
const HEADER: u32 = 24;
/// Kinds of types (`BTF_KIND_*`), at their place in a type's second word.
mod kind {
    pub(super) const INT: u32 = 1 << 24;
    pub(super) const PTR: u32 = 2 << 24;
    pub(super) const STRUCT: u32 = 4 << 24;
    pub(super) const FUNC: u32 = 12 << 24;
    pub(super) const FUNC_PROTO: u32 = 13 << 24;
}
/// A signed integer of 32 bits, as `BTF_KIND_INT` has it behind its size.
const SIGNED_32: u32 = 1 << 24 | 32;
/// Bytes of `struct xdp_md`. Its members are not described: the kernel identifies the context by
/// the name.
const XDP_MD: u32 = 24;
/// `BTF_FUNC_GLOBAL`.
const GLOBAL: u32 = 1;
/// The number of the function's type.
const FUNCTION: u32 = 5;

/// Types in the kernel. A program that was loaded with them keeps them.
#[derive(Debug)]
pub(super) struct Btf {
    fd: OwnedFd,
    /// `struct bpf_func_info` of the only function: its first instruction, its type.
    pub(super) functions: [u32; 2],
}

impl Btf {
    /// The types of an XDP program that is one function of this name.
    ///
    /// # Errors
    /// The error of `bpf(2)`: `EPERM` without `CAP_BPF` (before Linux 5.8 `CAP_SYS_ADMIN`),
    /// `EINVAL` where the kernel is built without BTF or takes the name for none of C.
    pub(super) fn of_xdp(name: &str) -> io::Result<Btf> {
        let bytes = xdp(name);
        let mut attr = Attr::new().address(0, &*bytes).u32(16, bytes.len() as u32);
        // SAFETY: the bytes are borrowed and have the length that is given; there is no log.
        let fd = unsafe { attr.open(command::BTF_LOAD) }?;
        Ok(Btf { fd, functions: [0, FUNCTION] })
    }
}

impl AsRawFd for Btf {
    fn as_raw_fd(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }
}

/// Header, types, names.
fn xdp(name: &str) -> Vec<u8> {
    let mut names = vec![0];
    let mut named = |text: &str| {
        let at = names.len() as u32;
        names.extend(text.bytes().chain([0]));
        at
    };
    let (int, md, ctx, function) = (named("int"), named("xdp_md"), named("ctx"), named(name));
    let types = [
        &[int, kind::INT, 4, SIGNED_32][..],
        &[md, kind::STRUCT, XDP_MD],
        &[0, kind::PTR, 2],
        &[0, kind::FUNC_PROTO | 1, 1, ctx, 3],
        &[function, kind::FUNC | GLOBAL, 4],
    ]
    .concat();
    let (length, text) = (4 * types.len() as u32, names.len() as u32);
    // Magic, version 1, flags; then lengths and places behind the header.
    let words = [0xeb9f | 1 << 16, HEADER, 0, length, length, text];
    words.iter().chain(&types).flat_map(|word| word.to_ne_bytes()).chain(names).collect()
}

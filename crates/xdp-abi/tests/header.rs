//! The library and the headers of libxdp agree.

mod support;

use std::mem::{offset_of, size_of};
use std::process::Command;
use towpath_xdp::abi::{
    BIND_COPY, BIND_NEED_WAKEUP, BIND_ZEROCOPY, Desc, INHIBIT_PROG_LOAD, Ring, SocketConfig, UMEM_UNALIGNED, UmemConfig,
};
use towpath_xdp::opts::{SocketOpts, UmemOpts};

#[test]
fn structures_and_constants_are_those_of_the_header() {
    if !support::can_compile("structures_and_constants_are_those_of_the_header") {
        return;
    }
    let defines = [
        ("RING_CACHED_PROD", offset_of!(Ring, cached_prod)),
        ("RING_CACHED_CONS", offset_of!(Ring, cached_cons)),
        ("RING_MASK", offset_of!(Ring, mask)),
        ("RING_SIZE", offset_of!(Ring, size)),
        ("RING_PRODUCER", offset_of!(Ring, producer)),
        ("RING_CONSUMER", offset_of!(Ring, consumer)),
        ("RING_RING", offset_of!(Ring, ring)),
        ("RING_FLAGS", offset_of!(Ring, flags)),
        ("RING_BYTES", size_of::<Ring>()),
        ("DESC_ADDR", offset_of!(Desc, addr)),
        ("DESC_LEN", offset_of!(Desc, len)),
        ("DESC_OPTIONS", offset_of!(Desc, options)),
        ("DESC_BYTES", size_of::<Desc>()),
        ("UMEM_FILL_SIZE", offset_of!(UmemConfig, fill_size)),
        ("UMEM_COMP_SIZE", offset_of!(UmemConfig, comp_size)),
        ("UMEM_FRAME_SIZE", offset_of!(UmemConfig, frame_size)),
        ("UMEM_FRAME_HEADROOM", offset_of!(UmemConfig, frame_headroom)),
        ("UMEM_FLAGS", offset_of!(UmemConfig, flags)),
        ("UMEM_BYTES", size_of::<UmemConfig>()),
        ("SOCKET_RX_SIZE", offset_of!(SocketConfig, rx_size)),
        ("SOCKET_TX_SIZE", offset_of!(SocketConfig, tx_size)),
        ("SOCKET_LIBXDP_FLAGS", offset_of!(SocketConfig, libxdp_flags)),
        ("SOCKET_XDP_FLAGS", offset_of!(SocketConfig, xdp_flags)),
        ("SOCKET_BIND_FLAGS", offset_of!(SocketConfig, bind_flags)),
        ("SOCKET_BYTES", size_of::<SocketConfig>()),
        ("UMEM_OPTS_SIZE", offset_of!(UmemOpts, size)),
        ("UMEM_OPTS_TX_METADATA_LEN", offset_of!(UmemOpts, tx_metadata_len)),
        ("UMEM_OPTS_BYTES", size_of::<UmemOpts>()),
        ("SOCKET_OPTS_COMP", offset_of!(SocketOpts, comp)),
        ("SOCKET_OPTS_BIND_FLAGS", offset_of!(SocketOpts, bind_flags)),
        ("SOCKET_OPTS_BYTES", size_of::<SocketOpts>()),
        ("BIND_COPY", BIND_COPY.into()),
        ("BIND_ZEROCOPY", BIND_ZEROCOPY.into()),
        ("BIND_NEED_WAKEUP", BIND_NEED_WAKEUP.into()),
        ("UMEM_UNALIGNED", UMEM_UNALIGNED as usize),
        ("INHIBIT_PROG_LOAD", INHIBIT_PROG_LOAD as usize),
        ("DEFAULT_RING", SocketConfig::default().rx_size as usize),
        ("DEFAULT_FRAME", UmemConfig::default().frame_size as usize),
        ("OFFSET_SHIFT", 48),
    ];
    let mut cc = Command::new("cc");
    cc.args(["-fsyntax-only", "-Wall", "-Werror"]).arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/layout.c"));
    cc.args(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The functions `xsk_…` of a library.
fn functions(library: &std::path::Path) -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2)?.split('@').next());
    names.filter(|name| name.starts_with("xsk_")).map(str::to_owned).collect()
}

#[test]
fn every_af_xdp_function_of_libxdp_is_exported() {
    if !support::can_compile("every_af_xdp_function_of_libxdp_is_exported") {
        return;
    }
    let libxdp = Command::new("cc").arg("-print-file-name=libxdp.so").output().unwrap().stdout;
    let theirs = functions(std::path::Path::new(String::from_utf8(libxdp).unwrap().trim()));
    let ours = functions(&support::Programs::new().library());
    assert!(theirs.len() >= 25, "{theirs:?}");
    let missing: Vec<_> = theirs.iter().filter(|name| !ours.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

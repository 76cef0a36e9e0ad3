//! The kernel-backed ports against the real kernel, each test in network namespaces of its own.

// A helper of a test fails the test, as the test itself would.

mod support;

#[path = "kernel_ports/common.rs"]
mod common;
#[path = "kernel_ports/packet.rs"]
mod packet;
#[path = "kernel_ports/tap.rs"]
mod tap;
#[path = "kernel_ports/xdp.rs"]
mod xdp;

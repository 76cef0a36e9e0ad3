//! The kernel-backed ports against the real kernel, each test in network namespaces of its own.

mod support;

#[path = "kernel_ports/common.rs"]
mod common;
#[path = "kernel_ports/packet.rs"]
mod packet;
#[path = "kernel_ports/tap.rs"]
mod tap;

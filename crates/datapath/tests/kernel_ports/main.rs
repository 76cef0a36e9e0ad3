//! The kernel-backed ports against the real kernel, each test in network namespaces of its own.

mod common;
mod packet;
#[path = "../support/mod.rs"]
mod support;
mod tap;
mod xdp;

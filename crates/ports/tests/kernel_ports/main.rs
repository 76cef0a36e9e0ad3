//! The kernel-backed ports against the real kernel, each test in network namespaces of its own.

mod common;
mod edges;
mod packet;
use towpath_testing as support;
mod tap;
mod xdp;

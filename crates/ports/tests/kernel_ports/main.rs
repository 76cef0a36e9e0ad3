//! The kernel-backed ports against the real kernel, each test in network namespaces of its own.
//!
//! | module | what |
//! |---|---|
//! | `tap` | TAP and TUN |
//! | `packet` | AF_PACKET |
//! | `xdp` | AF_XDP |
//! | `edges` | what the kernel lost around a port |
//! | `common` | pools, packets, waits |

mod common;
mod edges;
mod packet;
use towpath_testing as support;
mod tap;
mod xdp;

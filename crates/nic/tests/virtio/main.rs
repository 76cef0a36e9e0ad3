//! The driver of virtio network devices, against back ends of vhost-user and QEMU's device.
//!
//! | module | what |
//! |---|---|
//! | `model` | the driver on the model: every kind of ring, and a device that breaks its own rules |
//! | `rings`, `chains` | a back end that is stepped by hand; super-packets in chains |
//! | `testpmd` | DPDK's `net_vhost` |
//! | `qtest`, `frames` | QEMU's `virtio-net-pci`; many frames behind an IOMMU |
//! | `filter`, `hashing` | what QEMU's device filters, and the hash that it reports |
//! | `backend`, `rig` | that back end; a port that runs on it |

mod backend;
mod chains;
mod filter;
mod frames;
mod hashing;
mod memory;
mod model;
mod qtest;
mod rig;
mod rings;
mod testpmd;

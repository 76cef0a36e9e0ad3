//! The driver of virtio network devices, against back ends of vhost-user and QEMU's device.

mod backend;
mod chains;
mod filter;
mod frames;
mod hashing;
mod model;
mod qtest;
mod rig;
mod rings;
mod testpmd;

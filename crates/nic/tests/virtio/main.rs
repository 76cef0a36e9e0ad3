//! The driver of virtio network devices, against back ends of vhost-user.

mod backend;
mod rig;
mod rings;
mod testpmd;

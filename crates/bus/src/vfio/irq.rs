//! Interrupts as eventfds.

use crate::bus::Irq;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// An interrupt of a device: an eventfd that the kernel signals (`eventfd(2)`). Dropping it does
/// not disable the interrupt: call [`Bus::irqs`](crate::Bus::irqs) with 0, or drop the bus.
#[derive(Debug, Clone)]
pub struct VfioIrq(Arc<File>);

impl VfioIrq {
    pub(super) fn new() -> std::io::Result<VfioIrq> {
        Ok(VfioIrq(Arc::new(super::ioctl::eventfd()?)))
    }
}

impl Irq for VfioIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }

    fn take(&self) -> u64 {
        let mut count = [0; 8];
        match (&*self.0).read(&mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

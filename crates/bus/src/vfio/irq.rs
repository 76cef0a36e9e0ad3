//! Interrupts as eventfds.

use crate::bus::Irq;
use std::os::fd::RawFd;
use std::sync::Arc;
use towpath_sys::EventFd;

/// An interrupt of a device: an eventfd that the kernel signals (`eventfd(2)`). Dropping it does
/// not disable the interrupt: call [`Bus::irqs`](crate::Bus::irqs) with 0, or drop the bus.
#[derive(Debug, Clone)]
pub struct VfioIrq(Arc<EventFd>);

impl VfioIrq {
    pub(super) fn new() -> std::io::Result<VfioIrq> {
        Ok(VfioIrq(Arc::new(EventFd::new()?)))
    }
}

impl Irq for VfioIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.0.fd())
    }

    fn take(&self) -> u64 {
        self.0.take()
    }
}

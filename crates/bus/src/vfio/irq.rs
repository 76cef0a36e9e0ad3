//! Interrupts as eventfds.

use super::device::VfioDevice;
use super::{abi, ioctl};
use crate::bus::Irq;
use std::os::fd::RawFd;
use std::sync::Arc;
use towpath_sys::EventFd;

/// An interrupt of a device: an eventfd that the kernel signals (`eventfd(2)`). Dropping it does
/// not disable the interrupt: call [`Bus::irqs`](crate::Bus::irqs) with 0, or drop the bus.
#[derive(Debug, Clone)]
pub struct VfioIrq {
    event: Arc<EventFd>,
    /// The device of a line, which the kernel masks when it fires. Like a BAR, it keeps the device
    /// open.
    line: Option<Arc<VfioDevice>>,
}

impl VfioIrq {
    pub(super) fn new(line: Option<Arc<VfioDevice>>) -> std::io::Result<VfioIrq> {
        Ok(VfioIrq { event: Arc::new(EventFd::new()?), line })
    }
}

impl Irq for VfioIrq {
    fn fd(&self) -> Option<RawFd> {
        Some(self.event.fd())
    }

    fn take(&self) -> u64 {
        self.event.take()
    }

    fn unmask(&self) {
        if let Some(device) = &self.line {
            // It fails only for a device that is gone, whose line is never asserted again.
            let _ = ioctl::unmask_irq(device.file(), abi::IRQ_INTX);
        }
    }
}

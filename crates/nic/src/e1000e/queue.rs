//! The queues of a started port: a core each (what is done with frames), and what ties it to its device.

mod receive;
mod transmit;

pub use receive::E1000eRx;
pub(super) use receive::RxMake;
pub use transmit::E1000eTx;

use super::device::{Device, Joined, Ticket};
use super::rx::RxCore;
use super::tx::TxCore;
use std::sync::Arc;
use towpath_bus::Pci;
use towpath_packet::port::State;

const NO_LINK: &str = "no link";
const GAVE_UP: &str = "the device does not answer, or hangs after every reset";

/// A queue as a member of its device.
struct Member<B: Pci> {
    device: Arc<Device<B>>,
    ticket: Ticket,
    /// What it has moved since the last reset.
    since_reset: u64,
}

impl<B: Pci> Member<B> {
    fn new(device: Arc<Device<B>>) -> Member<B> {
        Member { ticket: device.ticket(), since_reset: 0, device }
    }

    fn device(&self) -> &Device<B> {
        &self.device
    }

    /// Whether the queue may go on, as long as nobody asks for a reset.
    fn is_running(&self) -> bool {
        self.device.runs(&self.ticket)
    }

    /// Whether the queue may go on; if not, it waits for a reset, or is done. After a reset `restart` empties its ring first.
    #[inline]
    fn runs(&mut self, restart: impl FnOnce()) -> bool {
        self.device.runs(&self.ticket) || self.join(restart)
    }

    #[cold]
    fn join(&mut self, restart: impl FnOnce()) -> bool {
        if self.device.join(&mut self.ticket) != Joined::Restart {
            return false;
        }
        restart();
        self.since_reset = 0;
        true
    }

    /// Counts what tells a reset that helped from one in a row of many.
    #[inline]
    fn moved(&mut self, packets: u64) {
        self.since_reset += packets;
    }

    /// Asks for a reset.
    #[cold]
    fn ask_reset(&self) {
        self.device.ask_reset(&self.ticket, self.since_reset > 0);
    }

    fn state(&self) -> State {
        if self.device.is_gone() {
            State::Gone(GAVE_UP.into())
        } else if self.device.control.link_is_up() {
            State::Up
        } else {
            State::Down(NO_LINK.into())
        }
    }

    fn leave_rx(&self, core: RxCore<B::Dma>) {
        self.device.leave_rx(&self.ticket, core);
    }

    fn leave_tx(&self, core: TxCore<B::Dma>) {
        self.device.leave_tx(&self.ticket, core);
    }
}

//! The state of an interface, read at intervals because each read is a system call.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::State;
use towpath_sys::netdev::{Control, LinkState};

/// Time between two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One queue's poll of its interface.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    control: Arc<Control>,
    index: i32,
    next: Instant,
}

impl LinkWatch {
    pub(crate) fn new(control: Arc<Control>, index: i32) -> LinkWatch {
        LinkWatch { control, index, next: Instant::now() }
    }

    /// The state of the link; `None` before the interval has passed.
    #[inline]
    pub(crate) fn poll(&mut self) -> Option<LinkState> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + POLL_INTERVAL;
        Some(self.control.link_state(self.index))
    }
}

/// The state of a queue whose interface has no link.
pub(crate) fn down(link: LinkState) -> State {
    State::Down(Cow::Borrowed(match link {
        LinkState::NoCarrier => "no carrier",
        _ => "the interface is not up",
    }))
}

/// The state of a queue whose interface was deleted.
pub(crate) fn gone() -> State {
    State::Gone(Cow::Borrowed("the interface was deleted"))
}

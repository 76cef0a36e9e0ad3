//! Is the interface up, down, or gone? Asked now and then, because asking is a system call.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::State;
use towpath_sys::netdev::{Control, Link};

/// Time between two questions.
const EVERY: Duration = Duration::from_millis(100);

/// One queue's watch over its interface.
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

    /// How the link is, or `None` when that was asked a moment ago.
    #[inline]
    pub(crate) fn look(&mut self) -> Option<Link> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        Some(self.control.link(self.index))
    }
}

/// The state of a queue whose interface has no link.
pub(crate) fn down(link: Link) -> State {
    State::Down(Cow::Borrowed(match link {
        Link::NoCarrier => "no carrier",
        _ => "the interface is not up",
    }))
}

/// The state of a queue whose interface does not exist any more.
pub(crate) fn gone() -> State {
    State::Gone(Cow::Borrowed("the interface was deleted"))
}

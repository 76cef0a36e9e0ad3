//! The state of an interface, read at intervals because each read is a system call.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::port::{Ability, State};
use towpath_sys::netdev::{Control, LinkState};

/// Time between two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The reason of [`State::Down`] for an interface that is not set up.
pub const NOT_UP: &str = "the interface is not up";

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

/// The report of an interface's link. A link that is down is no error: it may come up.
pub(crate) fn ability(interface: &str, netns: Option<&str>, link: LinkState) -> Ability {
    let why = match link {
        LinkState::Up => "up, with carrier",
        LinkState::NoCarrier => "no carrier: the other end is not there, or not up",
        LinkState::Down | LinkState::Absent => NOT_UP,
    };
    let hint = format!("{} link set dev {interface} up", ip_command(netns));
    let hint = Some(hint).filter(|_| link != LinkState::NoCarrier);
    Ability::new(Ability::LINK, link == LinkState::Up, why).with_hint(hint)
}

/// The `ip` command for a namespace.
pub(crate) fn ip_command(netns: Option<&str>) -> String {
    match netns {
        None => "ip".to_owned(),
        Some(path) if path.contains('/') => format!("nsenter --net={path} ip"),
        Some(name) => format!("ip -n {name}"),
    }
}

/// The state of a queue whose interface has no link.
pub(crate) fn down(link: LinkState) -> State {
    State::Down(Cow::Borrowed(match link {
        LinkState::NoCarrier => "no carrier",
        _ => NOT_UP,
    }))
}

/// A packet passed: the link is up, whatever was read last.
#[inline]
pub(crate) fn passed(state: &mut State) {
    if matches!(state, State::Down(_)) {
        *state = State::Up;
    }
}

/// The state of a queue whose interface was deleted.
pub(crate) fn gone() -> State {
    State::Gone(Cow::Borrowed("the interface was deleted"))
}

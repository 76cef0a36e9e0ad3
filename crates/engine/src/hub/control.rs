//! Attaches and detaches ports of a running hub, from another thread.
//!
//! A command is put into the inbox, and the eventfd wakes the hub's thread if it sleeps. A busy hub
//! looks at one flag per turn. Each command is acknowledged. Once a hub has ended, its inbox
//! refuses commands.

use super::HubPort;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use towpath_packet::Offloads;
use towpath_packet::port::State;
use towpath_sys::EventFd;

/// How a detached port left.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// Why packets that its queue had taken were not sent.
    pub failure: Option<String>,
}

pub(super) enum Command<R, T, P> {
    Attach { number: usize, port: Box<HubPort<R, T, P>>, reply: Sender<()> },
    Offloads(Offloads),
    Detach { number: usize, drain: Duration, reply: Sender<Left> },
}

/// Commands for a hub.
pub(super) struct Inbox<R, T, P> {
    has_commands: AtomicBool,
    event: EventFd,
    state: Mutex<InboxState<R, T, P>>,
}

struct InboxState<R, T, P> {
    commands: Vec<Command<R, T, P>>,
    lost: Vec<(usize, State)>,
    is_closed: bool,
}

impl<R, T, P> Inbox<R, T, P> {
    pub(super) fn new() -> io::Result<Inbox<R, T, P>> {
        let state = InboxState { commands: Vec::new(), lost: Vec::new(), is_closed: false };
        Ok(Inbox { has_commands: AtomicBool::new(false), event: EventFd::new()?, state: Mutex::new(state) })
    }

    fn with<X>(&self, f: impl FnOnce(&mut InboxState<R, T, P>) -> X) -> X {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[inline]
    pub(super) fn has_commands(&self) -> bool {
        // The lock orders the commands behind the flag.
        self.has_commands.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<Command<R, T, P>> {
        self.event.clear();
        self.with(|state| {
            self.has_commands.store(false, Ordering::Relaxed);
            std::mem::take(&mut state.commands)
        })
    }

    /// Queues a command; false if the hub has ended.
    fn put(&self, command: Command<R, T, P>) -> bool {
        let is_open = self.with(|state| {
            if !state.is_closed {
                state.commands.push(command);
                self.has_commands.store(true, Ordering::Relaxed);
            }
            !state.is_closed
        });
        self.event.signal();
        is_open
    }

    pub(super) fn lost(&self, number: usize, state: &State) {
        self.with(|inbox| inbox.lost.push((number, state.clone())));
    }

    /// A port that was lost is detached: another one may get its number.
    pub(super) fn forget_lost(&self, number: usize) {
        self.with(|inbox| inbox.lost.retain(|(lost, _)| *lost != number));
    }

    /// The hub has ended: what was not obeyed is dropped, which closes its channel of replies.
    pub(super) fn close(&self) {
        let commands = self.with(|state| {
            state.is_closed = true;
            std::mem::take(&mut state.commands)
        });
        drop(commands);
    }

    pub(super) fn fd(&self) -> RawFd {
        self.event.fd()
    }
}

/// A handle to a hub, for other threads; a clone refers to the same hub.
pub struct HubControl<R, T, P> {
    inbox: Arc<Inbox<R, T, P>>,
}

impl<R, T, P> HubControl<R, T, P> {
    pub(super) fn new(inbox: Arc<Inbox<R, T, P>>) -> HubControl<R, T, P> {
        HubControl { inbox }
    }

    /// Attaches a port. The receiver gets an acknowledgement when the port takes part; it is
    /// disconnected if the hub has ended.
    pub fn attach(&self, number: usize, port: HubPort<R, T, P>) -> Receiver<()> {
        let (reply, replies) = channel();
        self.inbox.put(Command::Attach { number, port: Box::new(port), reply });
        replies
    }

    /// Sets the offloads that received packets may need.
    pub fn set_rx_offloads(&self, accept: Offloads) {
        self.inbox.put(Command::Offloads(accept));
    }

    /// Detaches a port: it receives nothing more, and what waits for it gets `drain` to leave. The
    /// receiver gets an acknowledgement when its queues are dropped; it is disconnected if the hub
    /// has ended.
    pub fn detach(&self, number: usize, drain: Duration) -> Receiver<Left> {
        let (reply, replies) = channel();
        self.inbox.put(Command::Detach { number, drain, reply });
        replies
    }

    /// Ports that have left by themselves and are not detached, each by its number, and why.
    pub fn lost(&self) -> Vec<(usize, State)> {
        self.inbox.with(|state| state.lost.clone())
    }
}

impl<R, T, P> Clone for HubControl<R, T, P> {
    fn clone(&self) -> HubControl<R, T, P> {
        HubControl { inbox: self.inbox.clone() }
    }
}

impl<R, T, P> std::fmt::Debug for HubControl<R, T, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubControl").finish_non_exhaustive()
    }
}

//! Statistics of the control thread, and the log of connections.

use super::events::RingEvents;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_packet::port::PortControl;
use towpath_sys::seqpacket::Peer;

/// Connections that the log holds.
const LOG_LEN: usize = 64;

/// Counters of a port.
#[derive(Debug, Default)]
pub(super) struct PortEvents {
    /// Front ends that connected.
    pub(super) connections: AtomicU64,
    /// Connections that were closed at once, because there was one.
    pub(super) refused: AtomicU64,
    /// Connections that ended.
    pub(super) ended: AtomicU64,
    /// Requests that were refused.
    pub(super) requests_refused: AtomicU64,
    /// Rings that did not start.
    pub(super) rings_refused: AtomicU64,
    /// Counters that were full, and held a worker.
    pub(super) relieved: AtomicU64,
    pub(super) rings: Arc<RingEvents>,
    pub(super) log: ConnectionLog,
}

impl PortEvents {
    /// All counters by name.
    fn each(&self) -> Vec<(&'static str, u64)> {
        // Calls and copies are no faults: their counts would be news every second.
        let RingEvents { malformed, broken, abandoned, again, .. } = &*self.rings;
        let each = [
            ("connections", &self.connections),
            ("connections-ended", &self.ended),
            ("connections-refused", &self.refused),
            ("requests-refused", &self.requests_refused),
            ("rings-refused", &self.rings_refused),
            ("rings-broken", broken),
            ("call-full", &self.relieved),
            ("frames-malformed", malformed),
            ("chains-abandoned", abandoned),
            ("chains-taken-again", again),
        ];
        each.into_iter().map(|(name, count)| (name, count.load(Relaxed))).collect()
    }
}

#[derive(Debug)]
struct Connection {
    id: u64,
    peer: Peer,
    features: Option<String>,
    /// The last thing that was refused.
    refused: Option<String>,
    end: Option<String>,
}

/// The last connections of a port: their processes, what they negotiated, how they ended.
#[derive(Debug, Default)]
pub(super) struct ConnectionLog(Mutex<VecDeque<Connection>>);

impl ConnectionLog {
    pub(super) fn opened(&self, id: u64, peer: Peer) {
        let mut log = self.lock();
        if log.len() == LOG_LEN {
            log.pop_front();
        }
        log.push_back(Connection { id, peer, features: None, refused: None, end: None });
    }

    pub(super) fn negotiated(&self, id: u64, features: String) {
        self.with(id, |connection| connection.features = Some(features));
    }

    pub(super) fn refused(&self, id: u64, what: String) {
        self.with(id, |connection| connection.refused = Some(what));
    }

    pub(super) fn closed(&self, id: u64, why: String) {
        self.with(id, |connection| connection.end = Some(why));
    }

    /// A line for each connection.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |connection: &Connection| {
            let Connection { id, peer: Peer { pid, uid, .. }, features, refused, end } = connection;
            let features = features.as_deref().unwrap_or("no features");
            let refused = refused.as_ref().map_or(String::new(), |what| format!("; refused: {what}"));
            let end = end.as_deref().unwrap_or("here");
            format!("connection {id}: pid {pid}, uid {uid}: {features}{refused}; {end}")
        };
        self.lock().iter().map(line).collect()
    }

    fn with(&self, id: u64, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.lock().iter_mut().find(|connection| connection.id == id) {
            change(connection);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events and the connections of the port.
pub(super) struct VhostControl(pub(super) Arc<PortEvents>);

impl PortControl for VhostControl {
    fn session_log(&self) -> Vec<String> {
        self.0.log.lines()
    }

    fn events(&self) -> Vec<(&'static str, u64)> {
        self.0.each()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_the_last_connections_with_what_they_negotiated_and_their_ends() {
        let log = ConnectionLog::default();
        for id in 1..=70 {
            log.opened(id, Peer { pid: 100 + id as i32, uid: 7, gid: 8 });
        }
        log.negotiated(70, "csum mergeable".to_owned());
        log.refused(70, "SET_VRING_NUM: a ring of 9".to_owned());
        log.closed(70, "left".to_owned());
        log.closed(1, "left".to_owned());
        let lines = log.lines();
        assert_eq!(lines.len(), 64);
        assert_eq!(lines[0], "connection 7: pid 107, uid 7: no features; here");
        let last = "connection 70: pid 170, uid 7: csum mergeable; refused: SET_VRING_NUM: a ring of 9; left";
        assert_eq!(lines[63], last);
    }
}

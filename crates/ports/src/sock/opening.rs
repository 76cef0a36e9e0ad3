//! The handshake: from what an application asks for to a session, or the reason why not.

use super::Config;
use super::asking::Metadata;
use super::gate::Gate;
use super::line::Line;
use super::memory::Memory;
use super::receiving::{Receiver, Receiving};
use super::rings::AppRings;
use super::sending::Sending;
use super::session::{Parts, Session, Waking};
use super::statistics::Counted;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_client::protocol::{Answer, Code, Hello, MAX_PIECES, MAX_SUPER_PIECES, Welcome};
use towpath_engine::rules::Rules;
use towpath_packet::{ExtBufOwner, ExtBufPool, Region, UntrustedMem};
use towpath_sys::seqpacket;
use towpath_sys::{EventFd, memfd};

/// What is asked, and by whom.
pub(super) struct Asked<'a> {
    /// The number that the session will have.
    pub(super) id: u64,
    pub(super) hello: &'a Hello,
    pub(super) connection: &'a OwnedFd,
    /// The descriptors that came with it.
    pub(super) fds: Vec<OwnedFd>,
}

/// What holds for all.
pub(super) struct Standing<'a> {
    pub(super) config: &'a Config,
    /// Longest frame.
    pub(super) longest: u32,
    pub(super) gate: &'a Arc<Gate>,
}

/// A session, as the listening thread knows it.
pub(super) struct Opened {
    pub(super) session: Arc<Session>,
    /// The queue that it lives on.
    pub(super) queue: u16,
    rules: String,
    /// How many these are.
    count: usize,
    default: bool,
    group: u64,
}

impl Opened {
    /// Ends the session.
    pub(super) fn close(&self, gate: &Gate, why: &'static str) {
        seqpacket::shut(self.session.connection.as_fd());
        self.session.close(why);
        if let Some(waker) = gate.wakers.get(usize::from(self.queue)) {
            waker.epoll.remove(self.session.waking().ours().as_raw_fd());
        }
    }
}

type Refused = (Code, String);

/// Makes a session, and tells the application.
pub(super) fn open(
    asked: Asked<'_>,
    standing: &Standing<'_>,
    others: &[&Opened],
) -> Result<(Opened, Sending, Arc<Receiver>), Refused> {
    let full = |why: &str| (Code::Full, why.to_owned());
    let (Asked { id, hello, connection: fd, fds }, Standing { config, gate, .. }) = (asked, standing);
    let events = &gate.events;
    if events.halves.load(Ordering::Relaxed) + 2 > 2 * u64::from(config.sessions) {
        return Err(full("as many sessions as there may be"));
    }
    let peer = seqpacket::peer(fd.as_fd()).map_err(|error| full(&error.to_string()))?;
    let queue = queue(hello, gate, others)?;
    let memory = memory(hello, fds, config, others)?;
    let (rules, default) = rules(&hello.rules).map_err(|why| (Code::Rules, why))?;
    let count = rules.len();
    bound_rules(count, config, others)?;
    let alike = |other: &&&Opened| Arc::ptr_eq(&other.session.memory, &memory) && other.rules == hello.rules;
    let group = others.iter().find(alike).map_or(id, |other| other.group);
    if default && others.iter().any(|other| other.default && other.group != group) {
        return Err((Code::Rules, "somebody else has the default".to_owned()));
    }
    let waker = gate.wakers.get(usize::from(queue)).ok_or_else(|| full("no such queue"))?;
    let chunk = u64::from(hello.chunk);
    let metadata = Metadata::of(hello);
    let pieces = if metadata.segmentation() { MAX_SUPER_PIECES } else { MAX_PIECES };
    let least = 2 * pieces as u64 * chunk;
    let budget = if hello.budget == 0 { config.budget } else { hello.budget.min(config.budget) }.max(least);
    // No more can be on its way than the budget allows, or, if that says nothing about their number, than the rings hold; and always some
    // packets.
    let most = if hello.unaligned || hello.lenient {
        ((hello.rings.tx + hello.rings.completion) as usize).max(2 * MAX_PIECES)
    } else {
        (hello.umem / chunk).min(budget / chunk + 1) as usize
    };
    let rings = AppRings::new(&hello.rings).map_err(|error| full(&error.to_string()))?;
    let line = || Line::new().map(Waking::Line);
    let waking = if hello.one_descriptor { line() } else { EventFd::new().map(OwnedFd::from).map(Waking::Kick) };
    let waking = waking.map_err(|error| full(&error.to_string()))?;
    let own = fd.try_clone().map_err(|error| full(&error.to_string()))?;
    let (sleeps, notifier, counted) = (rings.notifier, waker.notifier.clone(), rings.statistics.map(Counted::new));
    let [counted_sending, counted_receiving] = counted;
    let parts = Parts { id, connection: own, memory: memory.clone(), sleeps, waking, notifier, events: events.clone() };
    let session = Arc::new(Session::new(parts));
    let owner: Arc<dyn ExtBufOwner> = session.clone();
    let pages = ExtBufPool::new(most, memory.foreign().region().clone(), owner);
    let pages = pages.map_err(|error| full(&error.to_string()))?;
    let (ours, theirs) = (session.waking().ours().as_raw_fd(), session.waking().theirs());
    waker.epoll.add(ours, true).map_err(|error| full(&error.to_string()))?;
    let longest = standing.longest;
    let (at, bytes) = (rings.layout, rings.region.len() as u64);
    let welcome = Answer::Welcome(Welcome { session: id, queue, longest, budget, memory: bytes, rings: at });
    let file = rings.region.fd().ok_or_else(|| full("rings without a descriptor"))?;
    events.visitors.came(id, peer, queue);
    seqpacket::send(fd.as_fd(), &welcome.encode(), &[file, theirs]).map_err(|error| {
        events.visitors.left(id, "left unheard");
        full(&error.to_string())
    })?;
    // From here on each half takes itself off the count when it is dropped.
    events.halves.fetch_add(2, Ordering::Relaxed);
    events.sessions.fetch_add(1, Ordering::Relaxed);
    let sending = Sending {
        // There are 64 queues at most.
        queue: queue as u8,
        session: session.clone(),
        tx: rings.tx,
        completion: rings.completion,
        counted: counted_sending,
        lenient: hello.lenient,
        pages,
        budget,
        charged: 0,
        longest: longest as usize,
        begun: None,
        pieces: 0,
        metadata,
        request: None,
        told: false,
        blocked: false,
        starved: false,
    };
    let posted = (hello.umem / chunk).min(hello.rings.fill.into()) as usize;
    let receiving = Receiving {
        session: session.clone(),
        fill: rings.fill,
        rx: rings.rx,
        counted: counted_receiving,
        lenient: hello.lenient,
        posted: Vec::with_capacity(posted),
        headroom: hello.headroom as usize,
        pieces: hello.pieces,
        offloads: hello.offloads,
    };
    let receiver = Arc::new(Receiver::new((rules, default), (group, queue), receiving));
    Ok((Opened { session, queue, rules: hello.rules.clone(), count, default, group }, sending, receiver))
}

/// The queue that the session lives on: the one that is asked for, or the one with the fewest.
fn queue(hello: &Hello, gate: &Gate, others: &[&Opened]) -> Result<u16, Refused> {
    let queues = gate.wakers.len() as u16;
    match hello.queue {
        Some(queue) if queue < queues => Ok(queue),
        Some(queue) => Err((Code::Protocol, format!("queue {queue}: the port was started with {queues}"))),
        None => {
            let sessions = |queue: &u16| others.iter().filter(|other| other.queue == *queue).count();
            Ok((0..queues).min_by_key(sessions).unwrap_or(0))
        }
    }
}

/// The memory that is handed over, or that of the session that is named.
fn memory(hello: &Hello, fds: Vec<OwnedFd>, config: &Config, others: &[&Opened]) -> Result<Arc<Memory>, Refused> {
    let no = |why: String| (Code::Memory, why);
    let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
        return Err((Code::Protocol, "one descriptor, of the memory, is wanted".to_owned()));
    };
    let file = memfd::identity(fd.as_fd()).map_err(|error| no(error.to_string()))?;
    if hello.share != 0 {
        let other = others.iter().find(|other| other.session.id == hello.share);
        let memory = other.map(|other| &other.session.memory);
        let memory = memory.ok_or_else(|| no(format!("there is no session {} to share memory with", hello.share)))?;
        let same = memory.is(file, hello).then(|| memory.clone());
        return same.ok_or_else(|| no(format!("not the memory of session {}, or of other chunks", hello.share)));
    }
    if hello.umem > config.umem {
        return Err(no(format!("at most {} bytes of memory may be had", config.umem)));
    }
    let region = Region::from_memfd(fd, hello.umem as usize).map_err(|error| no(error.to_string()))?;
    // It has seals, so it is a memfd, and asking about it waits for nobody.
    if region.fd().is_none_or(|fd| memfd::is_huge(fd).unwrap_or(true)) {
        return Err(no("memory of huge pages, which may be missing when they are touched".to_owned()));
    }
    Ok(Arc::new(Memory::new(UntrustedMem::new(region), file, hello)))
}

/// Whether an application may have so many rules beside those of the others: each costs every packet a comparison.
fn bound_rules(count: usize, config: &Config, others: &[&Opened]) -> Result<(), Refused> {
    let (rules, all_rules) = (config.rules, config.all_rules);
    if count > rules.into() {
        return Err((Code::Rules, format!("{count} rules: an application may have {rules} (rules={rules})")));
    }
    let there: usize = others.iter().map(|other| other.count).sum();
    if there + count > all_rules.into() {
        let why = format!(
            "{count} rules beside the {there} of other applications: together they may have {all_rules} (all-rules={all_rules})"
        );
        return Err((Code::Full, why));
    }
    Ok(())
}

/// The rules of an application, and whether it wants the default.
fn rules(text: &str) -> Result<(Rules, bool), String> {
    let (default, matches): (Vec<_>, Vec<_>) =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).partition(|line| *line == "default");
    let rules = Rules::parse(matches.iter().map(|line| format!("pass {line}"))).map_err(|error| error.to_string())?;
    Ok((rules, !default.is_empty()))
}

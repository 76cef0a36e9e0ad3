//! The handshake, from the datapath's side: reads what an application asks for, opens the session
//! or finds the reason why not, and writes the answer.
//!
//! [`towpath_client::protocol`] describes the messages.

use super::config::Config;
use super::limits::{self, Amounts, Resource, RingPages};
use super::notify::{PollFd, PortShared};
use super::rx::rings::{AppTxRings, Stall};
use super::session::{Session, SessionRings, Wakeup};
use super::source::Sources;
use super::stats::{SessionCounts, SessionStats};
use super::tx::app::{AppRxRings, Destination};
use super::tx_metadata::TxMetadata;
use super::umem::{AppUmem, FillChunk};
use crate::closing::AppSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use towpath_client::protocol::{
    Answer, CHUNK, Code, Fields, Hello, MAGIC, MAX_PIECES, MAX_SUPER_PIECES, Malformed, Refusal, Rings, Sizes, VERSION,
    Welcome,
};
use towpath_engine::filter::steering_matches;
use towpath_engine::rules::{Rule, Rules, Verdict};
use towpath_packet::{ExtBufOwner, ExtBufPool, UntrustedMem};
use towpath_sys::mmap::page_size;
use towpath_sys::{EventFd, memfd, seqpacket};

/// Reads an application's message, and [checks](Hello::check) it.
pub(super) fn decode(bytes: &[u8]) -> Result<Hello, Malformed> {
    let mut fields = Fields(bytes);
    if fields.u64()? != MAGIC {
        return Err(Malformed::Magic);
    }
    let (version, flags) = (fields.u32()?, fields.u32()?);
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    if flags & !Hello::FLAGS != 0 {
        return Err(Malformed::Flags(flags));
    }
    let flag = |flag| flags & flag != 0;
    let (umem, budget) = (fields.u64()?, fields.u64()?);
    let (chunk, headroom) = (fields.u32()?, fields.u32()?);
    let rings = Sizes { fill: fields.u32()?, completion: fields.u32()?, rx: fields.u32()?, tx: fields.u32()? };
    let (len, queue, share) = (fields.u32()?, fields.u32()?, fields.u64()?);
    // A value that does not fit fails the check.
    let tx_metadata = u32::try_from(fields.u64()?).unwrap_or(u32::MAX);
    if fields.0.len() != len as usize {
        return Err(Malformed::Length);
    }
    let rules = std::str::from_utf8(fields.0).map_err(|_| Malformed::Text)?.to_owned();
    let queue = match queue {
        Hello::ANY_QUEUE => None,
        queue => Some(u16::try_from(queue).map_err(|_| Malformed::Value {
            what: "queue",
            value: queue.into(),
            rule: "at most 65535",
        })?),
    };
    let hello = Hello {
        umem,
        chunk,
        unaligned: flag(Hello::UNALIGNED),
        headroom,
        pieces: flag(Hello::PIECES),
        offloads: flag(Hello::OFFLOADS),
        one_descriptor: flag(Hello::ONE_DESCRIPTOR),
        skip_invalid: flag(Hello::SKIP_INVALID),
        rings,
        budget,
        share,
        tx_metadata,
        segmentation: flag(Hello::SEGMENTATION),
        queue,
        rules,
    };
    hello.check()?;
    Ok(hello)
}

/// Writes the answer to a message. A reason that is too long is cut between characters.
pub(super) fn encode(answer: &Answer) -> Vec<u8> {
    let mut out = MAGIC.to_le_bytes().to_vec();
    match answer {
        Answer::Welcome(welcome) => {
            [0, welcome.longest].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            let Rings { rx, tx, fill, completion, statistics } = welcome.rings;
            let each = [rx, tx, fill, completion, statistics].map(|at| [at.producer, at.consumer, at.desc, at.flags]);
            let first = [welcome.session, welcome.queue.into(), welcome.budget, welcome.memory];
            first.iter().chain(each.iter().flatten()).for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        }
        Answer::Refusal(Refusal { code, why }) => {
            let most = why.len().min(Answer::LONGEST - 16);
            let len = (0..=most).rev().find(|&n| why.is_char_boundary(n)).unwrap_or(0);
            [*code as u32, 0].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            out.extend_from_slice(&why.as_bytes()[..len]);
        }
    }
    out
}

/// A refusal of this kind.
pub(super) fn refusal(code: Code, why: impl Into<String>) -> Refusal {
    Refusal { code, why: why.into() }
}

/// A refusal because a resource is missing.
pub(super) fn full(why: impl ToString) -> Refusal {
    refusal(Code::Full, why.to_string())
}

/// A refusal of a descriptor that is not of memory.
pub(super) fn not_memory() -> Refusal {
    let rule = "the descriptor is of another file than memory: make it with memfd_create(MFD_ALLOW_SEALING), set its \
                size, and seal it against shrinking (F_ADD_SEALS, F_SEAL_SHRINK)";
    refusal(Code::Memory, rule)
}

/// A refusal of a message without its descriptor, or with several.
pub(super) fn not_one_descriptor() -> Refusal {
    refusal(Code::Protocol, "one descriptor, of the memory, is wanted")
}

/// What one application asks for.
pub(super) struct Request<'a> {
    /// The number that the session will have.
    pub(super) id: u64,
    pub(super) hello: &'a Hello,
    pub(super) connection: &'a Arc<AppSocket>,
    /// The descriptors that came with the message.
    pub(super) fds: Vec<OwnedFd>,
}

/// What is the same for all applications.
pub(super) struct PortContext<'a> {
    pub(super) config: &'a Config,
    /// Bytes of the longest frame.
    pub(super) longest: u32,
    pub(super) shared: &'a Arc<PortShared>,
}

/// The server thread's record of a session.
pub(super) struct ServerSession {
    pub(super) session: Arc<Session>,
    /// The queue of the session.
    pub(super) queue: u16,
    rules: String,
    default: bool,
    group: u64,
}

impl ServerSession {
    /// Ends the session.
    pub(super) fn close(&self, shared: &PortShared, why: &'static str) {
        seqpacket::shutdown(self.session.connection.as_fd());
        self.session.close(why);
        if let Some(waker) = shared.wakers.get(usize::from(self.queue)) {
            waker.epoll.remove(self.session.wakeup.datapath_end().as_raw_fd());
        }
    }
}

/// Opens a session, and sends the welcome. `others` are the sessions of the port.
pub(super) fn open_session(
    request: Request<'_>,
    port: &PortContext<'_>,
    others: &[&ServerSession],
) -> Result<(ServerSession, AppTxRings, Arc<Destination>), Refusal> {
    let Request { id, hello, connection, fds } = request;
    let PortContext { config, longest, shared } = *port;
    let events = &shared.events;
    let peer = seqpacket::peer(connection.as_fd()).map_err(full)?;
    let queue = choose_queue(hello, shared, others)?;
    let (rules, default) = parse_rules(&hello.rules).map_err(|why| refusal(Code::Rules, why))?;
    check_rules(rules.len(), config)?;
    limits::covers(config.allow.as_deref(), peer.uid, &rules, default).map_err(|why| refusal(Code::Rules, why))?;
    let sizes = SessionSizes::of(hello, config);
    let share = events.account.take(peer.uid, sizes.amounts(rules.len())).map_err(full)?;
    let rings_share = events.account.take(peer.uid, ring_amounts(&hello.rings)).map_err(full)?;
    let umem = find_umem(hello, fds, port, peer.uid, others)?;
    let is_member = |other: &&&ServerSession| Arc::ptr_eq(&other.session.umem, &umem) && other.rules == hello.rules;
    let group = others.iter().find(is_member).map_or(id, |other| other.group);
    if default && others.iter().any(|other| other.default && other.group != group) {
        return Err(refusal(Code::Rules, "another application has the default"));
    }
    let waker = shared.wakers.get(usize::from(queue)).ok_or_else(|| full("no such queue"))?;
    let SessionSizes { budget, pages, posted } = sizes;
    let rings = SessionRings::new(&hello.rings).map_err(full)?;
    let wakeup = if hello.one_descriptor {
        PollFd::new(shared.closer.clone()).map(Wakeup::PollFd)
    } else {
        EventFd::new().map(OwnedFd::from).map(Wakeup::Event)
    };
    let session = Arc::new(Session {
        id,
        wakeup: wakeup.map_err(full)?,
        connection: connection.clone(),
        umem: umem.clone(),
        rx_ring: rings.rx_view,
        closed: AtomicBool::new(false),
        broken: AtomicBool::new(false),
        notifier: waker.notifier.clone(),
        events: events.clone(),
        user: peer.uid,
        _share: share,
        rings: Some(RingPages { memory: rings.memory.clone(), share: rings_share }),
    });
    let owner: Arc<dyn ExtBufOwner> = session.clone();
    let pages = ExtBufPool::new(pages, umem.mem().clone(), owner).map_err(full)?;
    waker.epoll.add(session.wakeup.datapath_end().as_raw_fd(), true).map_err(full)?;
    let (layout, memory) = (rings.layout, rings.memory.len() as u64);
    let welcome = Answer::Welcome(Welcome { session: id, queue, longest, budget, memory, rings: layout });
    let file = rings.memory.fd().ok_or_else(|| full("rings without a descriptor"))?;
    let counts = Arc::<SessionCounts>::default();
    events.log.opened(id, peer, queue, counts.clone());
    seqpacket::send(connection.as_fd(), &encode(&welcome), &[file, session.wakeup.app_end()]).map_err(|error| {
        events.log.closed(id, "left unheard");
        full(error)
    })?;
    events.sessions.fetch_add(1, Ordering::Relaxed);
    let [tx_stats, rx_stats] = rings.statistics.map(|shown| SessionStats::new(shown, counts.clone()));
    let app_tx = AppTxRings {
        // There are at most 64 queues.
        queue: queue as u8,
        session: session.clone(),
        tx: rings.tx,
        completion: rings.completion,
        stats: tx_stats,
        skip_invalid: hello.skip_invalid,
        pages,
        budget,
        charged: 0,
        longest: longest as usize,
        partial: None,
        pieces: 0,
        sources: Sources::of(peer.uid, config.source.as_deref()),
        metadata: TxMetadata::of(hello),
        request: None,
        unsubmitted: false,
        completion_full: false,
        stall: Stall::None,
        rest: None,
    };
    let app_rx = AppRxRings {
        session: session.clone(),
        fill: rings.fill,
        rx: rings.rx,
        stats: rx_stats,
        skip_invalid: hello.skip_invalid,
        posted: Vec::with_capacity(posted),
        headroom: hello.headroom as usize,
        pieces: hello.pieces,
        offloads: hello.offloads,
    };
    let destination = Arc::new(Destination::new((rules, default), (group, queue), app_rx));
    let record = ServerSession { session, queue, rules: hello.rules.clone(), default, group };
    Ok((record, app_tx, destination))
}

/// Bytes of a session beside its rings and tables: its halves, its descriptors, the text of its
/// rules.
const FIXED: usize = 8 << 10;
/// Bytes of a rule, parsed and compiled.
const RULE: usize = 256;

/// How large the tables of a session are.
struct SessionSizes {
    /// Bytes of chunks that may be in flight.
    budget: u64,
    /// Pages that may be in flight.
    pages: usize,
    /// Chunks that the port takes out of the FILL ring in advance.
    posted: usize,
}

impl SessionSizes {
    /// The budget bounds the bytes of pages in flight, and, as a page is charged its chunk, their
    /// number. So does the memory, in which each page has a chunk. Unaligned frames are charged
    /// their bytes, and lie anywhere: as if chunks were of the least size. There is always room for
    /// some packets. A session whose applications may send the same frame many times
    /// (`skip_invalid`) has no more pages in flight: further descriptors wait in the TX ring.
    fn of(hello: &Hello, config: &Config) -> SessionSizes {
        let chunk = u64::from(hello.chunk);
        let pieces = if TxMetadata::of(hello).segmentation() { MAX_SUPER_PIECES } else { MAX_PIECES };
        let least = 2 * pieces as u64 * chunk;
        let budget = if hello.budget == 0 { config.budget } else { hello.budget.min(config.budget) }.max(least);
        let unit = if hello.unaligned { u64::from(*CHUNK.start()) } else { chunk };
        let bytes = (hello.umem / unit).min(budget / unit + 1);
        let pages = if hello.unaligned || hello.skip_invalid {
            let rings = u64::from(hello.rings.tx + hello.rings.completion);
            bytes.min(rings).max(2 * pieces as u64)
        } else {
            bytes
        };
        let posted = (hello.umem / chunk).min(hello.rings.fill.into());
        SessionSizes { budget, pages: pages as usize, posted: posted as usize }
    }

    /// What the session costs its user's account, without its rings and its memory.
    fn amounts(&self, rules: usize) -> Amounts {
        let tables = ExtBufPool::metadata_bytes(self.pages) + self.posted * size_of::<FillChunk>();
        let bytes = FIXED + rules * RULE + tables;
        let amounts = Amounts::default().with(Resource::Sessions, 1).with(Resource::Rules, rules as u64);
        amounts.with(Resource::Metadata, bytes as u64)
    }
}

/// What rings cost the account of their user.
fn ring_amounts(sizes: &Sizes) -> Amounts {
    let bytes = (Rings::lay_out(sizes).1 as usize).next_multiple_of(page_size());
    Amounts::default().with(Resource::Metadata, bytes as u64)
}

/// The queue of the session: the one that it asks for, or the one with the fewest sessions.
fn choose_queue(hello: &Hello, shared: &PortShared, others: &[&ServerSession]) -> Result<u16, Refusal> {
    let queues = shared.wakers.len() as u16;
    match hello.queue {
        Some(queue) if queue < queues => Ok(queue),
        Some(queue) => Err(refusal(Code::Protocol, format!("queue {queue}: the port was started with {queues}"))),
        None => {
            let sessions = |queue: &u16| others.iter().filter(|other| other.queue == *queue).count();
            Ok((0..queues).min_by_key(sessions).unwrap_or(0))
        }
    }
}

/// The memory of the descriptor, or that of the session that the message names.
fn find_umem(
    hello: &Hello,
    fds: Vec<OwnedFd>,
    port: &PortContext<'_>,
    user: u32,
    others: &[&ServerSession],
) -> Result<Arc<AppUmem>, Refusal> {
    let no = |why: String| refusal(Code::Memory, why);
    let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
        return Err(not_one_descriptor());
    };
    // The seals first: no file system is asked about a file that has none.
    memfd::seals(fd.as_fd()).map_err(|_| not_memory())?;
    let file = memfd::identity(fd.as_fd()).map_err(|error| no(error.to_string()))?;
    if hello.share != 0 {
        let other = others.iter().find(|other| other.session.id == hello.share);
        let umem = other.map(|other| &other.session.umem);
        let umem = umem.ok_or_else(|| no(format!("there is no session {} to share memory with", hello.share)))?;
        let same = umem.is_same(file, hello).then(|| umem.clone());
        return same.ok_or_else(|| no(format!("not the memory of session {}, or of other chunks", hello.share)));
    }
    let most = port.config.umem;
    if hello.umem > most {
        return Err(no(format!("{} bytes of memory: an application may share {most} (umem={most})", hello.umem)));
    }
    let share = port.shared.events.account.take(user, AppUmem::amounts(hello)).map_err(full)?;
    let mem = UntrustedMem::from_memfd(fd, hello.umem as usize).map_err(|error| no(error.to_string()))?;
    // That checked the seals, so the file is a memfd and the query does not block.
    if mem.fd().is_none_or(|fd| memfd::is_huge(fd).unwrap_or(true)) {
        return Err(no("memory of huge pages, which may be missing when they are touched".to_owned()));
    }
    AppUmem::new(mem, file, hello, share).map(Arc::new).map_err(no)
}

/// Checks the number of an application's rules: each costs every packet a comparison.
fn check_rules(count: usize, config: &Config) -> Result<(), Refusal> {
    let rules = config.rules;
    if count <= rules.into() {
        return Ok(());
    }
    Err(refusal(Code::Rules, format!("{count} rules: an application may have {rules} (rules={rules})")))
}

/// The rules of an application, and whether it asks for the default.
fn parse_rules(text: &str) -> Result<(Rules, bool), String> {
    let (default, matches): (Vec<_>, Vec<_>) =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).partition(|line| *line == "default");
    let mut rules = Rules::default();
    for line in matches {
        let flows = steering_matches(line).map_err(|error| error.to_string())?;
        flows.into_iter().for_each(|matches| rules.push(Rule { verdict: Verdict::Pass, matches }));
    }
    Ok((rules, !default.is_empty()))
}

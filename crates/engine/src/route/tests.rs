//! Routes between ports that a test can pause, block and end.

use super::*;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;
use towpath_packet::{Backing, Checksum, Direction, Gso, GsoKind, Offloads, Packet, Pool, PoolConfig};

impl<R: RxQueue, T: TxQueue> Route<R, T> {
    pub(crate) fn rx_mut(&mut self) -> &mut R {
        &mut self.rx
    }

    pub(crate) fn tx_mut(&mut self) -> &mut T {
        self.egress.tx_mut()
    }
}

pub(crate) struct Source {
    pub(crate) packets: VecDeque<Packet>,
    pub(crate) state: State,
    pub(crate) restricted: Option<Offloads>,
    counters: Arc<Counters>,
}

impl Source {
    pub(crate) fn new(packets: VecDeque<Packet>) -> Source {
        Source { packets, state: State::Up, restricted: None, counters: Arc::default() }
    }
}

impl RxQueue for Source {
    fn rx(&mut self, out: &mut Batch) -> usize {
        let before = out.len();
        while out.room() > 0
            && let Some(packet) = self.packets.pop_front()
        {
            out.push(packet).unwrap();
        }
        let n = out.len() - before;
        self.counters.moved(n as u64, 0);
        n
    }
    fn set_rx_offloads(&mut self, accept: Offloads) {
        self.restricted = Some(accept);
    }
    fn state(&self) -> State {
        self.state.clone()
    }
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

pub(crate) struct Sink {
    pub(crate) got: Vec<Packet>,
    pub(crate) room: usize,
    pub(crate) can: Offloads,
    pub(crate) refuses_gso: bool,
    pub(crate) state: State,
    /// Why closing fails.
    pub(crate) failure: Option<&'static str>,
    counters: Arc<Counters>,
}

impl Sink {
    pub(crate) fn new(can: Offloads) -> Sink {
        let (got, state, counters) = (Vec::new(), State::Up, Arc::default());
        Sink { got, room: usize::MAX, can, refuses_gso: false, state, failure: None, counters }
    }
}

impl TxQueue for Sink {
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let mut n = 0;
        while n < self.room && !batch.is_empty() {
            if self.refuses_gso && batch.as_slice()[0].gso().is_some() {
                self.can = Offloads::CSUM;
                break;
            }
            self.got.extend(batch.drain_front(1));
            n += 1;
        }
        self.room -= n;
        self.counters.moved(n as u64, 0);
        n
    }
    fn close(&mut self) -> Result<(), Cow<'static, str>> {
        self.failure.take().map_or(Ok(()), |why| Err(why.into()))
    }
    fn offloads(&self) -> Offloads {
        self.can
    }
    fn state(&self) -> State {
        self.state.clone()
    }
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

pub(crate) fn setup(n: usize, config: RouteConfig) -> (Pool, Route<Source, Sink>) {
    let pool = PoolConfig::default().capacity(1024).backing(Backing::Anonymous);
    let pool = Pool::new(pool).unwrap();
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let packets = (0..n as u32).map(|i| Packet::copy_from(&mut cache, &i.to_be_bytes()).unwrap()).collect();
    let (rx, tx) = (Source::new(packets), Sink::new(Offloads::ALL));
    (pool, Route::new(rx, tx, cache, config))
}

fn drops_at_once() -> RouteConfig {
    RouteConfig { egress_wait: Duration::ZERO, ..Default::default() }
}

fn numbers(route: &Route<Source, Sink>) -> Vec<u32> {
    route.egress.tx().got.iter().map(|p| u32::from_be_bytes(p.linear().try_into().unwrap())).collect()
}

/// received + split = sent + drops + held
fn balances(route: &Route<Source, Sink>) -> bool {
    let own = route.counters.snapshot();
    let received = route.rx.counters.snapshot().packets;
    received + own.split == route.egress.tx().counters.snapshot().packets + own.all_drops() + route.held() as u64
}

#[test]
fn a_port_that_is_gone_ends_the_route_though_it_takes_what_it_can_never_send() {
    let (_pool, mut route) = setup(200, RouteConfig::default());
    route.turn(false);
    assert_eq!(route.ended(), None);
    route.egress.tx_mut().state = State::Gone("deleted".into());
    route.turn(false);
    assert_eq!(route.ended(), Some(&State::Gone("deleted".into())));
}

#[test]
fn packets_arrive_in_order_however_little_the_egress_takes_at_a_time() {
    let (_pool, mut route) = setup(300, RouteConfig::default());
    for room in (0..7).cycle().take(500) {
        route.egress.tx_mut().room = room;
        route.turn(false);
        assert!(balances(&route));
    }
    assert_eq!(numbers(&route), (0..300).collect::<Vec<_>>());
}

#[test]
fn nothing_is_received_while_something_waits_to_be_sent() {
    let (_pool, mut route) = setup(300, RouteConfig::default());
    route.egress.tx_mut().room = 0;
    for _ in 0..10 {
        route.turn(false);
    }
    assert_eq!(route.held(), 64);
    assert_eq!(route.rx.packets.len(), 300 - 64);
}

#[test]
fn held_packets_are_dropped_by_name_if_the_egress_refuses_for_too_long() {
    let (_pool, mut route) = setup(100, drops_at_once());
    route.egress.tx_mut().room = 10;
    route.turn(false);
    route.turn(false);
    assert_eq!(route.counters.snapshot().dropped(DropReason::EgressFull), 54);
    assert!(balances(&route) && route.held() == 0);
    route.egress.tx_mut().room = 100;
    route.turn(false);
    assert_eq!(*numbers(&route).last().unwrap(), 99, "it goes on with what comes next");
}

#[test]
fn an_egress_that_is_gone_ends_the_route_and_one_that_is_down_does_not() {
    let (_pool, mut route) = setup(100, drops_at_once());
    route.egress.tx_mut().room = 0;
    route.egress.tx_mut().state = State::Down("no link".into());
    route.turn(false);
    route.turn(false);
    assert_eq!(route.counters.snapshot().dropped(DropReason::LinkDown), 64);
    assert_eq!(route.ended(), None);
    route.egress.tx_mut().state = State::Gone("deleted".into());
    route.turn(false);
    route.turn(false);
    assert_eq!(route.counters.snapshot().dropped(DropReason::PortGone), 36);
    assert_eq!(route.ended(), Some(&State::Gone("deleted".into())));
    assert!(balances(&route));
}

#[test]
fn an_ingress_at_its_end_ends_the_route_after_its_last_packet() {
    let (_pool, mut route) = setup(70, RouteConfig::default());
    route.rx.state = State::Done;
    while route.ended().is_none() {
        route.turn(false);
    }
    assert_eq!(route.egress.tx_mut().got.len(), 70);
}

#[test]
fn a_limit_is_exact_and_packets_beyond_it_are_dropped_by_name() {
    let (_pool, route) = setup(200, RouteConfig::default());
    let mut route = route.with_limit(Arc::new(Limit::new(100)));
    while route.ended().is_none() {
        route.turn(false);
    }
    assert_eq!(route.egress.tx_mut().got.len(), 100);
    assert_eq!(route.counters.snapshot().dropped(DropReason::Stopped), 28);
    assert!(balances(&route));
}

#[test]
fn an_ability_that_fails_while_running_is_done_in_software_from_there_on_and_in_order() {
    let (_pool, mut route) = setup(0, RouteConfig::default());
    let cache = route.egress.cache();
    for id in 0..5u8 {
        let mut frame = vec![0; 54 + 3000];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0x0b, 0xe0, 0, 0, 0x40, 0, 64, 6]);
        frame[46] = 0x50;
        frame[54..].fill(id);
        let mut packet = Packet::copy_from(cache, &frame).unwrap();
        packet.set_csum(Checksum::Partial { start: 34, offset: 16 });
        if id != 2 {
            packet.set_gso(Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1000, segs: 3, hdr_len: 54 }));
        }
        route.rx.packets.push_back(packet);
    }
    route.rx.counters.moved(0, 0);
    route.egress.tx_mut().refuses_gso = true;
    route.turn(false);
    let order: Vec<u8> = route.egress.tx_mut().got.iter().map(|p| *p.to_vec().last().unwrap()).collect();
    assert_eq!(order, [0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4]);
    assert_eq!(route.rx.restricted, Some(Offloads::CSUM), "the ingress gets the new offloads");
    assert!(balances(&route) && route.held() == 0);
}

struct NoOwner;
impl towpath_packet::ExtBufOwner for NoOwner {
    fn on_free(&self) {}
}

#[test]
fn a_page_is_reflected_behind_a_head_of_its_own() {
    let (pool, route) = setup(0, RouteConfig::default());
    let mut route = route.with_reflect();
    let memory = towpath_packet::UntrustedMem::new(towpath_packet::Region::new(4096, Backing::Memfd).unwrap());
    let bytes: Vec<u8> = (0..60).collect();
    assert!(memory.put(0, &bytes));
    let mut pages = towpath_packet::ExtBufPool::new(4, memory.clone(), Arc::new(NoOwner)).unwrap();
    route.rx_mut().packets.push_back(pages.packet(0, 60, 1).unwrap());
    route.turn(false);
    let reflected = route.tx_mut().got.pop().unwrap().to_vec();
    assert_eq!(reflected, [&bytes[6..12], &bytes[..6], &bytes[12..]].concat());
    // Without a buffer for a head the packet is dropped by name.
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let hoard: Vec<_> = std::iter::from_fn(|| cache.alloc()).collect();
    let stocked: Vec<_> = std::iter::from_fn(|| route.egress.cache().alloc()).collect();
    route.rx_mut().packets.push_back(pages.packet(0, 60, 2).unwrap());
    route.turn(false);
    assert_eq!(route.counters().snapshot().dropped(DropReason::NoBuffer), 1);
    drop((hoard, stocked));
    let mut back = Vec::new();
    pages.drain_freed(4, |token, _| back.push(token));
    back.sort_unstable();
    assert_eq!(back, [1, 2], "each page is returned once");
}

//! A queue waits only for queues that share its channel.

use super::rig::{Variant, config, model_config, pool, stamp};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use towpath_bus::tisci::Tisci;
use towpath_bus::{Bus, BusError, Mmio};
use towpath_model::cpsw::{Cpsw, CpswBus, CpswIrq, Registers};
use towpath_model::iommu::ModelDma;
use towpath_model::wire::Loopback;
use towpath_nic::cpsw::{CpswTx, open};
use towpath_packet::port::{Port, Start, TxQueue};
use towpath_packet::{Batch, Direction, Offloads, Packet};

/// Far longer than any machine takes.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default, PartialEq, Eq)]
enum Barrier {
    #[default]
    Closed,
    /// A thread waits at it.
    Waited,
    Open,
}

/// Delays the write of one doorbell until another was written.
#[derive(Debug, Clone)]
struct Delay {
    barrier: Arc<(Mutex<Barrier>, Condvar)>,
    delayed: usize,
    opens: usize,
}

impl Delay {
    /// Sets the barrier to `now` and waits until it is `then`; false after the timeout.
    fn set(&self, now: Barrier, then: &Barrier) -> bool {
        let (barrier, changed) = &*self.barrier;
        let mut state = barrier.lock().unwrap();
        if *state != Barrier::Open {
            *state = now;
        }
        changed.notify_all();
        let is_not = |state: &mut Barrier| *state != *then && *state != Barrier::Open;
        !changed.wait_timeout_while(state, TIMEOUT, is_not).unwrap().1.timed_out()
    }

    fn wait_until_reached(&self) {
        let (barrier, changed) = &*self.barrier;
        let closed = |state: &mut Barrier| *state == Barrier::Closed;
        let waited = changed.wait_timeout_while(barrier.lock().unwrap(), TIMEOUT, closed).unwrap();
        assert!(!waited.1.timed_out(), "no thread reached the barrier");
    }
}

#[derive(Debug, Clone)]
struct DelayedBar {
    bar: Registers,
    /// Only for the registers of rings.
    delay: Option<Delay>,
}

impl Mmio for DelayedBar {
    const WIDE: bool = true;

    fn len(&self) -> usize {
        self.bar.len()
    }

    fn r32(&self, at: usize) -> u32 {
        self.bar.r32(at)
    }

    fn w32(&self, at: usize, value: u32) {
        if let Some(delay) = self.delay.as_ref().filter(|delay| delay.delayed == at) {
            assert!(delay.set(Barrier::Waited, &Barrier::Open), "a queue waits for a queue of another channel");
        }
        self.bar.w32(at, value);
        if let Some(delay) = self.delay.as_ref().filter(|delay| delay.opens == at) {
            delay.set(Barrier::Open, &Barrier::Open);
        }
    }

    fn r64(&self, at: usize) -> u64 {
        self.bar.r64(at)
    }

    fn w64(&self, at: usize, value: u64) {
        self.bar.w64(at, value);
    }
}

struct DelayedBus {
    bus: CpswBus,
    delay: Delay,
}

impl Bus for DelayedBus {
    type Bar = DelayedBar;
    type Dma = ModelDma;
    type Irq = CpswIrq;

    fn name(&self) -> &str {
        "delayed"
    }

    fn bar(&self, index: u8, len: usize) -> Result<DelayedBar, BusError> {
        let delay = (index == 1).then(|| self.delay.clone());
        Ok(DelayedBar { bar: self.bus.bar(index, len)?, delay })
    }

    fn dma(&self) -> &ModelDma {
        self.bus.dma()
    }

    fn irqs(&self, count: u16) -> Result<Vec<CpswIrq>, BusError> {
        self.bus.irqs(count)
    }
}

fn send_one<B: Bus>(tx: &mut CpswTx<B>, pool: &towpath_packet::Pool) {
    let mut cache = pool.cache(Direction::Tx).unwrap();
    let mut batch = Batch::new();
    batch.push(Packet::copy_from(&mut cache, &stamp(0, 0, 60)).unwrap()).unwrap();
    tx.tx(&mut batch);
    tx.kick();
}

#[test]
fn a_queue_in_the_middle_of_a_doorbell_delays_no_doorbell_of_another_channel() {
    // Two ports have a channel each. Of four ports the first and the third share a channel, and the
    // second and the fourth.
    for ports in [2, 4] {
        let model = Cpsw::new(model_config(Variant::Pktdma, ports)).unwrap();
        model.set_steps_per_read(4);
        (1..=ports).for_each(|port| model.plug(port, Loopback::default()));
        let doorbell = |ring: usize| ring * 0x2000 + 0x10;
        let delay = Delay { barrier: Arc::default(), delayed: doorbell(16), opens: doorbell(24) };
        let bus = DelayedBus { bus: model.bus(), delay: delay.clone() };
        let calls: Arc<dyn Tisci> = Arc::new(model.firmware());
        let (opened, _control) = open(bus, calls, config(Variant::Pktdma, ports).tx_channels(2)).unwrap();
        let pool = pool(1024);
        let mut queues: Vec<_> = opened
            .into_iter()
            .map(|port| port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap())
            .collect();
        let (first, rest) = queues.split_at_mut(1);
        std::thread::scope(|scope| {
            scope.spawn(|| send_one(&mut first[0].tx[0], &pool));
            delay.wait_until_reached();
            send_one(&mut rest[0].tx[0], &pool);
        });
    }
}

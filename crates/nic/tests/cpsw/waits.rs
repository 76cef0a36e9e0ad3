//! Who waits for whom: a queue for those that share its channel, and for nobody else.

use super::rig::{Way, config, model_config, pool, stamp};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use towpath_bus::tisci::Tisci;
use towpath_bus::{Bus, BusError, Mmio};
use towpath_model::cpsw::{Cpsw, CpswBus, CpswIrq, Registers};
use towpath_model::iommu::ModelDma;
use towpath_model::wire::Loopback;
use towpath_nic::cpsw::{Config, CpswTx, open};
use towpath_packet::port::{Port, Start, TxQueue};
use towpath_packet::{Batch, Direction, Offloads, Packet};

/// Far longer than any machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Shut,
    /// Somebody waits in front of it.
    Waited,
    Open,
}

/// Holds the write of one doorbell up until another was written.
#[derive(Debug, Clone)]
struct Held {
    gate: Arc<(Mutex<Gate>, Condvar)>,
    holds: usize,
    opens: usize,
}

impl Held {
    /// Says that the gate is `now`, and waits until it is `then`; false when it is not in time.
    fn set(&self, now: Gate, then: &Gate) -> bool {
        let (gate, changed) = &*self.gate;
        let mut state = gate.lock().unwrap();
        if *state != Gate::Open {
            *state = now;
        }
        changed.notify_all();
        let is_not = |state: &mut Gate| *state != *then && *state != Gate::Open;
        !changed.wait_timeout_while(state, PATIENCE, is_not).unwrap().1.timed_out()
    }

    fn wait_for_waiting(&self) {
        let (gate, changed) = &*self.gate;
        let shut = |state: &mut Gate| *state == Gate::Shut;
        let waited = changed.wait_timeout_while(gate.lock().unwrap(), PATIENCE, shut).unwrap();
        assert!(!waited.1.timed_out(), "nobody came to the gate");
    }
}

#[derive(Debug, Clone)]
struct HeldBar {
    bar: Registers,
    /// Only the rings' registers are looked at.
    held: Option<Held>,
}

impl Mmio for HeldBar {
    const WIDE: bool = true;

    fn len(&self) -> usize {
        self.bar.len()
    }

    fn r32(&self, at: usize) -> u32 {
        self.bar.r32(at)
    }

    fn w32(&self, at: usize, value: u32) {
        if let Some(held) = self.held.as_ref().filter(|held| held.holds == at) {
            assert!(held.set(Gate::Waited, &Gate::Open), "a queue waits for another that is not its neighbour");
        }
        self.bar.w32(at, value);
        if let Some(held) = self.held.as_ref().filter(|held| held.opens == at) {
            held.set(Gate::Open, &Gate::Open);
        }
    }

    fn r64(&self, at: usize) -> u64 {
        self.bar.r64(at)
    }

    fn w64(&self, at: usize, value: u64) {
        self.bar.w64(at, value);
    }
}

struct HeldBus {
    bus: CpswBus,
    held: Held,
}

impl Bus for HeldBus {
    type Bar = HeldBar;
    type Dma = ModelDma;
    type Irq = CpswIrq;

    fn name(&self) -> &str {
        "held"
    }

    fn bar(&self, index: u8, len: usize) -> Result<HeldBar, BusError> {
        let held = (index == 1).then(|| self.held.clone());
        Ok(HeldBar { bar: self.bus.bar(index, len)?, held })
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
fn a_queue_that_is_in_the_middle_of_a_doorbell_keeps_no_other_channel_from_ringing_its_own() {
    // Two ports with a channel each; four, of which the first and the third share one, and the second and the fourth.
    for ports in [2, 4] {
        let model = Cpsw::new(model_config(Way::Pktdma, ports)).unwrap();
        model.answer_reads(4);
        (1..=ports).for_each(|port| model.plug(port, Loopback::default()));
        let doorbell = |ring: usize| ring * 0x2000 + 0x10;
        let held = Held { gate: Arc::default(), holds: doorbell(19), opens: doorbell(27) };
        let bus = HeldBus { bus: model.bus(), held: held.clone() };
        let calls: Arc<dyn Tisci> = Arc::new(model.firmware());
        let (opened, _control) = open(bus, calls, Config { tx_channels: 2, ..config(Way::Pktdma, ports) }).unwrap();
        let pool = pool(1024);
        let mut queues: Vec<_> = opened
            .into_iter()
            .map(|port| port.start(Start { pool: pool.clone(), queues: 1, accept: Offloads::ALL }).unwrap())
            .collect();
        let (first, rest) = queues.split_at_mut(1);
        std::thread::scope(|scope| {
            scope.spawn(|| send_one(&mut first[0].tx[0], &pool));
            held.wait_for_waiting();
            send_one(&mut rest[0].tx[0], &pool);
        });
    }
}

//! The driver's side: registers, configuration space and interrupts behind the traits of
//! `towpath-bus`.

use super::env::Absence;
use super::irq::ModelIrq;
use super::register_file::canonical;
use super::regs::*;
use super::shared::DeviceShared;
use super::{stats, strict};
use crate::iommu::ModelDma;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use towpath_bus::{Bus, BusError, Events, IrqKind, Mmio, Pci};

/// The driver's handle of a model. Dropping it stops the device and its thread.
#[derive(Debug)]
pub struct ModelBus {
    pub(super) shared: Arc<DeviceShared>,
    pub(super) thread: Option<std::thread::JoinHandle<()>>,
}

/// The registers of a model.
#[derive(Debug, Clone)]
pub struct ModelBar {
    shared: Arc<DeviceShared>,
}

/// The tail registers.
const TAILS: [usize; 4] = [RDBAL + TAIL, RDBAL + QUEUE + TAIL, TDBAL + TAIL, TDBAL + QUEUE + TAIL];

impl Mmio for ModelBar {
    fn len(&self) -> usize {
        BAR_LEN
    }

    fn r32(&self, at: usize) -> u32 {
        self.read(at)
    }

    #[inline]
    fn w32(&self, at: usize, value: u32) {
        // Tail writes are the driver's hot path: a plain store.
        if let Some(which) = TAILS.iter().position(|tail| *tail == at) {
            self.write_tail(which, at, value);
        } else {
            self.write(at, value);
        }
    }

    fn now(&self) -> Instant {
        Instant::now() + Duration::from_nanos(self.shared.ahead.load(Ordering::Relaxed))
    }

    /// A device without a thread is stepped by the thread that would sleep here.
    fn pause(&self, time: Duration) {
        if self.shared.runner.is_threaded() {
            std::thread::sleep(time);
        } else {
            self.shared.advance(time);
        }
    }
}

impl ModelBar {
    fn read(&self, at: usize) -> u32 {
        let env = &self.shared.env;
        env.accesses.reads.fetch_add(1, Ordering::Relaxed);
        env.order.flush();
        if let Some(absence) = env.absence() {
            return absence.register();
        }
        if !at.is_multiple_of(4) || at >= BAR_LEN || !env.decodes.load(Ordering::Acquire) {
            return u32::MAX;
        }
        match canonical(at) {
            ICR => env.irqs().read(&env.registers),
            ICS | IMC => 0,
            STATUS => {
                self.shared.machine().tick(env);
                env.registers.get(STATUS)
            }
            SWSM => {
                // Reading acquires the semaphore: the first reader sees it clear (82574 datasheet
                // §10.2.11.6).
                let word = env.registers.word(SWSM);
                word.map_or(u32::MAX, |w| w.fetch_or(1, Ordering::AcqRel))
            }
            MDIC => self.shared.machine().media.read_mdic(env),
            at @ STATS..STATS_END => stats::read(&env.registers, at),
            at => env.registers.get(at),
        }
    }

    #[inline]
    fn write_tail(&self, which: usize, at: usize, value: u32) {
        let env = &self.shared.env;
        env.accesses.tail(which);
        if !env.decodes.load(Ordering::Relaxed) || env.absence().is_some() {
            return;
        }
        if env.violations.strict() {
            strict::tail(env, at, env.registers.get(at) & 0xffff, value);
        }
        env.registers.set(at, value);
        if self.shared.runner.is_asleep() {
            self.shared.runner.wake();
        }
    }

    fn write(&self, at: usize, value: u32) {
        let env = &self.shared.env;
        let at = canonical(at);
        if let Some(which) = TAILS.iter().position(|tail| *tail == at) {
            return self.write_tail(which, at, value);
        }
        env.accesses.writes.fetch_add(1, Ordering::Relaxed);
        let answers = env.decodes.load(Ordering::Acquire) && env.absence().is_none();
        if !at.is_multiple_of(4) || at >= BAR_LEN || !answers {
            return;
        }
        if env.violations.strict() {
            strict::register(env, at, value);
        }
        match at {
            ICR => env.irqs().clear(&env.registers, value),
            ICS => {
                // Under the machine's lock, so that no burst runs concurrently.
                let _machine = self.shared.machine();
                env.irqs().raise(&env.registers, value & !cause::ASSERTED, || false);
            }
            IMS => env.irqs().unmask(&env.registers, value),
            IMC => env.irqs().mask(&env.registers, value),
            STATUS | STATS..STATS_END => {}
            EECD => env.registers.change(EECD, EECD_AUPDEN, value & EECD_AUPDEN),
            _ => self.write_device(at, value),
        }
        self.shared.runner.wake();
    }

    /// Writes to registers with side effects in the device.
    fn write_device(&self, at: usize, value: u32) {
        let (env, mut machine) = (&self.shared.env, self.shared.machine());
        match at {
            CTRL if value & CTRL_RST != 0 => machine.reset(env),
            CTRL => {
                env.registers.set(CTRL, value & !CTRL_PHY_RST);
                if value & CTRL_PHY_RST != 0 {
                    machine.media.reset_phy(env);
                }
                machine.written(env, at);
            }
            CTRL_EXT => {
                if value & CTRL_EXT_EE_RST != 0 {
                    machine.reset(env);
                }
                env.registers.set(at, value & !(CTRL_EXT_EE_RST | CTRL_EXT_PBA_CLR));
                machine.written(env, at);
            }
            MDIC => machine.mdic(env, value),
            EXTCNF_CTRL => machine.media.request_phy(env, value),
            EERD => machine.eerd(env, value),
            // The transmit part is the rest of 40 KiB (82574 datasheet §10.2.3.5).
            PBA => env.registers.set(PBA, value & 0x3f | (40 - (value & 0x3f).min(40)) << 16),
            _ => {
                env.registers.set(at, value);
                machine.written(env, at);
            }
        }
    }
}

impl ModelBus {
    fn error(&self, what: String) -> BusError {
        BusError::device(&self.shared.name, what)
    }

    /// The device's far side, to step and examine it.
    pub fn device(&self) -> super::Device {
        super::Device { shared: self.shared.clone() }
    }
}

impl Bus for ModelBus {
    type Bar = ModelBar;
    type Dma = ModelDma;
    type Irq = ModelIrq;

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn bar(&self, index: u8, len: usize) -> Result<ModelBar, BusError> {
        if index != 0 || len > BAR_LEN {
            return Err(self.error(format!("no {len} bytes of registers in BAR {index}: BAR 0 has {BAR_LEN}")));
        }
        Ok(ModelBar { shared: self.shared.clone() })
    }

    fn dma(&self) -> &ModelDma {
        &self.shared.env.dma
    }

    fn irqs(&self, count: u16) -> Result<Vec<ModelIrq>, BusError> {
        self.irqs_of(IrqKind::MsiX, count)
    }
}

impl Pci for ModelBus {
    fn config_r32(&self, at: u16) -> u32 {
        match self.shared.env.absence() {
            Some(absence) if absence.is_removal() => u32::MAX,
            _ => self.shared.pci.read(at),
        }
    }

    fn config_w32(&self, at: u16, value: u32) {
        self.shared.write_config(at, value);
    }

    fn reset(&self) -> Result<(), BusError> {
        match self.shared.env.absence() {
            None | Some(Absence::Contained) => self.shared.env.set_absence(None),
            Some(_) => return Err(self.error("the function can't be reset".to_owned())),
        }
        let mut machine = self.shared.machine();
        machine.reset(&self.shared.env);
        self.shared.pci.reset();
        self.shared.env.decodes.store(false, Ordering::Release);
        self.shared.env.master.store(false, Ordering::Release);
        Ok(())
    }

    fn irq_count(&self, kind: IrqKind) -> u16 {
        self.shared.pci.irq_count(kind)
    }

    fn irqs_of(&self, kind: IrqKind, count: u16) -> Result<Vec<ModelIrq>, BusError> {
        let offered = self.irq_count(kind);
        if count > offered {
            return Err(self.error(format!("{count} interrupts of {}: there are {offered}", kind.name())));
        }
        let irqs = self.shared.env.irqs().connect(kind, count, &self.shared);
        irqs.map_err(BusError::os(&self.shared.name, "eventfd"))
    }

    fn events(&self) -> Result<Events<ModelIrq>, BusError> {
        self.shared.env.irqs().connect_events().map_err(BusError::os(&self.shared.name, "eventfd"))
    }
}

impl Drop for ModelBus {
    fn drop(&mut self) {
        self.shared.runner.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.shared.env.violations.strict() {
            strict::closed(&self.shared.env);
        }
        // The device is closed: no register answers, and no memory is accessed any more.
        self.shared.machine().reset(&self.shared.env);
        self.shared.env.decodes.store(false, Ordering::Release);
        self.shared.env.master.store(false, Ordering::Release);
    }
}

//! The common configuration (virtio 1.2 §4.1.4.3), and the order in which a driver may use it
//! (§3.1.1).

use super::Config;
use crate::violation::{Violation, Violations};
use std::sync::Arc;

/// Bits of the status (§2.1).
pub(super) const ACKNOWLEDGE: u8 = 1;
pub(super) const DRIVER: u8 = 2;
pub(super) const DRIVER_OK: u8 = 4;
pub(super) const FEATURES_OK: u8 = 8;
pub(super) const NEEDS_RESET: u8 = 64;
/// No message.
pub(super) const NO_VECTOR: u16 = 0xffff;

/// A queue, as the driver set it.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueRegisters {
    pub(super) size: u16,
    pub(super) vector: u16,
    pub(super) enabled: bool,
    /// Addresses of the descriptor, driver and device areas.
    pub(super) areas: [u64; 3],
}

/// The registers.
#[derive(Debug)]
pub(super) struct Common {
    offered: u64,
    max_size: u16,
    messages: u16,
    feature_select: u32,
    driver_feature_select: u32,
    driver_features: u64,
    pub(super) config_vector: u16,
    pub(super) status: u8,
    pub(super) generation: u8,
    queue_select: u16,
    pub(super) queues: Vec<QueueRegisters>,
    violations: Arc<Violations>,
}

impl Common {
    /// With a number of queues, and of messages.
    pub(super) fn new(config: &Config, queues: usize, messages: u16, violations: Arc<Violations>) -> Common {
        let queue = QueueRegisters { size: config.queue_size, vector: NO_VECTOR, enabled: false, areas: [0; 3] };
        Common {
            offered: config.features,
            max_size: config.queue_size,
            messages,
            feature_select: 0,
            driver_feature_select: 0,
            driver_features: 0,
            config_vector: NO_VECTOR,
            status: 0,
            generation: 0,
            queue_select: 0,
            queues: vec![queue; queues],
            violations,
        }
    }

    /// As after power-on.
    pub(super) fn reset(&mut self) {
        let queue = QueueRegisters { size: self.max_size, vector: NO_VECTOR, enabled: false, areas: [0; 3] };
        self.queues.iter_mut().for_each(|q| *q = queue);
        (self.feature_select, self.driver_feature_select, self.driver_features) = (0, 0, 0);
        (self.config_vector, self.status, self.queue_select) = (NO_VECTOR, 0, 0);
    }

    /// The features that were chosen; 0 before they are accepted.
    pub(super) fn features(&self) -> u64 {
        if self.status & FEATURES_OK != 0 { self.driver_features } else { 0 }
    }

    /// Whether the device works.
    pub(super) fn runs(&self) -> bool {
        self.status & DRIVER_OK != 0 && self.status & NEEDS_RESET == 0
    }

    fn breach(&self, at: usize, value: u64, rule: &'static str) {
        self.violations.report(Violation::Register { at: at as u32, value: value as u32, rule });
    }

    fn rule(&self, holds: bool, at: usize, value: u64, rule: &'static str) {
        if !holds {
            self.breach(at, value, rule);
        }
    }

    fn queue(&self) -> Option<&QueueRegisters> {
        self.queues.get(usize::from(self.queue_select))
    }

    /// Reads a register of `width` bytes.
    pub(super) fn read(&self, at: usize, width: usize) -> u64 {
        let half = |bits: u64, select: u32| match select {
            0 => bits & 0xffff_ffff,
            1 => bits >> 32,
            _ => 0,
        };
        let queue = |of: fn(&QueueRegisters) -> u64| self.queue().map_or(0, of);
        match (at, width) {
            (0, 4) => self.feature_select.into(),
            (4, 4) => half(self.offered, self.feature_select),
            (8, 4) => self.driver_feature_select.into(),
            (12, 4) => half(self.driver_features, self.driver_feature_select),
            (16, 2) => self.config_vector.into(),
            (18, 2) => self.queues.len() as u64,
            (20, 1) => self.status.into(),
            (21, 1) => self.generation.into(),
            (22, 2) => self.queue_select.into(),
            (24, 2) => queue(|q| q.size.into()),
            (26, 2) => self.queue().map_or(NO_VECTOR, |q| q.vector).into(),
            (28, 2) => queue(|q| q.enabled.into()),
            (30, 2) => self.queue_select.into(),
            (32 | 36 | 40 | 44 | 48 | 52, 4) => {
                let address = self.queue().and_then(|q| q.areas.get((at - 32) / 8).copied()).unwrap_or(0);
                half(address, u32::from(at % 8 == 4))
            }
            _ => {
                self.breach(at, 0, "a field is read by its own width (4.1.3.1)");
                u64::MAX
            }
        }
    }

    /// Writes a register of `width` bytes, except for the status. Returns the queue that was
    /// enabled.
    pub(super) fn write(&mut self, at: usize, width: usize, value: u64) -> Option<u16> {
        self.rule(
            self.status & ACKNOWLEDGE != 0 || matches!(at, 0 | 8 | 22),
            at,
            value,
            "the driver did not acknowledge the device (3.1.1)",
        );
        match (at, width) {
            (0, 4) => self.feature_select = value as u32,
            (8, 4) => self.driver_feature_select = value as u32,
            (12, 4) => self.choose_features(value),
            (16, 2) => self.config_vector = self.vector(value as u16),
            (22, 2) => self.queue_select = value as u16,
            (24 | 26 | 28, 2) | (32 | 36 | 40 | 44 | 48 | 52, 4) => return self.set_queue(at, value),
            _ => self.breach(at, value, "a field is written by its own width (4.1.3.1)"),
        }
        None
    }

    /// Messages that do not exist read back as none (§4.1.5.1.2).
    fn vector(&self, vector: u16) -> u16 {
        if vector < self.messages { vector } else { NO_VECTOR }
    }

    fn choose_features(&mut self, value: u64) {
        self.rule(self.status & DRIVER != 0, 12, value, "features are chosen after the status DRIVER (3.1.1)");
        self.rule(self.status & FEATURES_OK == 0, 12, value, "features change after FEATURES_OK (3.1.1)");
        let shift = match self.driver_feature_select {
            0 => 0,
            1 => 32,
            _ => return self.rule(value == 0, 12, value, "features beyond 64 are not offered (2.2.1)"),
        };
        self.driver_features = self.driver_features & !(0xffff_ffff << shift) | value << shift;
        self.rule(value << shift & !self.offered == 0, 12, value, "features that are not offered (2.2.1)");
    }

    fn set_queue(&mut self, at: usize, value: u64) -> Option<u16> {
        self.rule(self.status & FEATURES_OK != 0, at, value, "queues are set up after FEATURES_OK (3.1.1)");
        self.rule(self.status & DRIVER_OK == 0, at, value, "queues are set up before DRIVER_OK (3.1.1)");
        let (packed, most, vector) = (self.driver_features >> 34 & 1 == 1, self.max_size, self.vector(value as u16));
        let index = self.queue_select;
        let Some(queue) = self.queues.get_mut(usize::from(index)) else {
            self.breach(at, value, "there is no such queue");
            return None;
        };
        let was_enabled = queue.enabled;
        match at {
            24 => queue.size = value as u16,
            26 => queue.vector = vector,
            28 => queue.enabled |= value == 1,
            _ => {
                if let Some(area) = queue.areas.get_mut((at - 32) / 8) {
                    let shift = if at % 8 == 4 { 32 } else { 0 };
                    *area = *area & !(0xffff_ffff << shift) | value << shift;
                }
            }
        }
        let QueueRegisters { size, areas: [desc, driver, device], .. } = *queue;
        self.rule(!was_enabled, at, value, "an enabled queue is not set up again (4.1.4.3.2)");
        match at {
            24 => {
                let fits = (1..=most).contains(&size) && (packed || size.is_power_of_two());
                self.rule(fits, at, value, "the size of a queue (2.7, 2.8)");
            }
            28 => {
                self.rule(value == 1, at, value, "a queue is enabled by 1, and never disabled (4.1.4.3.2)");
                let aligned = if packed { [16, 4, 4] } else { [16, 2, 4] };
                let is_aligned = [desc, driver, device].iter().zip(aligned).all(|(area, to)| area % to == 0);
                self.rule(is_aligned, at, value, "the alignment of a queue's areas (2.7, 2.8.10.1)");
                return (!was_enabled && value == 1).then_some(index);
            }
            _ => {}
        }
        None
    }

    /// Writes the status. Returns false if that is a reset.
    pub(super) fn set_status(&mut self, value: u8) -> bool {
        if value == 0 {
            return false;
        }
        let added = value & !self.status;
        let rule = |holds, rule| self.rule(holds, 20, value.into(), rule);
        rule(self.status & !value & !NEEDS_RESET == 0, "a driver clears no bit of the status (2.1.1)");
        rule(added & DRIVER == 0 || value & ACKNOWLEDGE != 0, "DRIVER without ACKNOWLEDGE (3.1.1)");
        rule(added & FEATURES_OK == 0 || value & DRIVER != 0, "FEATURES_OK without DRIVER (3.1.1)");
        rule(added & DRIVER_OK == 0 || self.status & FEATURES_OK != 0, "DRIVER_OK without FEATURES_OK (3.1.1)");
        let mut status = value | self.status & NEEDS_RESET;
        if added & FEATURES_OK != 0 && !self.accepts() {
            status &= !FEATURES_OK;
        }
        self.status = status;
        true
    }

    /// Whether the features go together (§5.1.3.1, §6.2).
    fn accepts(&self) -> bool {
        let bits = self.driver_features;
        let has = |bit: u32| bits >> bit & 1 == 1;
        let needs = |bit, needed| !has(bit) || has(needed);
        let platform = self.offered >> 33 & 1 == 0 || has(33);
        let control = [18, 19, 21, 22, 23].into_iter().all(|bit| needs(bit, 17));
        bits & !self.offered == 0 && has(32) && platform && control
    }
}

//! The hot paths as they are.

use crate::Side;
use std::sync::Arc;
use towpath_engine::gro_stage::{GroMode, GroPacket, GroStage, GroStageConfig, Pushed};
use towpath_gro::{Gro, GroConfig};
use towpath_packet::port::Layer;
use towpath_packet::{Batch, Counters, Offloads, Packet};

/// The engine alone.
pub struct Engine(Gro<GroPacket>);

impl Engine {
    pub fn new() -> Engine {
        Engine(Gro::new(GroConfig::default()))
    }
}

impl<const N: usize> Side<N> for Engine {
    #[inline]
    fn push(&mut self, burst: &mut Batch<N>, out: &mut Vec<Packet>) {
        let packets = burst.drain_front(burst.len()).map(GroPacket);
        self.0.push_and_flush(packets, &mut (|packet: GroPacket| out.push(packet.0), drop));
    }
}

/// The stage of a route with `--gro on`.
pub struct Stage(GroStage);

impl Stage {
    pub fn new() -> Stage {
        let mut config = GroStageConfig::default();
        config.mode = GroMode::On;
        Stage(GroStage::new(&config, Layer::Ethernet, Offloads::NONE, Arc::new(Counters::default())))
    }
}

impl Side for Stage {
    #[inline]
    fn push(&mut self, burst: &mut Batch, _out: &mut Vec<Packet>) {
        if self.0.push(burst, true) == Pushed::Taken {
            self.0.fill(burst);
        }
    }
}

//! `tx=live`: packets become frames of a program that the kernel runs, and never an `sk_buff`.
//!
//! ```text
//!   tx(batch) ── copy ──► memory of a map ── one call: bpf(BPF_PROG_TEST_RUN, live frames, repeat = n) ──┐
//!                                                                                                        ▼
//!                          a page of the kernel's ◄── copy ── our program, n times ── redirect ──► ndo_xdp_xmit(device)
//! ```
//!
//! An AF_XDP socket in copy mode costs the kernel an `sk_buff` per frame, 0.9 µs; here a frame is two copies and a redirect,
//! and a device takes 16 of them at a time. What a call costs by itself (15 µs) is shared by `burst` frames: they are gathered for
//! as long as packets keep coming, and leave with the first turn that brings none.
//!
//! * **Where it works.** The device must take frames of programs (`ndo_xdp_xmit`): drivers with XDP of their own while a program
//!   is attached, tap, and a veth whose *other end* has GRO on or a program. A veth that does not take them drops them
//!   without counting: so the device is asked at the start, and ten times a second, and what it did not take is
//!   counted as [`DropReason::Refused`].
//! * **What is sent** is up to the device: the kernel tells nothing of single frames. Its statistics say how many it dropped; packets
//!   are counted as sent, or as refused, when those were read, ten times a second and at the end.
//! * **Frames** of up to 3264 bytes, in one piece; with complete checksums, because there is no `sk_buff` to say otherwise.
//! * **The dispatcher.** A program that is run but attached nowhere is entered into the kernel's table of XDP programs for each
//!   call, which waits for all processors to have passed a quiet state: 25 ms. So it is attached to a device that
//!   nobody sees, in a namespace of its own, for as long as the port lives.
//! * **Templates** (`tx=template`, for `towpath gen` only): the frames of the generator are made in the kernel as well, see `template.rs`.
//! * **Namespaces.** The device is in a map, which holds it whatever namespace the calling thread is in.

mod account;
mod generate;
mod hold;
mod memory;
mod program;
mod template;
mod tx;

pub use generate::{TemplatePort, TemplateRx, TemplateTx, open_templates};
pub use tx::LiveTx;

use super::ask;
use super::config::Config;
use hold::Held;
use memory::Gathered;
use std::io;
use std::time::{Duration, Instant};
use template::Templates;
#[cfg(doc)]
use towpath_packet::DropReason;
use towpath_packet::port::PortError;
use towpath_sys::bpf::{Kind, Map, MapKind, Program};
use towpath_sys::netdev_genl::Features;
use towpath_sys::netns;

/// A call that takes longer, for nothing, waits for something that it should not.
const LONG_CALL: Duration = Duration::from_millis(5);
/// The step that runs a program.
const RUN: &str = "bpf(BPF_PROG_TEST_RUN), live frames";
/// Runs of the trial.
const TRIAL: u32 = 16;

/// Frames that the kernel makes ready at a time: it keeps as many pages, and more of them are colder.
const BATCH: u32 = 64;

/// The program of one queue with its memory, and what keeps both ready.
#[derive(Debug)]
pub(super) struct Live {
    program: Program,
    gathered: Gathered,
    /// Length of frames as the kernel makes them, and runs that were counted: with templates.
    len: usize,
    counted: u64,
    _memory: Map,
    _device: Map,
    _held: Held,
}

/// A map with one device in it, of the namespace that the port is in.
fn device(config: &Config, index: i32) -> io::Result<Map> {
    netns::within(config.netns.as_deref(), || {
        let devices = Map::new(MapKind::Devices, 4, 1, "towpath_dev")?;
        devices.set_device(0, index)?;
        Ok(devices)
    })?
}

/// Whether a device takes frames of programs; why not.
pub(super) fn possible(said: Option<Features>) -> Result<(), String> {
    match said {
        None => Err("the kernel does not say whether the device takes frames of programs: Linux 6.3 does".to_owned()),
        Some(said) if !said.takes_frames() => Err("the device takes no frames of programs".to_owned()),
        Some(_) => Ok(()),
    }
}

/// What would make it take them.
pub(super) fn mend(driver: &str) -> &'static str {
    match driver {
        "veth" => "at the other end: ethtool -K PEER gro on, or an XDP program (towpath sink xdp:PEER)",
        _ => "mode=native, where the driver has it",
    }
}

impl Live {
    /// Loads the program for the device `index`, and runs it without sending anything.
    pub(super) fn new(config: &Config, index: i32) -> Result<Live, PortError> {
        let mut live = Live::load(config, index, program::frames)?;
        live.try_out().map_err(ask::os(config, RUN))?;
        Ok(live)
    }

    /// Loads the program that makes frames of templates.
    fn of_templates(config: &Config, index: i32, templates: &Templates) -> Result<Live, PortError> {
        let flows = templates.frames.len() as u32;
        let mut live =
            Live::load(config, index, |memory, device| template::program(memory, device, flows, &templates.places))?;
        live.try_out().map_err(ask::os(config, RUN))?;
        for (flow, frame) in templates.frames.iter().enumerate() {
            if !live.gathered.keep(flow, frame) {
                return Err(config.error("size", frame.len(), "all templates must fit into the memory of a map"));
            }
        }
        live.len = live.gathered.begin();
        Ok(live)
    }

    fn load(config: &Config, index: i32, code: impl FnOnce(i32, i32) -> Vec<u64>) -> Result<Live, PortError> {
        let failed = |step: &'static str| ask::os(config, step);
        let memory =
            Map::new(MapKind::Array, program::VALUE, 1, "towpath_frames").map_err(failed("bpf(BPF_MAP_CREATE)"))?;
        let device = device(config, index).map_err(failed("put the device into a map"))?;
        let code = code(memory.number(), device.number());
        let program =
            Program::load(Kind::Xdp { frags: false }, &code, "towpath_live").map_err(failed("bpf(BPF_PROG_LOAD)"))?;
        let held = Held::new(&program).map_err(failed("hold the program on a device of its own"))?;
        let gathered = Gathered::new(memory.memory().map_err(failed("map the frames"))?);
        Ok(Live { program, gathered, len: 0, counted: 0, _memory: memory, _device: device, _held: held })
    }

    /// Runs the program on templates.
    fn run(&self, frames: u32, batch: u32) -> io::Result<()> {
        let template = [0u8; program::LONGEST];
        self.program.run_live(&template[..self.len.min(program::LONGEST)], frames, frames.min(batch))
    }

    /// Frames that were made of templates since this was last asked.
    fn made(&mut self) -> u64 {
        let runs = self.gathered.runs();
        runs.wrapping_sub(std::mem::replace(&mut self.counted, runs))
    }

    /// Runs it on frames that it drops; a long call means that the program is not held.
    fn try_out(&mut self) -> io::Result<()> {
        self.gathered.begin_trial();
        let began = Instant::now();
        self.program.run_live(&[0; 64], TRIAL, TRIAL)?;
        if began.elapsed() > LONG_CALL {
            // Once more: the first call may have had bad luck.
            let began = Instant::now();
            self.program.run_live(&[0; 64], TRIAL, TRIAL)?;
            if began.elapsed() > LONG_CALL {
                return Err(io::Error::other(
                    "each call takes milliseconds: the kernel's table of XDP programs is full",
                ));
            }
        }
        Ok(())
    }
}

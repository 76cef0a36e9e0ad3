//! `tx=live`: packets become frames of a program that the kernel runs, and never an `sk_buff`.
//!
//! ```text
//!   tx(batch) ── copy ──► memory of a map
//!                              │ one call: bpf(BPF_PROG_TEST_RUN, live frames, repeat = n)
//!                              ▼
//!                         the program, n times ── redirect ──► ndo_xdp_xmit(device)
//!                              └── copy ──► a page of the kernel
//! ```
//!
//! An AF_XDP socket in copy mode costs the kernel an `sk_buff` per frame, 0.9 µs. Here a frame
//! costs two copies and a redirect, and a device accepts 16 of them at a time. The cost of a call
//! (15 µs) is shared by `burst` frames: frames are gathered while packets arrive, and are sent in
//! the first turn without a packet.
//!
//! * **Devices.** The device must accept redirected frames (`ndo_xdp_xmit`): a driver with native
//!   XDP while a program is attached, a tap, and a veth whose *peer* has GRO on or a program. A
//!   veth that does not accept them drops them without counting. So the device's features are read
//!   at the start and ten times a second, and refused frames are counted as
//!   [`DropReason::Refused`].
//! * **Counters.** The kernel reports nothing about single frames. The device's statistics show how
//!   many it dropped: packets are counted as sent or refused when the statistics are read, ten
//!   times a second and at the end.
//! * **Frames** of up to 3264 bytes, in one fragment, with complete checksums, because there is no
//!   `sk_buff` for a partial one.
//! * **The dispatcher.** The kernel enters an unattached program into its table of XDP programs for
//!   each call, which waits for an RCU grace period: 25 ms. So the program is attached to a device
//!   in a namespace of its own for the life of the port.
//! * **Templates** (`tx=template`, for `towpath gen` only): the generator's frames are made in the
//!   kernel, see `template.rs`.
//! * **Namespaces.** The device is in a map, which refers to it in any namespace of the calling
//!   thread.
//!
//! | file | |
//! |---|---|
//! | `program.rs` | the program, and the memory of its frames |
//! | `tx.rs` | the transmit queue, and its account with the device |
//! | `template.rs` | the port that makes a generator's frames |

mod program;
mod template;
mod tx;

pub use template::{TemplatePort, TemplateRx, TemplateTx, open_templates};
pub use tx::LiveTx;
pub(super) use tx::TxAccount;

use super::config::Config;
use super::errors;
use program::FrameMemory;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};
use template::Templates;
#[cfg(doc)]
use towpath_packet::DropReason;
use towpath_packet::port::PortError;
use towpath_sys::bpf::{AttachMode, Map, MapType, Program, ProgramType, XdpLink};
use towpath_sys::netdev::Control;
use towpath_sys::netdev_genl::Features;
use towpath_sys::netns;
use towpath_sys::tun::{self, Attach};

/// A trial that takes longer means that the program is not in the kernel's table.
const LONG_CALL: Duration = Duration::from_millis(5);
/// The step that runs a program.
const RUN: &str = "bpf(BPF_PROG_TEST_RUN), live frames";
/// Runs of the trial.
const TRIAL: u32 = 16;

/// Frames of one batch in the kernel, which keeps as many pages; more pages are colder.
const BATCH: u32 = 64;

/// The program of one queue with its memory.
#[derive(Debug)]
pub(super) struct LiveProgram {
    program: Program,
    frames: FrameMemory,
    /// With templates: the length of new frames, and the runs that were counted.
    len: usize,
    counted: u64,
    _memory: Map,
    _device: Map,
    _held: HeldProgram,
}

/// A DEVMAP with one device, of the port's namespace.
fn devmap(config: &Config, index: i32) -> io::Result<Map> {
    netns::within(config.netns.as_deref(), || {
        let devices = Map::new(MapType::Devmap, 4, 1, "towpath_dev")?;
        devices.set_device(0, index)?;
        Ok(devices)
    })?
}

/// Whether a device accepts redirected frames; the reason if not.
pub(super) fn possible(features: Option<Features>) -> Result<(), String> {
    match features {
        None => Err("the kernel does not say whether the device takes frames of programs: Linux 6.3 does".to_owned()),
        Some(features) if !features.ndo_xmit() => Err("the device takes no frames of programs".to_owned()),
        Some(_) => Ok(()),
    }
}

/// A hint that makes it accept them.
pub(super) fn hint(driver: &str) -> &'static str {
    match driver {
        "veth" => "at the other end: ethtool -K PEER gro on, or an XDP program (towpath sink xdp:PEER)",
        _ => "mode=native, where the driver has it",
    }
}

impl LiveProgram {
    /// Loads the program for the device `index`, and runs it without sending.
    pub(super) fn new(config: &Config, index: i32) -> Result<LiveProgram, PortError> {
        let mut live = LiveProgram::load(config, index, program::frames)?;
        live.run_trial().map_err(errors::os_error(config, RUN))?;
        Ok(live)
    }

    /// Loads the program that makes frames of templates.
    fn from_templates(config: &Config, index: i32, templates: &Templates) -> Result<LiveProgram, PortError> {
        let flows = templates.frames.len() as u32;
        let mut live = LiveProgram::load(config, index, |memory, device| {
            template::program(memory, device, flows, &templates.offsets)
        })?;
        live.run_trial().map_err(errors::os_error(config, RUN))?;
        for (flow, frame) in templates.frames.iter().enumerate() {
            if !live.frames.store_template(flow, frame) {
                return Err(config.error("size", frame.len(), "all templates must fit into the memory of a map"));
            }
        }
        live.len = live.frames.begin();
        Ok(live)
    }

    fn load(
        config: &Config,
        index: i32,
        code: impl FnOnce(i32, i32) -> io::Result<Vec<u64>>,
    ) -> Result<LiveProgram, PortError> {
        let failed = |step: &'static str| errors::os_error(config, step);
        let memory =
            Map::new(MapType::Array, program::VALUE, 1, "towpath_frames").map_err(failed("bpf(BPF_MAP_CREATE)"))?;
        let device = devmap(config, index).map_err(failed("put the device into a map"))?;
        let program = code(memory.fd(), device.fd())
            .and_then(|code| Program::load(ProgramType::Xdp { frags: false }, &code, "towpath_live"))
            .map_err(failed("bpf(BPF_PROG_LOAD)"))?;
        let held = HeldProgram::new(&program).map_err(failed("hold the program on a device of its own"))?;
        let frames = FrameMemory::new(memory.memory().map_err(failed("map the frames"))?);
        Ok(LiveProgram { program, frames, len: 0, counted: 0, _memory: memory, _device: device, _held: held })
    }

    /// Runs the program on templates.
    fn run(&self, frames: u32, batch: u32) -> io::Result<()> {
        let template = [0u8; program::MAX_LEN];
        self.program.run_live(&template[..self.len.min(program::MAX_LEN)], frames, frames.min(batch))
    }

    /// Frames that were made of templates since the last call.
    fn take_made(&mut self) -> u64 {
        let runs = self.frames.runs();
        runs.wrapping_sub(std::mem::replace(&mut self.counted, runs))
    }

    /// Runs the program on frames that it drops; a long call means that it is not in the kernel's
    /// table.
    fn run_trial(&mut self) -> io::Result<()> {
        self.frames.begin_trial();
        let began = Instant::now();
        self.program.run_live(&[0; 64], TRIAL, TRIAL)?;
        if began.elapsed() > LONG_CALL {
            // Once more: the scheduler may have delayed the first call.
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

/// Keeps a program in the kernel's table of XDP programs: attached to a device in a namespace of
/// its own. Members are dropped in this order.
#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped")]
struct HeldProgram {
    link: XdpLink,
    tap: Option<File>,
    /// Keeps the namespace after its thread has ended.
    namespace: File,
}

impl HeldProgram {
    /// Attaches the program in a new namespace: natively to a tap; without TUN/TAP, to the loopback
    /// in the stack, which adds a check to each received packet of the machine.
    fn new(program: &Program) -> io::Result<HeldProgram> {
        netns::scratch(|| {
            let namespace = File::open("/proc/thread-self/ns/net")?;
            let control = Control::new()?;
            if let Ok((link, tap)) = on_tap(program, &control) {
                return Ok(HeldProgram { link, tap: Some(tap), namespace });
            }
            let link = XdpLink::attach(program, control.index("lo")?, AttachMode::Generic)?;
            Ok(HeldProgram { link, tap: None, namespace })
        })?
    }
}

fn on_tap(program: &Program, control: &Control) -> io::Result<(XdpLink, File)> {
    let tap = tun::open()?;
    let name = tun::attach(&tap, "hold", Attach { ethernet: true, multi_queue: false, vnet_header: true })?;
    let link = XdpLink::attach(program, control.index(&name)?, AttachMode::Native)?;
    Ok((link, tap))
}

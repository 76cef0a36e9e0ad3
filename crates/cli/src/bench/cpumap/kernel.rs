//! The kernel's datapath: an XDP program that redirects every frame to a CPUMAP, whose thread on
//! another core makes buffers of frames and passes them to GRO and the stack
//! (`kernel/bpf/cpumap.c`).

use std::io;
use towpath_sys::bpf::asm::{Alu, Asm, Call, R1, R2, R3};
use towpath_sys::bpf::{AttachMode, Map, MapType, Program, ProgramType, XdpLink};
use towpath_sys::netdev::Control;

/// `XDP_PASS`.
const PASS: i32 = 2;

/// A program on an interface; dropping it detaches the program and ends the kernel's thread.
pub(super) struct Cpumap {
    _link: XdpLink,
    _map: Map,
}

impl Cpumap {
    /// Redirects the frames of `interface`, in the thread's namespace, to `core`, through a queue
    /// of `frames`.
    ///
    /// # Errors
    /// The step that the kernel refused, and its error.
    pub(super) fn attach(interface: &str, core: usize, frames: u32) -> Result<Cpumap, String> {
        let failed = |step: &'static str| move |error: io::Error| format!("{step}: {error}");
        let core = u32::try_from(core).map_err(|_| format!("core {core} has no number in a CPUMAP"))?;
        let map = Map::new(MapType::Cpumap, 4, core + 1, "towpath_cpus").map_err(failed("bpf(2), a CPUMAP"))?;
        map.set_core(core, frames).map_err(failed("bpf(2), a core in a CPUMAP"))?;
        let kind = ProgramType::Xdp { frags: false };
        let program = redirect(map.fd(), core).and_then(|code| Program::load(kind, &code, "towpath_cpumap"));
        let program = program.map_err(failed("bpf(2), the program"))?;
        let index =
            Control::new().and_then(|control| control.index(interface)).map_err(failed("find the interface"))?;
        let link = XdpLink::attach(&program, index, AttachMode::Native).map_err(failed("bpf(2), attach"))?;
        Ok(Cpumap { _link: link, _map: map })
    }
}

/// Redirects every frame to `core`.
fn redirect(map: i32, core: u32) -> io::Result<Vec<u64>> {
    let mut a = Asm::default();
    a.map(R1, map);
    a.imm(Alu::Mov, R2, core as i32);
    a.imm(Alu::Mov, R3, PASS);
    a.call(Call::RedirectMap);
    a.exit();
    a.finish()
}

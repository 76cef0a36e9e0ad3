//! Active state power management (ASPM) of the link to a device: where an erratum forbids it, it is
//! switched off at both ends.
//!
//! ```text
//!   bridge or root port ── Link Control ◄──── link ────► Link Control ── function
//!                          bit 0: L0s, bit 1: L1 (PCI Express 4.0 §7.5.3.7)
//! ```
//!
//! VFIO gives a driver no access to Link Control, and the kernel has no quirk for these devices:
//! its own driver switches ASPM off when it is bound (Linux: `e1000e_disable_aspm`).
//! [`bind`](super::bind) does the same, and [`unbind`](super::unbind) gives back what was there.
//!
//! The kernel's switches, `link/l0s_aspm` and `link/l1_aspm` of the function, work at both ends,
//! and the kernel does not undo them. What they leave, or where they are missing, is written to the
//! configuration space. It is switched off at the function first, and on at the bridge first
//! (§5.4.1.3).

use super::bdf::Bdf;
use super::bind::Kernel;
use super::host::{Host, device};
use std::fmt;

/// Devices that lose completions or hang with L0s or L1: the 82574L, the 82574LA and the 82583V
/// (Linux: `FLAG2_DISABLE_ASPM_L0S`, `FLAG2_DISABLE_ASPM_L1`).
const ERRATUM: [(u16, u16); 3] = [(0x8086, 0x10d3), (0x8086, 0x10f6), (0x8086, 0x150c)];

/// The states in Link Control, and the kernel's switches for them.
const STATES: u16 = 3;
const SWITCHES: [(u16, &str, &str); 2] = [(1, "L0s", "link/l0s_aspm"), (2, "L1", "link/l1_aspm")];

/// ASPM at both ends of the link to a device that must not use it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aspm {
    /// The function.
    pub bdf: Bdf,
    /// What is on at the function: bit 0 is L0s, bit 1 is L1.
    pub function: u16,
    /// The bridge above it, and what is on there. `None` if there is no bridge.
    pub bridge: Option<(Bdf, u16)>,
}

/// The state of ASPM for a device with the erratum. `None`: another device, no link, or this
/// process has no right to know.
pub fn aspm(bdf: Bdf) -> Option<Aspm> {
    Aspm::of(&Host::this(), bdf)
}

impl Aspm {
    pub(super) fn of(host: &Host, bdf: Bdf) -> Option<Aspm> {
        let id = |file| u16::from_str_radix(host.read(&device(bdf, file))?.trim_start_matches("0x"), 16).ok();
        if !ERRATUM.contains(&(id("vendor")?, id("device")?)) {
            return None;
        }
        let bridge = host.bridge(bdf);
        let states = |bdf| link_control(host, bdf).map(|(_, word)| word & STATES);
        match states(bdf) {
            Some(function) => Some(Aspm { bdf, function, bridge: bridge.and_then(|b| Some((b, states(b)?))) }),
            // Only root reads the whole configuration space; the switches show both ends as one.
            None => switches(host, bdf).map(|function| Aspm { bdf, function, bridge: None }),
        }
    }

    /// Whether both ends are off.
    pub fn is_off(&self) -> bool {
        self.function == 0 && self.bridge.is_none_or(|(_, states)| states == 0)
    }

    /// The commands that switch it off.
    pub fn hint(&self) -> String {
        let ends = [(self.bdf, self.function)].into_iter().chain(self.bridge);
        let commands = ends.filter(|end| end.1 != 0).map(|(bdf, _)| format!("setpci -s {bdf} CAP_EXP+10.w=0:3"));
        commands.collect::<Vec<_>>().join("; ")
    }

    /// As the file of a bound device keeps it.
    pub(super) fn line(&self) -> String {
        let bridge = self.bridge.map(|(bdf, states)| format!(" {bdf} {states}")).unwrap_or_default();
        format!("{}{bridge}", self.function)
    }

    pub(super) fn parse(bdf: Bdf, line: &str) -> Option<Aspm> {
        let mut words = line.split(' ');
        let function = words.next()?.parse().ok()?;
        let bridge = words.next().and_then(|bridge| Some((bridge.parse().ok()?, words.next()?.parse().ok()?)));
        Some(Aspm { bdf, function, bridge })
    }
}

impl fmt::Display for Aspm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |states: u16| {
            let on: Vec<_> = SWITCHES.iter().filter(|(bit, ..)| states & bit != 0).map(|(_, name, _)| *name).collect();
            if on.is_empty() { "nothing".to_owned() } else { on.join(" and ") }
        };
        if self.is_off() {
            return f.write_str("power management of the link (ASPM) is off at both ends");
        }
        write!(f, "power management of the link (ASPM) has {} on at the device", names(self.function))?;
        if let Some((bdf, states)) = self.bridge {
            write!(f, " and {} at the bridge {bdf}", names(states))?;
        }
        f.write_str(": by an erratum it may lose completions and hang")
    }
}

/// Switches ASPM off. Returns the state before, if anything was on.
pub(super) fn switch_off(kernel: &mut impl Kernel, bdf: Bdf) -> Option<Aspm> {
    let before = Aspm::of(kernel.host(), bdf).filter(|aspm| !aspm.is_off())?;
    set_switches(kernel, bdf, 0);
    set_states(kernel, bdf, 0);
    if let Some((bridge, _)) = before.bridge {
        set_states(kernel, bridge, 0);
    }
    Some(before)
}

/// Gives back what [`switch_off`] has found.
pub(super) fn restore(kernel: &mut impl Kernel, before: &Aspm) {
    let bridge = before.bridge.filter(|(bdf, _)| kernel.host().bridge(before.bdf) == Some(*bdf));
    set_switches(kernel, before.bdf, before.function);
    if let Some((bridge, states)) = bridge {
        set_states(kernel, bridge, states);
    }
    set_states(kernel, before.bdf, before.function);
}

/// Sets the kernel's switches, as far as they exist. What they have done is read back by the
/// caller.
fn set_switches(kernel: &mut impl Kernel, bdf: Bdf, states: u16) {
    for (bit, _, switch) in SWITCHES {
        let (path, value) = (device(bdf, switch), if states & bit != 0 { "1" } else { "0" });
        if kernel.host().read(&path).is_some_and(|now| now != value) {
            let _ = kernel.write(&path, value);
        }
    }
}

/// Sets the states in Link Control, if they are not so already. A failure is seen by reading.
fn set_states(kernel: &mut impl Kernel, bdf: Bdf, states: u16) {
    if let Some((at, word)) = link_control(kernel.host(), bdf).filter(|(_, word)| word & STATES != states) {
        let _ = kernel.write_config(bdf, at, word & !STATES | states);
    }
}

fn switches(host: &Host, bdf: Bdf) -> Option<u16> {
    let on = |(bit, _, switch): (u16, &str, &str)| host.read(&device(bdf, switch)).map(|now| (bit, now == "1"));
    let found: Vec<_> = SWITCHES.into_iter().filter_map(on).collect();
    (!found.is_empty()).then(|| found.iter().filter(|(_, on)| *on).fold(0, |bits, (bit, _)| bits | bit))
}

/// The offset of Link Control in the configuration space, and its value: in the PCI Express
/// capability (PCI 3.0 §6.7, PCI Express 4.0 §7.5.3).
fn link_control(host: &Host, bdf: Bdf) -> Option<(usize, u16)> {
    const CAPABILITIES: usize = 0x34;
    const PCI_EXPRESS: u8 = 0x10;
    const LINK_CONTROL: usize = 0x10;
    let space = std::fs::read(host.path(&device(bdf, "config"))).ok()?;
    let mut at = usize::from(space.get(CAPABILITIES)? & !3);
    // At most as many as fit, so that a cyclic list ends.
    for _ in 0..48 {
        let header = space.get(at..at + 2).filter(|_| at >= 0x40)?;
        if header[0] == PCI_EXPRESS {
            let at = at + LINK_CONTROL;
            return Some((at, u16::from_le_bytes([*space.get(at)?, *space.get(at + 1)?])));
        }
        at = usize::from(header[1] & !3);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::bind::{bind_on, unbind_on};
    use super::super::fake::FakeHost;
    use super::*;

    const BRIDGE: &str = "0000:00:1c.0";
    const KNOWN: [u32; 1] = [0x10d3_8086];

    /// An 82574L below a bridge. Link Control has these states and, as other bits, a common clock.
    fn machine(function: u16, bridge: u16) -> (FakeHost, Bdf) {
        let mut machine = FakeHost::new();
        machine.below_bridge("0000:03:00.0", BRIDGE);
        let nic = machine.add("0000:03:00.0", Some(7), Some("e1000e"));
        machine.config(nic, 0xe0, 0x40 | function);
        machine.config(BRIDGE.parse().unwrap(), 0x40, 0x40 | bridge);
        (machine, nic)
    }

    fn states(machine: &FakeHost, nic: Bdf) -> (u16, u16) {
        let word = |bdf| link_control(machine.host(), bdf).unwrap().1;
        (word(nic), word(BRIDGE.parse().unwrap()))
    }

    #[test]
    fn it_is_off_at_both_ends_while_the_device_is_bound_and_as_before_afterwards() {
        for (function, bridge) in [(3, 3), (2, 0), (0, 1), (2, 3)] {
            for switches in [false, true] {
                let (mut machine, nic) = machine(function, bridge);
                if switches {
                    machine.file(&device(nic, "link/l1_aspm"), if function & 2 != 0 { "1\n" } else { "0\n" });
                }
                let bound = bind_on(&mut machine, nic, &KNOWN, false).unwrap();
                assert_eq!(states(&machine, nic), (0x40, 0x40), "{function} {bridge} {switches}");
                let before = Aspm { bdf: nic, function, bridge: Some((BRIDGE.parse().unwrap(), bridge)) };
                assert_eq!(bound.aspm, Some(before));
                assert!(Aspm::of(machine.host(), nic).unwrap().is_off());
                unbind_on(&mut machine, nic, false).unwrap();
                assert_eq!(states(&machine, nic), (0x40 | function, 0x40 | bridge), "{function} {bridge} {switches}");
            }
        }
    }

    #[test]
    fn the_function_is_first_off_and_last_on_and_both_before_its_driver_is_back() {
        let (mut machine, nic) = machine(3, 3);
        bind_on(&mut machine, nic, &KNOWN, false).unwrap();
        unbind_on(&mut machine, nic, false).unwrap();
        let place = |text: &str| machine.commands.iter().position(|command| command.contains(text)).unwrap();
        let off = [place("0x0040 > 0000:03:00.0@0xf0"), place("0x0040 > 0000:00:1c.0@0x50")];
        let on = [place("0x0043 > 0000:00:1c.0@0x50"), place("0x0043 > 0000:03:00.0@0xf0")];
        let bound = place("drivers_probe");
        let unbound = machine.commands.iter().rposition(|command| command.contains("unbind")).unwrap();
        assert!(bound < off[0] && off[0] < off[1] && off[1] < on[0] && on[0] < on[1] && on[1] < unbound);
    }

    #[test]
    fn the_switches_of_the_kernel_are_used_if_there_are_any() {
        let (mut machine, nic) = machine(2, 2);
        machine.file(&device(nic, "link/l1_aspm"), "1\n");
        bind_on(&mut machine, nic, &KNOWN, false).unwrap();
        let written: Vec<_> = machine.commands.iter().filter(|c| c.contains("aspm") || c.contains('@')).collect();
        assert_eq!(written, ["0 > sys/bus/pci/devices/0000:03:00.0/link/l1_aspm"]);
    }

    #[test]
    fn a_device_without_the_erratum_or_without_a_link_is_left_alone() {
        let (mut other, nic) = machine(3, 3);
        other.file(&device(nic, "device"), "0x1533\n");
        let bound = bind_on(&mut other, nic, &[0x1533_8086], false).unwrap();
        assert_eq!((bound.aspm, states(&other, nic)), (None, (0x43, 0x43)));
        let mut machine = FakeHost::new();
        let nic = machine.add("0000:00:04.0", Some(7), None);
        machine.config(nic, 0xe0, 3);
        assert_eq!(Aspm::of(machine.host(), nic).unwrap().hint(), "setpci -s 0000:00:04.0 CAP_EXP+10.w=0:3");
        machine.file(&device(nic, "config"), "");
        assert_eq!(Aspm::of(machine.host(), nic), None);
    }

    #[test]
    fn what_is_on_is_named_with_the_commands_that_switch_it_off() {
        let (machine, nic) = machine(2, 3);
        let aspm = Aspm::of(machine.host(), nic).unwrap();
        let text = aspm.to_string();
        assert!(text.contains("L1 on at the device and L0s and L1 at the bridge 0000:00:1c.0"), "{text}");
        let hint = "setpci -s 0000:03:00.0 CAP_EXP+10.w=0:3; setpci -s 0000:00:1c.0 CAP_EXP+10.w=0:3";
        assert_eq!(aspm.hint(), hint);
        assert_eq!(Aspm::parse(nic, &aspm.line()), Some(aspm));
    }

    #[test]
    fn without_root_the_switches_tell_the_state() {
        let (machine, nic) = machine(2, 2);
        machine.file(&device(nic, "config"), &"\0".repeat(64));
        machine.file(&device(nic, "link/l0s_aspm"), "0\n");
        machine.file(&device(nic, "link/l1_aspm"), "1\n");
        assert_eq!(Aspm::of(machine.host(), nic), Some(Aspm { bdf: nic, function: 2, bridge: None }));
    }
}

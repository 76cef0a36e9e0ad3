//! The machine that a bench runs on.

use serde::Serialize;
use std::fmt::{self, Display};
use std::fs::read_to_string;
use std::path::Path;

/// A machine, as far as it decides what a figure means.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Machine {
    /// The processor's name, and its family, model and stepping where the kernel shows them.
    pub(crate) cpu: String,
    /// Whether a hypervisor runs it.
    #[serde(rename = "virtual")]
    pub(crate) is_virtual: bool,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// Cores that are online.
    pub(crate) cores_online: usize,
    /// Release of the kernel, and its architecture.
    pub(crate) kernel: String,
    /// Runnable threads, averaged over the last minute.
    pub(crate) load: f64,
    /// Whether the command is optimized: `release` or `debug`.
    pub(crate) build: &'static str,
}

impl Machine {
    /// This machine.
    pub(crate) fn this() -> Machine {
        let read = |path: &str| read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        // A processor of another architecture than x86 has no flag for it.
        let guest = ["/sys/hypervisor/type", "/proc/device-tree/hypervisor"];
        Machine {
            cpu: cpu(&cpuinfo, read("/proc/device-tree/model").trim_end_matches('\0')),
            is_virtual: has_flag(&cpuinfo, "hypervisor") || guest.iter().any(|path| Path::new(path).exists()),
            cores: towpath::engine::worker::cores().len(),
            cores_online: online(read("/sys/devices/system/cpu/online").trim()),
            kernel: format!("Linux {} {}", read("/proc/sys/kernel/osrelease").trim(), std::env::consts::ARCH),
            load: read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, is_virtual, cores, cores_online, kernel, load, build } = self;
        let kind = if *is_virtual { "virtual machine" } else { "bare metal" };
        write!(f, "{cpu}, {kind}, {cores} of {cores_online} cores, {kernel}, load {load:.2}, {build} build")
    }
}

/// The first processor of `cpuinfo`: its name, or the board's where the kernel gives the processor
/// none.
fn cpu(cpuinfo: &str, board: &str) -> String {
    let value = |name| field(cpuinfo, name);
    let name = value("model name").or_else(|| value("cpu model"));
    let name = name.or(Some(board).filter(|board| !board.is_empty())).unwrap_or(std::env::consts::ARCH);
    let numbers = [
        ("family", "cpu family"),
        ("model", "model"),
        ("stepping", "stepping"),
        ("implementer", "CPU implementer"),
        ("part", "CPU part"),
    ];
    let numbers: Vec<_> = numbers.iter().filter_map(|(word, key)| Some(format!("{word} {}", value(key)?))).collect();
    if numbers.is_empty() { name.to_owned() } else { format!("{name} ({})", numbers.join(", ")) }
}

/// The first value of a field of `cpuinfo`.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
}

fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    field(cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|word| word == flag))
}

/// The number of cores in a list such as `0-3,8`.
fn online(list: &str) -> usize {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    list.split(',').filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const XEON: &str = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon\nstepping\t: 8\n\
                        flags\t\t: fpu hypervisor sse\n\nprocessor\t: 1\nmodel name\t: other\n";
    const CORTEX: &str = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd03\n";

    #[test]
    fn a_processor_is_named_with_its_numbers_and_an_arm_core_by_its_board() {
        assert_eq!(cpu(XEON, ""), "Xeon (family 6, model 143, stepping 8)");
        assert_eq!(cpu(CORTEX, "AM625 SK"), "AM625 SK (implementer 0x41, part 0xd03)");
        assert_eq!(cpu("", ""), std::env::consts::ARCH);
    }

    #[test]
    fn a_guest_is_known_by_the_whole_word_among_the_flags() {
        assert!(has_flag(XEON, "hypervisor"));
        assert!(!has_flag(&XEON.replace("hypervisor", "hypervisors"), "hypervisor"));
        assert!(!has_flag(CORTEX, "hypervisor"));
    }

    #[test]
    fn cores_are_counted_in_ranges_and_alone() {
        assert_eq!([online("0"), online("0-3"), online("0-3,8,10-11"), online("")], [1, 4, 7, 0]);
    }

    #[test]
    fn this_machine_has_a_processor_cores_and_a_kernel() {
        let machine = Machine::this();
        assert!(machine.cores > 0 && machine.cores <= machine.cores_online, "{machine:?}");
        assert!(!machine.cpu.is_empty() && machine.kernel.len() > "Linux  ".len(), "{machine:?}");
        assert!(machine.to_string().contains(&machine.kernel), "{machine}");
    }
}

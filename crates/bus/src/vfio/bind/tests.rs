use super::super::fake::FakeHost;
use super::*;

const NIC: &str = "0000:03:00.0";
/// The 82574L.
const KNOWN: [u32; 1] = [0x10d3_8086];

fn machine() -> (FakeHost, Bdf) {
    let mut machine = FakeHost::new();
    let nic = machine.add(NIC, Some(7), Some("e1000e"));
    (machine, nic)
}

fn driver(machine: &FakeHost, bdf: Bdf) -> Option<String> {
    machine.host().driver(bdf)
}

#[test]
fn a_device_moves_from_its_driver_to_vfio_and_back() {
    let (mut machine, nic) = machine();
    let bound = bind_on(&mut machine, nic, &KNOWN, false).unwrap();
    assert_eq!((bound.from.as_deref(), driver(&machine, nic).as_deref()), (Some("e1000e"), Some("vfio-pci")));
    let unbound = unbind_on(&mut machine, nic, false).unwrap();
    assert_eq!(unbound.to.as_deref(), Some("e1000e"));
    assert_eq!(machine.driver_override(nic), "(null)", "any driver may bind it again");
    assert_eq!(PreviousDriver::load(machine.host(), nic), None, "the saved driver is removed");
}

#[test]
fn a_device_without_a_driver_is_left_without_one() {
    let mut machine = FakeHost::new();
    let nic = machine.add(NIC, Some(7), None);
    assert_eq!(bind_on(&mut machine, nic, &KNOWN, false).unwrap().from, None);
    assert_eq!(unbind_on(&mut machine, nic, false).unwrap().to, None);
    assert_eq!((driver(&machine, nic), machine.driver_override(nic)), (None, "(null)".to_owned()));
}

#[test]
fn whichever_step_fails_the_device_has_its_driver_again() {
    for step in 1..=3 {
        let (mut machine, nic) = machine();
        machine.fails = Some(step);
        let error = bind_on(&mut machine, nic, &KNOWN, false).unwrap_err();
        assert!(matches!(error, BindError::Step { .. }), "{error}");
        assert_eq!(driver(&machine, nic).as_deref(), Some("e1000e"), "step {step}: {:?}", machine.commands);
        assert_eq!(
            (machine.driver_override(nic).as_str(), PreviousDriver::load(machine.host(), nic)),
            ("(null)", None),
            "step {step}"
        );
    }
}

#[test]
fn a_device_that_vfio_does_not_bind_has_its_driver_again() {
    let (machine, nic) = machine();
    // The driver exists but binds no device: like a module that was built for another kernel.
    machine.file(&device(nic, "driver_override"), "e1000e\n");
    let mut deaf = Deaf(machine);
    let error = bind_on(&mut deaf, nic, &KNOWN, false).unwrap_err();
    assert!(matches!(error, BindError::WrongDriver { has: None, .. }), "{error}");
    assert_eq!(driver(&deaf.0, nic).as_deref(), Some("e1000e"));
    assert_eq!(deaf.0.driver_override(nic), "e1000e", "the override is restored");
}

/// A kernel that ignores drivers_probe.
struct Deaf(FakeHost);

impl Kernel for Deaf {
    fn host(&self) -> &Host {
        self.0.host()
    }
    fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        if path.ends_with("drivers_probe") { Ok(()) } else { self.0.write(path, text) }
    }
    fn write_config(&mut self, bdf: Bdf, at: usize, value: u16) -> io::Result<()> {
        self.0.write_config(bdf, at, value)
    }
    fn in_use(&self, interface: &str) -> Option<String> {
        self.0.in_use(interface)
    }
    fn load_module(&mut self) {}
}

#[test]
fn an_interface_in_use_is_taken_only_by_force() {
    let (mut machine, nic) = machine();
    machine.file(&device(nic, "net/eth0/flags"), "0x1003\n");
    machine.used = Some(("eth0".into(), "it has the address 192.0.2.1".into()));
    let error = bind_on(&mut machine, nic, &KNOWN, false).unwrap_err();
    assert!(error.to_string().contains("eth0") && error.to_string().contains("192.0.2.1"), "{error}");
    assert!(machine.commands.is_empty(), "nothing was touched");
    bind_on(&mut machine, nic, &KNOWN, true).unwrap();
}

#[test]
fn an_interface_below_a_virtio_function_counts_as_well() {
    let (mut machine, nic) = machine();
    machine.file(&device(nic, "virtio3/net/eth1/flags"), "0x1003\n");
    machine.used = Some(("eth1".into(), "part of br0".into()));
    assert!(matches!(bind_on(&mut machine, nic, &KNOWN, false), Err(BindError::InterfaceInUse { .. })));
}

#[test]
fn a_device_that_a_process_has_open_is_unbound_only_by_force() {
    let (mut machine, nic) = machine();
    bind_on(&mut machine, nic, &KNOWN, false).unwrap();
    machine.hold(4711, "dev/vfio/7");
    let error = unbind_on(&mut machine, nic, false).unwrap_err();
    assert!(matches!(&error, BindError::InUse { pids, .. } if pids == &[4711]), "{error}");
    assert_eq!(driver(&machine, nic).as_deref(), Some("vfio-pci"));
    unbind_on(&mut machine, nic, true).unwrap();
    assert_eq!(driver(&machine, nic).as_deref(), Some("e1000e"));
}

#[test]
fn binding_twice_keeps_the_driver_that_was_saved_first() {
    let (mut machine, nic) = machine();
    bind_on(&mut machine, nic, &KNOWN, false).unwrap();
    assert!(bind_on(&mut machine, nic, &KNOWN, false).unwrap().already);
    assert_eq!(unbind_on(&mut machine, nic, false).unwrap().to.as_deref(), Some("e1000e"));
}

#[test]
fn a_device_that_was_bound_by_other_means_is_bound_to_the_driver_that_matches() {
    let (mut machine, nic) = machine();
    bind_on(&mut machine, nic, &KNOWN, false).unwrap();
    PreviousDriver::remove(machine.host(), nic);
    assert_eq!(unbind_on(&mut machine, nic, false).unwrap().to.as_deref(), Some("e1000e"));
}

#[test]
fn what_is_impossible_is_reported_before_anything_is_written() {
    let (mut machine, nic) = machine();
    assert!(matches!(bind_on(&mut machine, "00:1f.6".parse().unwrap(), &KNOWN, false), Err(BindError::NoDevice(_))));
    assert!(matches!(unbind_on(&mut machine, nic, false), Err(BindError::NotBound { driver: Some(_), .. })));
    machine.remove("sys/bus/pci/drivers/vfio-pci");
    machine.loadable = false;
    assert!(matches!(bind_on(&mut machine, nic, &KNOWN, false), Err(BindError::NoModule(_))));
    assert!(machine.commands.is_empty());
    machine.loadable = true;
    bind_on(&mut machine, nic, &KNOWN, false).unwrap();
}

#[test]
fn the_module_is_loaded_by_the_kernels_own_loader_without_our_environment() {
    use std::os::unix::fs::PermissionsExt;
    let (machine, _) = machine();
    let (script, seen) = (machine.host().path("loader"), machine.host().path("seen"));
    machine.file("loader", &format!("#!/bin/sh\n{{ echo \"$@\"; pwd; env; }} > {}\n", seen.display()));
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    machine.file("proc/sys/kernel/modprobe", &format!("{}\n", script.display()));
    Kernel::load_module(&mut machine.host().clone());
    let seen = std::fs::read_to_string(seen).unwrap();
    assert!(seen.starts_with("-q -- vfio-pci\n/\n"), "{seen}");
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some() && !seen.contains("CARGO"), "{seen}");
}

#[test]
fn no_module_is_loaded_by_a_program_that_is_not_named_absolutely() {
    let (machine, _) = machine();
    assert_eq!(module_loader(machine.host()), Some(PathBuf::from("/sbin/modprobe")));
    for text in ["\n", "modprobe\n"] {
        machine.file("proc/sys/kernel/modprobe", text);
        assert_eq!(module_loader(machine.host()), None);
    }
}

#[test]
fn only_a_network_device_that_has_a_driver_here_is_bound_unless_it_is_forced() {
    let (mut machine, nic) = machine();
    let refusal = |machine: &mut FakeHost| {
        let error = bind_on(machine, nic, &KNOWN, false).unwrap_err();
        assert!(matches!(error, BindError::Unknown { .. }) && machine.commands.is_empty(), "nothing was touched");
        error.to_string()
    };
    machine.file(&device(nic, "class"), "0x010802\n");
    let text = refusal(&mut machine);
    let expected = "0000:03:00.0: it is an NVMe controller (8086:10d3), with the kernel's driver e1000e, and no driver \
                    here works it: look for the right address with lspci -D -d ::0200; --force binds it all the same";
    assert_eq!(text, expected);
    machine.file(&device(nic, "class"), "0x020000\n");
    machine.file(&device(nic, "device"), "0x1533\n");
    machine.file(&device(nic, "net/eth0/flags"), "0x1003\n");
    let text = refusal(&mut machine);
    assert!(text.contains("an Ethernet controller (8086:1533)") && text.contains("xdp:eth0 or packet:eth0"), "{text}");
    bind_on(&mut machine, nic, &KNOWN, true).unwrap();
}

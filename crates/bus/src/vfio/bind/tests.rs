use super::super::fake::Machine;
use super::*;

const NIC: &str = "0000:03:00.0";

fn machine() -> (Machine, Bdf) {
    let mut machine = Machine::new();
    let nic = machine.add(NIC, Some(7), Some("e1000e"));
    (machine, nic)
}

fn driver(machine: &Machine, bdf: Bdf) -> Option<String> {
    machine.host().driver(bdf)
}

#[test]
fn a_device_goes_from_its_driver_to_vfio_and_back() {
    let (mut machine, nic) = machine();
    let bound = bind_on(&mut machine, nic, false).unwrap();
    assert_eq!((bound.from.as_deref(), driver(&machine, nic).as_deref()), (Some("e1000e"), Some("vfio-pci")));
    let unbound = unbind_on(&mut machine, nic).unwrap();
    assert_eq!(unbound.to.as_deref(), Some("e1000e"));
    assert_eq!(machine.only(nic), "(null)", "any driver may have it again");
    assert_eq!(Before::kept(machine.host(), nic), None, "the note is gone");
}

#[test]
fn a_device_that_no_driver_had_is_left_without_one() {
    let mut machine = Machine::new();
    let nic = machine.add(NIC, Some(7), None);
    assert_eq!(bind_on(&mut machine, nic, false).unwrap().from, None);
    assert_eq!(unbind_on(&mut machine, nic).unwrap().to, None);
    assert_eq!((driver(&machine, nic), machine.only(nic)), (None, "(null)".to_owned()));
}

#[test]
fn whichever_step_fails_the_device_is_back_with_its_driver() {
    for step in 1..=3 {
        let (mut machine, nic) = machine();
        machine.fails = Some(step);
        let error = bind_on(&mut machine, nic, false).unwrap_err();
        assert!(matches!(error, BindError::Step { .. }), "{error}");
        assert_eq!(driver(&machine, nic).as_deref(), Some("e1000e"), "step {step}: {:?}", machine.commands);
        assert_eq!((machine.only(nic).as_str(), Before::kept(machine.host(), nic)), ("(null)", None), "step {step}");
    }
}

#[test]
fn a_device_that_vfio_does_not_take_is_back_with_its_driver() {
    let (machine, nic) = machine();
    // A driver by that name is there, but takes nothing: as where a module was built for another kernel.
    machine.file(&device(nic, "driver_override"), "e1000e\n");
    let mut deaf = Deaf(machine);
    let error = bind_on(&mut deaf, nic, false).unwrap_err();
    assert!(matches!(error, BindError::Elsewhere { has: None, .. }), "{error}");
    assert_eq!(driver(&deaf.0, nic).as_deref(), Some("e1000e"));
    assert_eq!(deaf.0.only(nic), "e1000e", "the override is what it was");
}

/// A kernel whose probing does nothing.
struct Deaf(Machine);

impl Kernel for Deaf {
    fn host(&self) -> &Host {
        self.0.host()
    }
    fn command(&mut self, path: &str, text: &str) -> io::Result<()> {
        if path.ends_with("drivers_probe") { Ok(()) } else { self.0.command(path, text) }
    }
    fn carries(&self, interface: &str) -> Option<String> {
        self.0.carries(interface)
    }
    fn load_module(&mut self) {}
}

#[test]
fn an_interface_in_use_is_taken_only_by_force() {
    let (mut machine, nic) = machine();
    machine.file(&device(nic, "net/eth0/flags"), "0x1003\n");
    machine.carried = Some(("eth0".into(), "it has the address 192.0.2.1".into()));
    let error = bind_on(&mut machine, nic, false).unwrap_err();
    assert!(error.to_string().contains("eth0") && error.to_string().contains("192.0.2.1"), "{error}");
    assert!(machine.commands.is_empty(), "nothing was touched");
    bind_on(&mut machine, nic, true).unwrap();
}

#[test]
fn an_interface_below_a_virtio_function_counts_as_well() {
    let (mut machine, nic) = machine();
    machine.file(&device(nic, "virtio3/net/eth1/flags"), "0x1003\n");
    machine.carried = Some(("eth1".into(), "part of br0".into()));
    assert!(matches!(bind_on(&mut machine, nic, false), Err(BindError::InterfaceInUse { .. })));
}

#[test]
fn a_device_that_a_process_has_open_is_not_given_back_under_it() {
    let (mut machine, nic) = machine();
    bind_on(&mut machine, nic, false).unwrap();
    machine.hold(4711, "dev/vfio/7");
    let error = unbind_on(&mut machine, nic).unwrap_err();
    assert!(matches!(&error, BindError::InUse { pids, .. } if pids == &[4711]), "{error}");
    assert_eq!(driver(&machine, nic).as_deref(), Some("vfio-pci"));
}

#[test]
fn binding_twice_keeps_what_was_noted_first() {
    let (mut machine, nic) = machine();
    bind_on(&mut machine, nic, false).unwrap();
    assert!(bind_on(&mut machine, nic, false).unwrap().already);
    assert_eq!(unbind_on(&mut machine, nic).unwrap().to.as_deref(), Some("e1000e"));
}

#[test]
fn a_device_that_somebody_else_bound_goes_to_the_driver_that_wants_it() {
    let (mut machine, nic) = machine();
    bind_on(&mut machine, nic, false).unwrap();
    Before::forget(machine.host(), nic);
    assert_eq!(unbind_on(&mut machine, nic).unwrap().to.as_deref(), Some("e1000e"));
}

#[test]
fn what_can_not_be_done_is_said_before_anything_is_touched() {
    let (mut machine, nic) = machine();
    assert!(matches!(bind_on(&mut machine, "00:1f.6".parse().unwrap(), false), Err(BindError::NoDevice(_))));
    assert!(matches!(unbind_on(&mut machine, nic), Err(BindError::NotBound { driver: Some(_), .. })));
    machine.remove("sys/bus/pci/drivers/vfio-pci");
    machine.loadable = false;
    assert!(matches!(bind_on(&mut machine, nic, false), Err(BindError::NoModule(_))));
    assert!(machine.commands.is_empty());
    machine.loadable = true;
    bind_on(&mut machine, nic, false).unwrap();
}

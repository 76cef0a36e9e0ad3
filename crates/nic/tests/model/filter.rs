//! Address, groups, VLANs, promiscuity and MTU, changed while the port runs. The model judges which
//! frames pass.

use crate::rig::{Rig, config, frame, pool_of, rig, rig_with, strict, with};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use towpath_bus::{Bus, BusError, IrqKind, Mmio, Pci};
use towpath_model::e1000e::{self as model, Device, ModelBar, ModelBus, ModelIrq};
use towpath_model::iommu::ModelDma;
use towpath_model::wire::{Plug, Wire, cable};
use towpath_nic::e1000e::{Control, E1000e, Receive};
use towpath_packet::port::{Port, PortControl, Queues, RxQueue, Start, State, TxQueue};
use towpath_packet::{Batch, DropReason, Offloads};
use towpath_testing::addressed;

/// The address of the model.
const OWN: [u8; 6] = [0x02, 0x74, 0x6f, 0x77, 0, 1];
const MINE: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const MDNS: [u8; 6] = [1, 0, 0x5e, 0, 0, 0xfb];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 0x16];

/// A frame to an address, with a tag or not, that is known again by its `id`.
fn to(address: [u8; 6], vlan: Option<u16>, id: u8) -> Vec<u8> {
    addressed(frame(64, id.into()), address, vlan, id)
}

/// One frame of each kind.
fn kinds() -> Vec<Vec<u8>> {
    let untagged = [OWN, [0xff; 6], MINE, OTHER, MDNS, GROUP];
    let mut frames: Vec<_> = (0..).zip(untagged).map(|(id, address)| to(address, None, id)).collect();
    // A priority tag, and VLANs with the priority 3.
    frames.extend((6..).zip([0, 0x6000 | 10, 0x6000 | 20]).map(|(id, tag)| to(OWN, Some(tag), id)));
    frames
}

/// Names and values of settings.
type Options = &'static [(&'static str, &'static str)];

/// The kinds of frames that pass.
fn passing(r: &mut Rig) -> BTreeSet<u8> {
    r.settle();
    let frames = kinds();
    r.arrive(frames.iter().map(Vec::as_slice));
    r.settle().iter().map(|packet| packet.to_vec()[11]).collect()
}

#[track_caller]
fn set(control: &Control, name: &str, value: &str) {
    control.set(name, &value.into()).unwrap();
}

#[track_caller]
fn until(r: &mut Rig, done: impl Fn(&Rig) -> bool) {
    let begun = Instant::now();
    while !done(r) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it takes too long");
        r.turn(&mut Vec::new());
    }
}

#[test]
fn each_part_of_the_filter_is_changed_while_the_port_runs_and_replayed_after_a_reset() {
    let mut r = rig(config(), strict());
    let control = r.control.clone();
    assert_eq!(passing(&mut r), (0..9).collect());
    let steps: [(&str, &str, &[u8]); 11] = [
        ("receive", "multicast", &[0, 1, 4, 5, 6, 7, 8]),
        ("receive", "own", &[0, 1, 6, 7, 8]),
        ("groups", "01:00:5e:00:00:fb", &[0, 1, 4, 6, 7, 8]),
        ("addresses", "02:00:00:00:00:0b", &[0, 1, 3, 4, 6, 7, 8]),
        ("vlans", "10", &[0, 1, 3, 4, 6, 7]),
        ("vlans", "none", &[0, 1, 3, 4, 6]),
        ("vlans", "20", &[0, 1, 3, 4, 6, 8]),
        ("mac", "02:00:00:00:00:0a", &[1, 2, 3, 4]),
        ("groups", "none", &[1, 2, 3]),
        ("mac", "device", &[0, 1, 3, 6, 8]),
        ("addresses", "02:00:00:00:00:0a", &[0, 1, 2, 6, 8]),
    ];
    for (name, value, expected) in steps {
        set(&control, name, value);
        assert_eq!(passing(&mut r), expected.iter().copied().collect(), "{name}={value}");
    }
    // The packet buffer is divided anew, which takes a reset.
    control.set_mtu(9000).unwrap();
    r.settle();
    until(&mut r, |r| r.rx[0].state() == State::Up);
    assert_eq!(passing(&mut r), BTreeSet::from([0, 1, 2, 6, 8]));
    assert!(control.set("receive", &"all".into()).unwrap_err().to_string().contains("vlans=all"));
    set(&control, "vlans", "all");
    set(&control, "receive", "all");
    assert_eq!(passing(&mut r), (0..9).collect());
    assert_eq!(r.faults(), 0);
    r.end();
}

#[test]
fn more_addresses_than_the_device_has_entries_for_are_all_received_and_few_again_alone() {
    let mut r = rig(with(|c| c.filter.receive = Receive::Own), strict());
    let many = |n: u8| (0..n).map(|i| format!("02:00:00:00:01:{i:02x}")).collect::<Vec<_>>().join("+");
    for (n, all_pass) in [(14, false), (15, true), (14, false)] {
        set(&r.control, "addresses", &many(n));
        r.settle();
        let sent: Vec<_> = (0..n).map(|i| to([2, 0, 0, 0, 1, i], None, i)).collect();
        r.arrive(sent.iter().map(Vec::as_slice));
        assert_eq!(r.settle().len(), usize::from(n));
        assert_eq!(passing(&mut r).contains(&3), all_pass, "{n}");
    }
    r.end();
}

#[test]
fn an_mtu_that_the_buffers_are_large_enough_for_is_changed_without_a_reset() {
    let (accept, chunk) = (Offloads::ALL, 4096);
    let mut r = rig_with(config(), strict(), pool_of(chunk), accept);
    r.settle();
    let up = r.device.phy(1);
    for (mtu, len, passes) in [(1400, 1423, false), (1400, 1422, true), (1800, 1822, true), (1500, 1700, false)] {
        r.control.set_mtu(mtu).unwrap();
        let bytes = frame(len, mtu);
        r.arrive([bytes.as_slice()]);
        assert_eq!(r.settle().len(), usize::from(passes), "{mtu}: received {len}");
        let packet = r.packet(&bytes);
        r.send(0, [packet]);
        r.settle();
        assert_eq!(r.far.drain().len(), usize::from(passes), "{mtu}: sent {len}");
    }
    assert_eq!((r.control.mtu(), r.device.phy(1)), (1500, up));
    assert_eq!(r.tx[0].counters().snapshot().dropped(DropReason::TooLong), 2);
    assert_eq!((r.control.faults().resets, r.control.faults().link_losses), (0, 0));
    r.end();
}

#[test]
fn an_mtu_that_divides_the_memory_of_the_device_anew_takes_a_reset_that_is_no_strike() {
    let mut r = rig(config(), strict());
    // More resets in a row than a device that hangs is allowed.
    for n in 0..12 {
        for (mtu, len) in [(9000, 9014), (1500, 1514)] {
            r.control.set_mtu(mtu).unwrap();
            r.settle();
            until(&mut r, |r| r.rx[0].state() == State::Up);
            for (len, passes) in [(len, true), (len + 9, false)] {
                let bytes = frame(len, n);
                r.arrive([bytes.as_slice()]);
                assert_eq!(r.settle().len(), usize::from(passes), "{mtu}: received {len}");
            }
            let packet = r.packet(&frame(len, n));
            r.send(0, [packet]);
            r.settle();
            assert_eq!(r.far.drain().len(), 1, "{mtu}");
        }
    }
    assert_eq!(r.control.faults().resets, 0);
    r.end();
}

#[test]
fn a_frame_that_waits_behind_a_larger_mtu_is_not_sent_before_the_device_has_room_for_it() {
    let mut r = rig(config(), strict());
    r.settle();
    r.control.set_mtu(9000).unwrap();
    // Only this queue runs: the others have not halted, and nothing is reset.
    let mut batch: Batch = Batch::new();
    batch.push(r.packet(&frame(9014, 1))).unwrap();
    r.tx[0].tx(&mut batch);
    assert_eq!(batch.len(), 1, "it stays until the reset");
    until(&mut r, |r| r.rx[0].state() == State::Up);
    r.send(0, batch.drain_front(1).collect::<Vec<_>>());
    r.settle();
    assert_eq!(r.far.drain()[0].len(), 9014);
    r.end();
}

#[test]
fn a_port_that_has_ended_touches_no_register() {
    let r = rig(config(), strict());
    let (control, device) = (r.control.clone(), r.device.clone());
    r.end();
    let before = device.accesses();
    set(&control, "receive", "own");
    control.set_mtu(9000).unwrap();
    assert_eq!((device.accesses(), control.mtu()), (before, 9000));
}

/// A model into which frames arrive behind each register write.
struct Busy {
    bus: ModelBus,
    traffic: Arc<Traffic>,
}

struct Traffic {
    device: Device,
    far: Mutex<Plug>,
    /// The frames, and how often they were sent; none before the filter is changed.
    frames: Mutex<(Vec<Vec<u8>>, usize)>,
}

#[derive(Clone)]
struct BusyBar {
    bar: ModelBar,
    traffic: Arc<Traffic>,
}

impl Mmio for BusyBar {
    fn len(&self) -> usize {
        self.bar.len()
    }

    fn r32(&self, at: usize) -> u32 {
        self.bar.r32(at)
    }

    fn w32(&self, at: usize, value: u32) {
        self.bar.w32(at, value);
        let mut frames = self.traffic.frames.lock().unwrap();
        if !frames.0.is_empty() {
            let mut far = self.traffic.far.lock().unwrap();
            frames.0.iter().for_each(|frame| assert!(far.send(frame), "the cable is full"));
            frames.1 += 1;
            drop(far);
            self.traffic.device.run_until_idle();
        }
    }

    fn now(&self) -> Instant {
        self.bar.now()
    }

    fn pause(&self, time: Duration) {
        self.bar.pause(time);
    }
}

impl Bus for Busy {
    type Bar = BusyBar;
    type Dma = ModelDma;
    type Irq = ModelIrq;

    fn name(&self) -> &str {
        self.bus.name()
    }

    fn bar(&self, index: u8, len: usize) -> Result<BusyBar, BusError> {
        Ok(BusyBar { bar: self.bus.bar(index, len)?, traffic: self.traffic.clone() })
    }

    fn dma(&self) -> &ModelDma {
        self.bus.dma()
    }

    fn irqs(&self, count: u16) -> Result<Vec<ModelIrq>, BusError> {
        self.bus.irqs(count)
    }
}

impl Pci for Busy {
    fn config_r32(&self, at: u16) -> u32 {
        self.bus.config_r32(at)
    }

    fn config_w32(&self, at: u16, value: u32) {
        self.bus.config_w32(at, value);
    }

    fn reset(&self) -> Result<(), BusError> {
        self.bus.reset()
    }

    fn irq_count(&self, kind: IrqKind) -> u16 {
        self.bus.irq_count(kind)
    }

    fn irqs_of(&self, kind: IrqKind, count: u16) -> Result<Vec<ModelIrq>, BusError> {
        self.bus.irqs_of(kind, count)
    }
}

#[test]
fn frames_that_pass_before_and_after_a_change_pass_at_every_moment_of_it() {
    let changes: [(Options, Options, &[u8]); 7] = [
        (&[("receive", "multicast")], &[("receive", "own"), ("groups", "01:00:5e:00:00:fb")], &[0, 4]),
        (&[], &[("receive", "own")], &[0, 1, 6, 7, 8]),
        (&[("receive", "own")], &[("receive", "all")], &[0, 1, 6, 7, 8]),
        (
            &[("receive", "own"), ("groups", "01:00:5e:00:00:fb")],
            &[("groups", "01:00:5e:00:00:16+01:00:5e:00:00:fb")],
            &[0, 4],
        ),
        (&[("receive", "own"), ("groups", "01:00:5e:00:00:fb")], &[("receive", "multicast")], &[0, 4]),
        (&[("receive", "own")], &[("vlans", "10")], &[0, 6, 7]),
        (
            &[("receive", "own"), ("addresses", "02:00:00:00:00:0b+02:00:00:00:00:0c"), ("vlans", "10+20")],
            &[("addresses", "02:00:00:00:00:0a+02:00:00:00:00:0b"), ("vlans", "10+30")],
            &[0, 3, 6, 7],
        ),
    ];
    for (before, change, both) in changes {
        let (near, far) = cable(4096);
        let bus = model::launch(strict(), near).unwrap();
        let device = bus.device();
        let traffic =
            Arc::new(Traffic { device: device.clone(), far: Mutex::new(far), frames: Mutex::new((Vec::new(), 0)) });
        let port = E1000e::open(Busy { bus, traffic: traffic.clone() }, "e1000e:model", config()).unwrap();
        let control = port.control();
        before.iter().for_each(|(name, value)| set(&control, name, value));
        let start = Start { pool: pool_of(2048), queues: 1, accept: Offloads::ALL };
        let Queues { mut rx, tx } = port.start(start).unwrap();
        let mut out: Batch = Batch::new();
        while rx[0].refill() > 0 || rx[0].state() != State::Up {
            device.turn();
            rx[0].rx(&mut out);
        }
        let mut filter = control.filter();
        change.iter().for_each(|(name, value)| filter.set(name, value).unwrap());
        traffic.frames.lock().unwrap().0 = both.iter().map(|&id| kinds()[usize::from(id)].clone()).collect();
        control.set_filter(filter).unwrap();
        let moments = std::mem::take(&mut *traffic.frames.lock().unwrap()).1;
        device.run_until_idle();
        let mut got = 0;
        while rx[0].rx(&mut out) > 0 {
            got += out.drain_front(64).count();
        }
        assert!(moments > 0, "{change:?}: nothing is written");
        assert_eq!(got, moments * both.len(), "{change:?}: frames are lost");
        drop((rx, tx));
        assert_eq!(device.violation(), None, "{change:?}");
    }
}

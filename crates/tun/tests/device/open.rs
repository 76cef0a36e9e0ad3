//! Devices: made, inherited, probed, changed.

use crate::namespace;
use std::fs::File;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use towpath_gro::LinkKind;
use towpath_sys::tun::{self, Attach};
use towpath_testing::Namespace;
use towpath_tun::{Change, Config, Device, Kind, Queue, READ_SIZE, TunOffloads, Writer, probe};
use towpath_wire::verify::{Check, verify};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// A descriptor as a supervisor makes it: a queue of a new device in a namespace, the first name of
/// `boss%d` that is free.
fn inherited(netns: &Namespace, vnet_header: bool) -> OwnedFd {
    netns.inside(|| {
        let file = tun::open().unwrap();
        tun::attach(&file, "boss%d", Attach { ethernet: false, multi_queue: false, vnet_header }).unwrap();
        file.into()
    })
}

/// A datagram of the namespace's kernel, read from the device.
fn datagram_from(netns: &Namespace, device: &Device, queue: &Queue) -> Vec<u8> {
    device.add_address("10.9.0.1".parse().unwrap(), 24).unwrap();
    device.set_up().unwrap();
    let socket = netns.inside(|| UdpSocket::bind("10.9.0.1:7").unwrap());
    socket.send_to(b"hello", "10.9.0.2:7").unwrap();
    let mut buffer = vec![0; READ_SIZE];
    loop {
        assert!(queue.wait_readable(PATIENCE).unwrap());
        let mut received = queue.read(&mut buffer).unwrap();
        let packet = received.whole().unwrap().unwrap();
        if packet[0] >> 4 == 4 {
            assert_eq!(verify(packet, LinkKind::Ip).transport, Check::Good);
            return packet.to_vec();
        }
    }
}

#[test]
fn a_new_device_has_its_settings_and_the_offloads_of_the_kernel() {
    let Some(netns) = namespace("a_new_device_has_its_settings_and_the_offloads_of_the_kernel") else { return };
    let config = Config::tun("vpn%d").netns(netns.name()).mtu(1380).queue_len(4000);
    let mut device = Device::open(&config).unwrap();
    let found = (device.name().unwrap(), device.mtu().unwrap(), device.queue_len().unwrap());
    assert_eq!(found, ("vpn0".to_owned(), 1380, 4000));
    assert!(device.index() > 0 && !device.is_up().unwrap());
    let report = device.report().clone();
    assert!(report.rx.has(TunOffloads::CSUM.with(TunOffloads::TSO)) && report.tx.has(TunOffloads::TSO), "{report}");
    let queue = device.queue().unwrap();
    assert_eq!((queue.rx_offloads(), queue.tx_offloads()), (report.rx, report.tx));
    let short = queue.read(&mut [0; 2000]).unwrap_err();
    assert!(short.kind() == ErrorKind::InvalidInput && short.to_string().contains("READ_SIZE"), "{short}");
    assert_eq!(queue.read(&mut vec![0; READ_SIZE]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn an_inherited_descriptor_works_with_its_header_and_without_one() {
    for header in [None, Some(10), Some(12)] {
        // One for each device: a program that another test starts may hold the one before until its
        // `exec`.
        let test = "an_inherited_descriptor_works_with_its_header_and_without_one";
        let Some(netns) = namespace(test) else { return };
        let fd = inherited(&netns, header.is_some());
        if let Some(len) = header {
            tun::set_header_len(&File::from(fd.try_clone().unwrap()), len).unwrap();
        }
        let mut device = Device::from_fd(fd).unwrap();
        assert_eq!((device.name().unwrap(), device.kind()), ("boss0".to_owned(), Kind::Tun));
        let queue = device.queue().unwrap();
        assert_eq!(queue.tx_offloads().is_none(), header.is_none(), "{}", device.report());
        assert!(datagram_from(&netns, &device, &queue).ends_with(b"hello"));
        // A packet to the kernel: the answer to none, which it drops in silence.
        let mut writer = Writer::new(&queue);
        writer.push(packet_of_the_probe(), 0..1228, drop).unwrap();
        writer.flush(drop).unwrap();
        assert_eq!((writer.stats().writes, writer.stats().dropped_invalid), (1, 0), "{header:?}");
    }
}

/// A datagram of 1228 bytes.
fn packet_of_the_probe() -> Vec<u8> {
    probe::packets(Kind::Tun, false).swap_remove(0).frame
}

#[test]
fn an_error_names_what_is_wrong_with_a_descriptor() {
    let Some(netns) = namespace("an_error_names_what_is_wrong_with_a_descriptor") else { return };
    let error = |fd: OwnedFd| Device::from_fd(fd).unwrap_err().to_string();
    assert!(error(File::open("/dev/null").unwrap().into()).contains("is none of a TUN device"));
    assert!(error(tun::open().unwrap().into()).contains("has no device (TUNSETIFF must follow"));
    let long = inherited(&netns, true);
    tun::set_header_len(&File::from(long.try_clone().unwrap()), 40).unwrap();
    assert!(error(long).contains("a header of 40 bytes in front of each packet (set TUNSETVNETHDRSZ to 10)"));
}

#[test]
fn queues_are_opened_one_by_one_and_flows_stay_in_them() {
    let Some(netns) = namespace("queues_are_opened_one_by_one_and_flows_stay_in_them") else { return };
    let mut single = Device::open(&Config::tun("single0").netns(netns.name())).unwrap();
    single.queue().unwrap();
    let error = single.queue().unwrap_err().to_string();
    assert!(error.contains("make it with multi_queue"), "{error}");
    let mut device = Device::open(&Config::tun("tun0").netns(netns.name()).multi_queue(true)).unwrap();
    let first = device.queue().unwrap();
    // A second one comes from elsewhere, a third one is opened here.
    let alien = device.add_fd(inherited(&netns, true)).unwrap_err().to_string();
    assert!(alien.contains("is of boss0, not of tun0"), "{alien}");
    let second = netns.inside(|| {
        let file = tun::open().unwrap();
        tun::attach(&file, "tun0", Attach { ethernet: false, multi_queue: true, vnet_header: true }).unwrap();
        file.into()
    });
    let queues = [first, device.add_fd(second).unwrap(), device.queue().unwrap()];
    assert!(device.is_steered(), "{}", device.report());
    device.add_address("10.9.0.1".parse().unwrap(), 24).unwrap();
    device.set_up().unwrap();
    let mut buffer = vec![0; READ_SIZE];
    let mut used = [0; 3];
    // As many that none of the queues is left out by chance.
    for port in 0..64 {
        let socket = netns.inside(|| UdpSocket::bind("10.9.0.1:0").unwrap());
        for _ in 0..4 {
            socket.send_to(b"hello", ("10.9.0.2", 1000 + port)).unwrap();
        }
        let mut got = [0; 3];
        let end = Instant::now() + Duration::from_secs(30);
        while got.iter().sum::<usize>() < 4 && Instant::now() < end {
            for (datagrams, queue) in got.iter_mut().zip(&queues) {
                while let Ok(received) = queue.read(&mut buffer) {
                    *datagrams += usize::from(received.bytes().ends_with(b"hello"));
                }
            }
        }
        assert_eq!(got.iter().filter(|&&n| n > 0).collect::<Vec<_>>(), [&4], "one flow, one queue");
        used.iter_mut().zip(got).for_each(|(used, n)| *used += n);
    }
    assert!(used.iter().all(|&n| n > 0), "all queues are used: {used:?}");
}

#[test]
fn changes_of_the_interface_are_announced() {
    let Some(netns) = namespace("changes_of_the_interface_are_announced") else { return };
    let device = Device::open(&Config::tun("tun0").netns(netns.name())).unwrap();
    let mut changes = device.changes().unwrap();
    assert_eq!(changes.try_next().unwrap(), None);
    device.set_mtu(1300).unwrap();
    netns.ip("link set dev tun0 txqueuelen 77");
    netns.ip("link set dev tun0 name blue0");
    let mut until = |wanted: &dyn Fn(&Change) -> bool| {
        loop {
            let change = changes.wait(PATIENCE).unwrap().expect("an announcement");
            if wanted(&change) {
                return;
            }
        }
    };
    until(&|change| matches!(change, Change::Link(link) if link.mtu == 1300));
    until(&|change| matches!(change, Change::Link(link) if link.queue_len == 77 && link.name == "blue0"));
    assert_eq!(device.name().unwrap(), "blue0");
    netns.ip("link del dev blue0");
    until(&|change| *change == Change::Gone);
    assert!(device.mtu().is_err());
}

#[test]
fn super_packets_in_tunnels_are_taken_by_a_tap_and_not_by_a_tun() {
    let Some(_netns) = namespace("super_packets_in_tunnels_are_taken_by_a_tap_and_not_by_a_tun") else { return };
    let [tun, tap] = [Kind::Tun, Kind::Tap].map(|kind| probe::tunnels(kind).unwrap());
    if !tap.rx.has(TunOffloads::TUNNEL) {
        return towpath_testing::skip("super_packets_in_tunnels", "Linux 6.17 is the first to have them");
    }
    assert!(tap.tx.has(TunOffloads::TUNNEL.with(TunOffloads::TUNNEL_CSUM)), "{tap}");
    // The kernel counts an Ethernet header in front of the outer one, which a TUN does not have.
    assert!(tun.rx.has(TunOffloads::TUNNEL) && !tun.tx.has(TunOffloads::TUNNEL), "{tun}");
}

#[test]
fn a_kind_that_the_kernel_refuses_is_cut_and_switched_off() {
    let Some(netns) = namespace("a_kind_that_the_kernel_refuses_is_cut_and_switched_off") else { return };
    let config = Config::tun("tun0").netns(netns.name()).offloads(TunOffloads::ALL).probe(false);
    let mut device = Device::open(&config).unwrap();
    let queue = device.queue().unwrap();
    device.set_up().unwrap();
    if !queue.tx_offloads().has(TunOffloads::TUNNEL) {
        return towpath_testing::skip("a_kind_that_the_kernel_refuses", "Linux 6.17 is the first to have tunnels");
    }
    let mut writer = Writer::new(&queue);
    let mut spent = 0;
    for packet in probe::packets(Kind::Tun, true) {
        let len = packet.frame.len();
        writer.push_with(packet.frame, 0..len, packet.offload, |_| spent += 1).unwrap();
    }
    writer.flush(|_| spent += 1).unwrap();
    let stats = writer.stats();
    // Of eight packets two are in tunnels: the first is refused, and both are written in three
    // pieces.
    assert_eq!((spent, stats.refused, stats.cut, stats.writes), (8, 1, 2, 6 + 2 * 3), "{stats:?}");
    let tunnels = TunOffloads::TUNNEL.with(TunOffloads::TUNNEL_CSUM);
    assert_eq!(queue.tx_offloads(), TunOffloads::ALL.without(tunnels));
    assert_eq!((stats.dropped(), stats.packets + stats.split), (0, stats.writes));
}

#[test]
fn waiting_for_both_directions_takes_one_registration() {
    let Some(netns) = namespace("waiting_for_both_directions_takes_one_registration") else { return };
    let queue = Device::open(&Config::tun("tun0").netns(netns.name())).unwrap().queue().unwrap();
    let epoll = towpath_sys::Epoll::new().unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&queue.as_fd());
    epoll.add(number, true).unwrap();
    assert_eq!(epoll.add(number, true).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn one_thread_waits_in_a_read_while_another_one_writes() {
    fn is_send(_: &impl Send) {}
    let Some(netns) = namespace("one_thread_waits_in_a_read_while_another_one_writes") else { return };
    let mut device = Device::open(&Config::tun("tun0").netns(netns.name())).unwrap();
    let queue = device.queue().unwrap();
    assert!(queue.is_nonblocking().unwrap());
    queue.set_nonblocking(false).unwrap();
    assert!(!queue.is_nonblocking().unwrap());
    device.add_address("10.9.0.1".parse().unwrap(), 24).unwrap();
    device.set_up().unwrap();
    let reader = std::thread::spawn({
        let queue = queue.clone();
        move || {
            let mut buffer = vec![0; READ_SIZE];
            while !queue.read(&mut buffer).unwrap().bytes().ends_with(b"hello") {}
        }
    });
    let mut writer = Writer::new(&queue);
    is_send(&writer);
    writer.push(packet_of_the_probe(), 0..1228, drop).unwrap();
    writer.flush(drop).unwrap();
    let socket = netns.inside(|| UdpSocket::bind("10.9.0.1:7").unwrap());
    socket.send_to(b"hello", "10.9.0.2:7").unwrap();
    reader.join().unwrap();
}

#[test]
fn packets_that_find_the_queue_of_the_kernel_full_are_counted() {
    let Some(netns) = namespace("packets_that_find_the_queue_of_the_kernel_full_are_counted") else { return };
    let mut device = Device::open(&Config::tun("tun0").netns(netns.name()).queue_len(16)).unwrap();
    let queue = device.queue().unwrap();
    device.add_address("10.9.0.1".parse().unwrap(), 24).unwrap();
    device.set_up().unwrap();
    let socket = netns.inside(|| UdpSocket::bind("10.9.0.1:7").unwrap());
    (0..100).for_each(|_| _ = socket.send_to(b"hello", "10.9.0.2:7"));
    let mut buffer = vec![0; READ_SIZE];
    let read = std::iter::from_fn(|| queue.read(&mut buffer).ok().map(drop)).count();
    let drops = device.queue_drops().unwrap();
    assert!(read >= 16 && drops > 0, "{read} read, {drops} dropped");
}

//! Two devices in two namespaces, joined packet by packet: a stream of the kernel crosses both.

use crate::namespace;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_testing::{Namespace, allocations};
use towpath_tun::{Config, Device, Queue, READ_SIZE, TunOffloads, WriteStats, Writer};
use towpath_wire::emit::{Checksums, Headers, Ip, Network, Tcp, Transport};
use towpath_wire::tcp::flags::ACK;

/// A packet of an MTU of 1500, with an Ethernet header.
const MTU_BUFFER: usize = 1514;
const PATIENCE: Duration = Duration::from_secs(30);

/// A device that is up, with an address.
fn device(netns: &Namespace, config: Config, address: &str) -> Device {
    let device = Device::open(&config.netns(netns.name())).unwrap();
    device.add_address(address.parse().unwrap(), 24).unwrap();
    device.set_up().unwrap();
    device
}

/// What one direction has seen.
#[derive(Debug)]
struct Seen {
    /// The longest packet from the kernel.
    longest: usize,
    packets: u64,
    stats: WriteStats,
    /// Buffers that are back in the pool.
    pool: usize,
}

const POOL: usize = 512;

/// Moves packets from one kernel to the other through small buffers, until `stop`.
fn forward(from: &Queue, to: &Queue, stop: &AtomicBool) -> Seen {
    let mut writer = Writer::new(to);
    let mut pool: Vec<Vec<u8>> = (0..POOL).map(|_| vec![0; MTU_BUFFER]).collect();
    let mut large = vec![0; READ_SIZE];
    let (mut longest, mut packets) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        from.wait_readable(Some(Duration::from_millis(20))).unwrap();
        for _ in 0..8 {
            let Ok(received) = from.read(&mut large) else { break };
            longest = longest.max(received.bytes().len());
            let mut segments = received.segments().unwrap();
            while let Some(len) = segments.next_len() {
                let mut buffer = pool.pop().unwrap();
                segments.write(&mut buffer[..len]).unwrap();
                packets += 1;
                writer.push(buffer, 0..len, |buffer| pool.push(buffer)).unwrap();
            }
        }
        writer.flush(|buffer| pool.push(buffer)).unwrap();
    }
    Seen { longest, packets, stats: *writer.stats(), pool: pool.len() }
}

/// Two namespaces with a device each, which are up.
fn pair(test: &str, config: &Config) -> Option<([Namespace; 2], [Device; 2])> {
    let (near, far) = (namespace(test)?, namespace(test)?);
    let devices = [device(&near, config.clone(), "10.9.0.1"), device(&far, config.clone(), "10.9.0.2")];
    Some(([near, far], devices))
}

/// Sends `len` bytes over TCP from one namespace to `address` in the other, through devices of
/// both; returns what both directions have seen.
fn stream([near, far]: &[Namespace; 2], mut devices: [Device; 2], address: &str, len: usize) -> [Seen; 2] {
    let [a, b] = devices.each_mut().map(|device| device.queue().unwrap());
    let stop = AtomicBool::new(false);
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let seen = std::thread::scope(|scope| {
        let there = scope.spawn(|| forward(&a, &b, &stop));
        let back = scope.spawn(|| forward(&b, &a, &stop));
        let listener = far.inside(|| TcpListener::bind((address, 80)).unwrap());
        let receiver = scope.spawn(move || {
            let (mut stream, mut got) = (listener.accept().unwrap().0, Vec::new());
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.read_to_end(&mut got).unwrap();
            got
        });
        let mut sender = near.inside(|| TcpStream::connect((address, 80)).unwrap());
        sender.write_all(&bytes).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
        let got = receiver.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
        [there.join().unwrap(), back.join().unwrap()]
    });
    for Seen { packets, stats, pool, .. } in &seen {
        assert_eq!((stats.packets, *pool), (*packets, POOL), "{stats:?}");
        assert_eq!((stats.dropped(), stats.packets + stats.split), (0, stats.writes + stats.merged), "{stats:?}");
    }
    seen
}

#[test]
fn a_stream_crosses_two_devices_as_super_packets_through_small_buffers() {
    let test = "a_stream_crosses_two_devices_as_super_packets_through_small_buffers";
    let Some((netns, devices)) = pair(test, &Config::tun("tun0")) else { return };
    let [there, _] = stream(&netns, devices, "10.9.0.2", 4 << 20);
    assert!(there.longest > 10_000, "{there:?}");
    assert!(there.stats.super_packets > 0 && there.stats.bytes / there.stats.writes > 3000, "{there:?}");
    assert_eq!((there.stats.cut, there.stats.refused), (0, 0));
}

#[test]
fn a_stream_crosses_devices_whose_offloads_are_switched_off() {
    let test = "a_stream_crosses_devices_whose_offloads_are_switched_off";
    let Some((netns, devices)) = pair(test, &Config::tun("tun0").offloads(TunOffloads::NONE)) else { return };
    let [there, _] = stream(&netns, devices, "10.9.0.2", 1 << 20);
    assert!(there.longest <= MTU_BUFFER && there.stats.super_packets == 0, "{there:?}");
    assert_eq!(there.stats.writes, there.packets);
}

#[test]
fn a_stream_in_vxlan_crosses_two_devices_as_super_packets() {
    let test = "a_stream_in_vxlan_crosses_two_devices_as_super_packets";
    let Some((netns, devices)) = pair(test, &Config::tap("tap0").offloads(TunOffloads::ALL)) else { return };
    if !devices[0].report().tx.has(TunOffloads::TUNNEL) {
        return towpath_testing::skip(test, "Linux 6.17 is the first to have super-packets in tunnels");
    }
    for (netns, host) in netns.iter().zip([1, 2]) {
        let remote = 3 - host;
        netns.ip(&format!("link add vx0 type vxlan id 7 dev tap0 remote 10.9.0.{remote} dstport 4789"));
        netns.ip(&format!("addr add 10.8.0.{host}/24 dev vx0"));
        netns.ip("link set dev vx0 up");
    }
    let [there, _] = stream(&netns, devices, "10.8.0.2", 2 << 20);
    assert!(there.longest > 10_000, "{there:?}");
    assert!(there.stats.super_packets > 0 && there.stats.bytes / there.stats.writes > 3000, "{there:?}");
    assert_eq!((there.stats.cut, there.stats.refused), (0, 0));
}

/// The next packets of a TCP stream, from a host that a device's interface does not have.
struct Source {
    seq: u32,
}

impl Source {
    /// Writes a packet to the buffer, 32 bytes from its beginning.
    fn packet(&mut self, buffer: &mut [u8], payload: usize) -> Range<usize> {
        let tcp = Tcp { src_port: 5000, dst_port: 9, seq: self.seq, flags: ACK, window: 1000, ..Tcp::default() };
        let ip = Ip::v4([10, 9, 0, 7], [10, 9, 0, 8]);
        let headers = Headers { link: None, network: Network::Ip(ip, Transport::Tcp(tcp)) };
        let len = headers.len() + payload;
        headers.write(&mut buffer[32..32 + len], Checksums::Complete).unwrap();
        self.seq = self.seq.wrapping_add(payload as u32);
        32..32 + len
    }
}

/// Merges bursts of 64 packets in buffers of `size` bytes; returns counters and allocations.
fn bursts(queue: &Queue, size: usize) -> (WriteStats, u64) {
    let mut writer = Writer::new(queue);
    let mut pool: Vec<Box<[u8]>> = (0..64).map(|_| vec![0; size].into()).collect();
    let mut burst: Vec<Box<[u8]>> = Vec::with_capacity(64);
    let mut source = Source { seq: 0 };
    let allocated = allocations(|| {
        burst.append(&mut pool);
        let packets = burst.len();
        for mut buffer in burst.drain(..) {
            let packet = source.packet(&mut buffer, 1380);
            writer.push(buffer, packet, |buffer| pool.push(buffer)).unwrap();
        }
        writer.flush(|buffer| pool.push(buffer)).unwrap();
        packets
    });
    assert_eq!((writer.held(), pool.len()), (0, 64));
    (*writer.stats(), allocated)
}

#[test]
fn small_buffers_merge_as_well_as_large_ones_and_nothing_is_allocated_per_packet() {
    let test = "small_buffers_merge_as_well_as_large_ones_and_nothing_is_allocated_per_packet";
    let Some(netns) = namespace(test) else { return };
    let queue = device(&netns, Config::tun("tun0"), "10.9.0.1").queue().unwrap();
    let (small, allocated) = bursts(&queue, MTU_BUFFER);
    assert_eq!(allocated, 0);
    // 46 packets of 1380 bytes fill an aggregate, so a burst of 64 leaves as two.
    assert_eq!((small.packets, small.writes, small.super_packets), (1100 * 64, 1100 * 2, 1100 * 2));
    let (large, allocated) = bursts(&queue, 65536);
    assert_eq!((large, allocated), (small, 0));
}

#[test]
fn reading_and_cutting_allocates_nothing() {
    let Some(netns) = namespace("reading_and_cutting_allocates_nothing") else { return };
    let queue = device(&netns, Config::tun("tun0").queue_len(64), "10.9.0.1").queue().unwrap();
    let socket = netns.inside(|| UdpSocket::bind("10.9.0.1:7").unwrap());
    socket.connect("10.9.0.2:7").unwrap();
    let (mut large, mut small, payload) = (vec![0; READ_SIZE], [0; MTU_BUFFER], [7; 100]);
    let allocated = allocations(|| {
        for _ in 0..32 {
            socket.send(&payload).unwrap();
        }
        let mut packets = 0;
        while let Ok(received) = queue.read(&mut large) {
            let mut segments = received.segments().unwrap();
            while let Some(len) = segments.next_len() {
                segments.write(&mut small[..len]).unwrap();
                packets += 1;
            }
        }
        packets
    });
    assert_eq!(allocated, 0);
}

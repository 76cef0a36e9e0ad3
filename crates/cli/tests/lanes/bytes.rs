//! Byte streams and datagrams as sockets receive them from the super-packets of GRO.

use crate::support::datapath::{Towpath, run};
use crate::support::{Cable, Hosts, LONGEST, Namespace};
use crate::{require, two_lanes};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Byte `at` of stream or datagram `number`.
fn byte(number: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(7) ^ number.wrapping_mul(101)) as u8
}

fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(number, at)).collect()
}

/// Opens TCP connections from host 1 to host 2 concurrently, sends `bytes` bytes through each, in
/// segments no longer than `mss` if it is given, and compares what arrives.
pub(crate) fn streams(hosts: &Hosts, address: &str, connections: usize, bytes: usize, mss: Option<i32>) {
    let listener = hosts.two.inside(|| patiently(|| TcpListener::bind((address, 5002))));
    // `bind` lets 128 connections wait to be accepted. The kernel answers further ones with cookies
    // and resets them if the first of their data is lost. SAFETY: listen takes no pointer.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 4096) }, 0, "listen: {}", std::io::Error::last_os_error());
    // After a failure of a sender its receiver does not wait for ever.
    let longest = libc::timeval { tv_sec: LONGEST.as_secs() as libc::time_t, tv_usec: 0 };
    set_option(&listener, libc::SOL_SOCKET, libc::SO_RCVTIMEO, longest);
    std::thread::scope(|scope| {
        let senders = scope.spawn(move || {
            hosts.one.inside(|| {
                std::thread::scope(|scope| {
                    for number in 0..connections {
                        scope.spawn(move || send_stream(address, number, bytes, mss));
                    }
                });
            });
        });
        let mut receivers = Vec::new();
        for _ in 0..connections {
            let (stream, _) = listener.accept().unwrap();
            receivers.push(scope.spawn(move || receive_stream(stream, bytes)));
        }
        senders.join().unwrap();
        let mut numbers: Vec<usize> = receivers.into_iter().map(|r| r.join().unwrap()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..connections).collect::<Vec<_>>());
    });
}

/// Retries while the kernel still checks an IPv6 address for duplicates.
fn patiently<T>(attempt: impl Fn() -> std::io::Result<T>) -> T {
    let end = Instant::now() + LONGEST / 4;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(e) => assert!(Instant::now() < end, "tried in vain: {e}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn send_stream(address: &str, number: usize, bytes: usize, mss: Option<i32>) {
    let mut stream = patiently(|| TcpStream::connect((address, 5002)));
    if let Some(mss) = mss {
        set_option(&stream, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss);
    }
    stream.set_write_timeout(Some(LONGEST)).unwrap();
    stream.write_all(&(number as u32).to_be_bytes()).unwrap();
    stream.write_all(&payload(number, bytes)).unwrap();
}

/// Returns the number of the stream.
fn receive_stream(mut stream: TcpStream, bytes: usize) -> usize {
    stream.set_read_timeout(Some(LONGEST)).unwrap();
    let (mut number, mut got) = ([0; 4], Vec::new());
    stream.read_exact(&mut number).unwrap();
    let number = u32::from_be_bytes(number) as usize;
    stream.read_to_end(&mut got).unwrap();
    assert!(got == payload(number, bytes), "stream {number}: {} of {bytes} bytes, or other ones", got.len());
    number
}

fn set_option<T>(socket: &impl AsRawFd, level: i32, name: i32, value: T) {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value lives across the call, and its size is the one given.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    assert_eq!(done, 0, "setsockopt {name}: {}", std::io::Error::last_os_error());
}

#[test]
fn tcp_gets_its_bytes_from_super_packets_of_any_segment_size() {
    require!("tcp_gets_its_bytes_from_super_packets_of_any_segment_size",);
    let hosts = Hosts::new();
    let off = "csum=off,tso=off,uso=off,queues=2";
    let (a, b) = (hosts.port(1, Cable::Tap, 1500, off), hosts.port(2, Cable::Tap, 1500, "queues=2"));
    let towpath = Towpath::start(&["fwd", &a, &b, "--gro", "on", "--lanes", two_lanes()]);
    for address in ["10.0.0.2", "fd00::2"] {
        for mss in [Some(537), Some(999), Some(1000), Some(1371), None] {
            streams(&hosts, address, 4, 300_001, mss);
        }
    }
    let summary = towpath.stop().code(0).summary();
    assert!(summary.is_balanced().balance.merged > 500, "{:?}", summary.balance);
}

/// A capture file of UDP frames over IPv4 from 10.0.0.1 to 10.0.0.2, to any link address, in bursts
/// of 1 to 64 of one size whose last frame is a byte shorter; and the datagrams in it.
fn bursts(size: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut file = Vec::new();
    file.extend([0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 65535, 1].iter().flat_map(|word| word.to_le_bytes()));
    file[4..8].copy_from_slice(&[2, 0, 4, 0]);
    let mut datagrams = Vec::new();
    for burst in 1..=64 {
        for n in 0..burst {
            let len = if n + 1 == burst { size - 1 } else { size };
            let data = payload(datagrams.len(), len);
            let frame = frame(datagrams.len() as u16, &data);
            let len = frame.len() as u32;
            file.extend([0, 0, len, len].iter().flat_map(|word| word.to_le_bytes()));
            file.extend(frame);
            datagrams.push(data);
        }
    }
    (file, datagrams)
}

fn frame(id: u16, data: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8], start: u32| {
        let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        let mut sum = words.fold(start, |sum, word| sum + word);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    };
    let be = |n: usize| (n as u16).to_be_bytes();
    let mut udp = [&be(4000)[..], &be(4001), &be(8 + data.len()), &[0, 0], data].concat();
    let pseudo = [10, 0, 0, 1, 10, 0, 0, 2].chunks(2).map(|p| (p[0] << 8) + p[1]).sum::<u32>() + 17 + udp.len() as u32;
    let check = sum(&udp, pseudo);
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    let mut ip = [&[0x45, 0][..], &be(20 + udp.len()), &id.to_be_bytes(), &[0x40, 0, 64, 17, 0, 0]].concat();
    ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    let check = sum(&ip, 0);
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 0], &ip, &udp].concat()
}

#[test]
fn udp_gets_its_datagrams_from_super_packets_of_any_size_and_number() {
    require!("udp_gets_its_datagrams_from_super_packets_of_any_size_and_number",);
    let directory = tempfile::tempdir().unwrap();
    for size in [2, 33, 100, 511, 1001, 1471, 1472] {
        let ns = Namespace::new("udp");
        let socket = ns.inside(|| patiently(|| UdpSocket::bind("0.0.0.0:4001")));
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
        socket.set_read_timeout(Some(LONGEST)).unwrap();
        let (file, datagrams) = bursts(size);
        let path = directory.path().join(format!("{size}.pcap"));
        fs::write(&path, file).unwrap();
        let tap = format!("tap:e0?netns={},addr=10.0.0.2/24,queues=2", ns.name());
        let args = ["replay", path.to_str().unwrap(), &tap, "--gro", "on", "--lanes", two_lanes(), "--json"];
        let summary = run(&args).code(0).summary();
        println!("{size}: {:?}", summary.is_clean().balance);
        assert!(summary.balance.merged > datagrams.len() as u64 / 2, "{:?}", summary.balance);
        let mut buffer = [0; 2048];
        for (number, datagram) in datagrams.iter().enumerate() {
            let len = socket.recv(&mut buffer).unwrap_or_else(|e| panic!("size {size}: datagram {number}: {e}"));
            assert!(buffer[..len] == datagram[..], "size {size}: datagram {number} is another one");
        }
    }
}

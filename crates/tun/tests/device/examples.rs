//! The examples carry a stream of the kernel: one on epoll, one on tokio, as the two ends of a
//! tunnel.

use crate::namespace;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_tun::{Config, Device};

#[allow(dead_code, unreachable_pub)]
#[path = "../../examples/epoll.rs"]
mod epoll;
#[allow(dead_code, unreachable_pub)]
#[path = "../../examples/tokio.rs"]
mod on_tokio;

#[test]
fn the_examples_are_two_ends_of_one_tunnel() {
    let test = "the_examples_are_two_ends_of_one_tunnel";
    let (Some(near), Some(far)) = (namespace(test), namespace(test)) else { return };
    let mut devices = [&near, &far].map(|netns| {
        let config = Config::tun("vpn0").netns(netns.name()).mtu(1420).queue_len(4000);
        Device::open(&config).unwrap()
    });
    for (device, address) in devices.iter().zip(["10.9.0.1", "10.9.0.2"]) {
        device.add_address(address.parse().unwrap(), 24).unwrap();
        device.set_up().unwrap();
    }
    let queues = devices.each_mut().map(|device| device.queue().unwrap());
    // The tunnel's sockets are in the namespace of the test.
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let [here, there] = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
    sockets[0].connect(there).unwrap();
    sockets[1].connect(here).unwrap();
    let [a, b] = sockets;
    let [near_queue, far_queue] = queues;
    let go_on = AtomicBool::new(true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    std::thread::scope(|scope| {
        let on_epoll = scope.spawn(|| epoll::run(&near_queue, &a, || go_on.load(Ordering::Relaxed)));
        let on_tokio = scope.spawn(|| {
            runtime.block_on(async {
                b.set_nonblocking(true).unwrap();
                let tunnel = tokio::spawn(on_tokio::run(far_queue, tokio::net::UdpSocket::from_std(b).unwrap()));
                let _ = stopped.await;
                tunnel.abort();
            });
        });
        let bytes: Vec<u8> = (0..2 << 20).map(|i| (i * 7 + i / 251) as u8).collect();
        let listener = far.inside(|| TcpListener::bind("10.9.0.2:80").unwrap());
        let receiver = scope.spawn(move || {
            let (mut stream, mut got) = (listener.accept().unwrap().0, Vec::new());
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.read_to_end(&mut got).unwrap();
            got
        });
        let mut sender = near.inside(|| TcpStream::connect("10.9.0.2:80").unwrap());
        sender.write_all(&bytes).unwrap();
        sender.shutdown(Shutdown::Write).unwrap();
        let got = receiver.join().unwrap();
        go_on.store(false, Ordering::Relaxed);
        stop.send(()).unwrap();
        on_epoll.join().unwrap().unwrap();
        on_tokio.join().unwrap();
        assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    });
}

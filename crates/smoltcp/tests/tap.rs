//! The example's web server on a tap of this process, and the kernel as its client.

#[path = "../examples/http/server.rs"]
mod server;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_packet::port::{RxQueue, TxQueue};
use towpath_ports::tun;
use towpath_smoltcp::PortDevice;
use towpath_testing::{Namespace, Need, needs};

const LEN: u64 = 8 << 20;

/// Ends the server when the client is done, also if it panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gets all bytes, and compares them.
fn get() {
    let mut stream = TcpStream::connect("10.78.0.2:8080").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(format!("GET /{LEN} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a header") + 4;
    let body = &answer[end..];
    assert_eq!(body.len() as u64, LEN);
    let wrong = body.iter().zip(0..).position(|(byte, at)| *byte != server::byte(at));
    assert_eq!(wrong, None, "the first byte that is not the one served");
}

#[test]
fn a_stack_on_a_tap_gives_the_kernel_every_byte_with_and_without_offloads() {
    let name = "a_stack_on_a_tap_gives_the_kernel_every_byte_with_and_without_offloads";
    if !needs(name, &[Need::Root, Need::Tun, Need::Program("ip")]) {
        return;
    }
    // Without offloads, segments and checksums are made in front of the port.
    for (options, packets) in [("", 0..LEN / 8000), ("csum=off", LEN / 1460..LEN)] {
        let near = Namespace::new("stack");
        let uri = format!("tap:web0?netns={},addr=10.78.0.1/24,{options}", near.name());
        let config = tun::Config::from_uri(&uri.trim_end_matches(',').parse().unwrap()).unwrap();
        let mut device = PortDevice::start(tun::open(config).unwrap()).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _over = Over(&over);
                near.inside(get);
            });
            let end = server::serve(&mut device, "10.78.0.2/24".parse().unwrap(), |device, delay| {
                device.wait(delay).unwrap();
                if over.load(Ordering::Relaxed) { Err(()) } else { Ok(()) }
            });
            assert_eq!(end, Err(()));
        });
        let (rx, tx) = device.queues();
        let (received, sent) = (rx.counters().snapshot(), tx.counters().snapshot());
        assert!(sent.bytes > LEN && packets.contains(&sent.packets), "{options}: {sent:?}");
        assert_eq!(sent.drops().count(), 0, "{sent:?}");
        assert!(received.packets > 0);
        assert_eq!((device.counts().bad_checksums, device.counts().refused), (0, 0));
    }
}

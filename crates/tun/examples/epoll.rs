//! A tunnel in the clear over UDP, on plain epoll: one thread, one registration of the device for
//! both directions.
//!
//! ```sh
//! # On both hosts, with addresses exchanged on the second one:
//! sudo cargo run --release -p towpath-tun --example epoll -- vpn0 192.0.2.1:5820 192.0.2.2:5820
//! sudo ip addr add 10.9.0.1/24 dev vpn0
//! ```

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use towpath_tun::{Config, Device, Queue, READ_SIZE, Writer};

/// Bytes of a datagram: an MTU of 1420 leaves room for the headers of a tunnel.
const DATAGRAM: usize = 1500;
/// Datagrams, or super-packets, of one turn.
const BURST: usize = 64;

const DEVICE: u64 = 0;
const SOCKET: u64 = 1;

/// Moves packets between a device and a connected socket while `go_on`.
///
/// # Errors
/// The error of a call: `EBADFD` after the device was deleted.
pub fn run(queue: &Queue, socket: &UdpSocket, go_on: impl Fn() -> bool) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let mut pool: Vec<Vec<u8>> = (0..4 * BURST).map(|_| vec![0; DATAGRAM]).collect();
    let mut writer = Writer::new(queue);
    let (mut large, mut small) = (vec![0; READ_SIZE], [0; DATAGRAM]);
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(queue, EpollEvent::new(EpollFlags::EPOLLIN, DEVICE))?;
    epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, SOCKET))?;
    let mut events = [EpollEvent::empty(); 2];
    while go_on() {
        let ready = epoll.wait(&mut events, EpollTimeout::from(100u8))?;
        for event in &events[..ready] {
            if event.data() == SOCKET {
                for _ in 0..BURST {
                    // No buffer: the datagrams wait in the socket until the device takes packets.
                    let Some(mut buffer) = pool.pop() else { break };
                    let Ok(len) = socket.recv(&mut buffer) else {
                        pool.push(buffer);
                        break;
                    };
                    // Here a VPN decrypts.
                    going_on(writer.push(buffer, 0..len, |buffer| pool.push(buffer)))?;
                }
            } else if event.events().contains(EpollFlags::EPOLLIN) {
                for _ in 0..BURST {
                    let received = match queue.read(&mut large) {
                        Ok(received) => received,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error),
                    };
                    let Ok(mut segments) = received.segments() else { continue };
                    while let Some(packet) = segments.next_len().and_then(|len| small.get_mut(..len)) {
                        segments.write(packet);
                        // Here a VPN encrypts. A full socket loses the datagram, as a wire does.
                        let _ = socket.send(packet);
                    }
                }
            }
        }
        going_on(writer.flush(|buffer| pool.push(buffer)))?;
        // The same registration waits for the other direction too, while packets wait for it.
        let mut interest = EpollFlags::EPOLLIN;
        interest.set(EpollFlags::EPOLLOUT, writer.held() > 0);
        epoll.modify(queue, &mut EpollEvent::new(interest, DEVICE))?;
    }
    Ok(())
}

/// A device that takes nothing now is no error: the packets wait in the writer.
fn going_on(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::WouldBlock { Ok(()) } else { Err(error) })
}

/// Makes room for the datagrams of some super-packets: with the default of the kernel most are
/// lost, and counted in `UdpRcvbufErrors` only. More than `net.core.rmem_max` needs
/// `CAP_NET_ADMIN`.
fn set_buffer(socket: &impl AsFd) -> nix::Result<()> {
    const BYTES: usize = 7 << 20;
    setsockopt(socket, sockopt::RcvBufForce, &BYTES).or_else(|_| setsockopt(socket, sockopt::RcvBuf, &BYTES))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [name, here, there]: [String; 3] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| "arguments: DEVICE ADDRESS:PORT PEER:PORT")?;
    let mut device = Device::open(&Config::tun(name).mtu(1420).queue_len(4000))?;
    device.set_up()?;
    eprintln!("{}: {}", device.name()?, device.report());
    let socket = UdpSocket::bind(here)?;
    socket.connect(there)?;
    set_buffer(&socket)?;
    run(&device.queue()?, &socket, || true)?;
    Ok(())
}

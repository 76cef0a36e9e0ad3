//! A tunnel in the clear over UDP, on tokio: two tasks share one registration of the device.
//!
//! ```sh
//! # On both hosts, with addresses exchanged on the second one:
//! sudo cargo run --release -p towpath-tun --example tokio -- vpn0 192.0.2.1:5820 192.0.2.2:5820
//! sudo ip addr add 10.9.0.1/24 dev vpn0
//! ```

use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;
use tokio::net::UdpSocket;
use towpath_tun::{Config, Device, Queue, READ_SIZE, Writer};

/// Bytes of a datagram: an MTU of 1420 leaves room for the headers of a tunnel.
const DATAGRAM: usize = 1500;
/// Datagrams of one burst.
const BURST: usize = 64;

/// Moves packets from the device to the socket.
async fn encrypt(device: Arc<AsyncFd<Queue>>, socket: Arc<UdpSocket>) -> io::Result<()> {
    let (mut large, mut small) = (vec![0; READ_SIZE], [0; DATAGRAM]);
    loop {
        let mut ready = device.readable().await?;
        // `try_io` clears the readiness when nothing is left.
        let Ok(received) = ready.try_io(|device| device.get_ref().read(&mut large)) else { continue };
        let received = received?;
        let Ok(mut segments) = received.segments() else { continue };
        while let Some(packet) = segments.next_len().and_then(|len| small.get_mut(..len)) {
            segments.write(packet);
            // Here a VPN encrypts.
            socket.send(packet).await?;
        }
    }
}

/// Moves packets from the socket to the device, merged.
async fn decrypt(device: Arc<AsyncFd<Queue>>, socket: Arc<UdpSocket>) -> io::Result<()> {
    let mut writer = Writer::new(device.get_ref());
    let mut pool: Vec<Vec<u8>> = (0..4 * BURST).map(|_| vec![0; DATAGRAM]).collect();
    loop {
        socket.readable().await?;
        while let Some(mut buffer) = pool.pop() {
            let Ok(len) = socket.try_recv(&mut buffer) else {
                pool.push(buffer);
                break;
            };
            // Here a VPN decrypts. What the device does not take now waits in the writer.
            let pushed = writer.push(buffer, 0..len, |buffer| pool.push(buffer));
            if pushed.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
                return Err(io::Error::other("the device is gone"));
            }
        }
        loop {
            match writer.flush(|buffer| pool.push(buffer)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => device.writable().await?.clear_ready(),
                done => break done?,
            }
        }
    }
}

/// Moves packets between a device and a connected socket.
///
/// # Errors
/// The error of a call: `EBADFD` after the device was deleted.
pub async fn run(queue: Queue, socket: UdpSocket) -> io::Result<()> {
    // One registration for both directions: a second one of the same descriptor fails.
    // SAFETY: a queue owns its open descriptor, and never replaces it.
    let device = unsafe { AsyncFd::register(queue) }?;
    let (device, socket) = (Arc::new(device), Arc::new(socket));
    let other = tokio::spawn(encrypt(device.clone(), socket.clone()));
    let result = decrypt(device, socket).await;
    other.abort();
    result
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
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
        let socket = UdpSocket::bind(here).await?;
        socket.connect(there).await?;
        set_buffer(&socket)?;
        run(device.queue()?, socket).await
    })?;
    Ok(())
}

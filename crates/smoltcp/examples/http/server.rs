//! The server: connections of smoltcp, on any device.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpCidr};

/// The server's port, and the connections that it has at the same time.
const PORT: u16 = 8080;
const CONNECTIONS: usize = 8;
/// Bytes of a socket's buffers: more than a window of a fast local network.
const BUFFERS: (usize, usize) = (64 << 10, 4 << 20);

/// Byte `at` of what is served.
pub(crate) fn byte(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16).wrapping_mul(167) as u8
}

/// A connection, and how much of its answer was sent.
struct Connection {
    socket: SocketHandle,
    request: Vec<u8>,
    /// The header of the answer, then the bytes, as far as they are not in the socket's buffer.
    header: Vec<u8>,
    sent: u64,
    len: Option<u64>,
}

impl Connection {
    fn new(socket: SocketHandle) -> Connection {
        Connection { socket, request: Vec::new(), header: Vec::new(), sent: 0, len: None }
    }

    /// Reads the request, and writes as much of the answer as the buffer takes.
    fn turn(&mut self, socket: &mut tcp::Socket<'_>) {
        if !socket.is_open() {
            *self = Connection::new(self.socket);
            // The port is not 0, and the socket is not open.
            let _ = socket.listen(PORT);
        }
        while self.len.is_none() && socket.can_recv() {
            let read = socket.recv(|bytes| {
                self.request.extend_from_slice(bytes);
                (bytes.len(), bytes.len())
            });
            if read.is_err() || self.request.len() > 8192 {
                return socket.abort();
            }
            self.answer();
        }
        let Some(len) = self.len else {
            if socket.may_send() && !socket.may_recv() {
                socket.close();
            }
            return;
        };
        while socket.can_send() && (!self.header.is_empty() || self.sent < len) {
            let _ = socket.send(|room| {
                let n = room.len().min(self.header.len());
                room[..n].copy_from_slice(&self.header[..n]);
                self.header.drain(..n);
                let body = ((len - self.sent).min((room.len() - n) as u64)) as usize;
                for (at, to) in (self.sent..).zip(&mut room[n..n + body]) {
                    *to = byte(at);
                }
                self.sent += body as u64;
                (n + body, ())
            });
        }
        if self.header.is_empty() && self.sent == len {
            socket.close();
        }
    }

    /// Answers the request once it is complete.
    fn answer(&mut self) {
        if !self.request.ends_with(b"\r\n\r\n") {
            return;
        }
        let path = self.request.strip_prefix(b"GET /").and_then(|rest| rest.split(|byte| *byte == b' ').next());
        let len = path.and_then(|path| std::str::from_utf8(path).ok()?.parse().ok());
        let status = if len.is_some() { "200 OK" } else { "404 Not Found" };
        let len = len.unwrap_or(0);
        self.header = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n").into_bytes();
        self.len = Some(len);
    }
}

/// Gives each connection its turn.
fn turn(connections: &mut [Connection], sockets: &mut SocketSet<'_>) {
    for connection in connections {
        connection.turn(sockets.get_mut(connection.socket));
    }
}

/// Serves on a device until `wait` returns its end.
pub(crate) fn serve<D: Device, E>(
    device: &mut D,
    address: IpCidr,
    mut wait: impl FnMut(&mut D, Option<Duration>) -> Result<(), E>,
) -> Result<(), E> {
    let mut config = Config::new(EthernetAddress([2, 0, 0, 0, 0, 2]).into());
    config.random_seed = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let mut interface = Interface::new(config, device, Instant::now());
    // There is room for one.
    interface.update_ip_addrs(|addresses| _ = addresses.push(address));
    let mut sockets = SocketSet::new(Vec::new());
    let mut connections: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let buffer = |len| tcp::SocketBuffer::new(vec![0; len]);
            Connection::new(sockets.add(tcp::Socket::new(buffer(BUFFERS.0), buffer(BUFFERS.1))))
        })
        .collect();
    // They listen before the first frame is received, which may be a client's.
    turn(&mut connections, &mut sockets);
    loop {
        interface.poll(Instant::now(), device, &mut sockets);
        turn(&mut connections, &mut sockets);
        wait(device, interface.poll_delay(Instant::now(), &sockets))?;
    }
}

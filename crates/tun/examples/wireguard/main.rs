//! A small tunnel with a real cipher: a TUN device on one side, UDP on the other, each with its
//! offloads or without. `benches/tunnel` measures it between two namespaces.
//!
//! ```text
//!   TUN ── Queue::read ──► Segments ──► seal, in the send queue ──► UdpSender::flush ──► UDP
//!   TUN ◄── writev ◄── Writer ◄── open, copied to the pool ◄── UdpReceiver::receive ◄── UDP
//! ```
//!
//! It is **not WireGuard**: its messages are WireGuard's transport data, but there is no handshake.
//! A key on the command line serves both directions, for good, and there is one peer.
//!
//! | file | holds |
//! |---|---|
//! | `main.rs` | the loop of one thread |
//! | `options.rs` | the command line |
//! | `session.rs` | messages: sealed, opened, none taken twice |
//! | `wire.rs` | UDP in batches, or one call for each datagram |

mod options;
mod session;
mod wire;

use options::Options;
use session::Session;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use towpath_sys::poll::{PollSet, is_readable};
use towpath_tun::{Config, Device, Queue, READ_SIZE, TunOffloads, Writer};
use towpath_udp::Path;
use wire::Wire;

/// Packets or messages that one direction moves before the other one has its turn.
const BURST: usize = 64;

type Failure = Box<dyn std::error::Error>;

fn main() {
    if let Err(error) = run() {
        eprintln!("wireguard: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Failure> {
    let Some(mut options) = Options::parse(std::env::args().skip(1))? else {
        println!("{}", options::USAGE);
        return Ok(());
    };
    let offloads = if options.offload_tun { Config::tun("x").offloads } else { TunOffloads::NONE };
    let config = Config::tun(options.name.as_str()).offloads(offloads).mtu(options.mtu).queue_len(4000);
    let mut device = match options.tun_fd.take() {
        Some(fd) => Device::from_fd_with(fd, &config)?,
        None => Device::open(&config)?,
    };
    if let Some((address, prefix)) = options.address {
        device.add_address(address, prefix)?;
    }
    device.set_up()?;
    let wire = Wire::bind(options.listen, options.offload_udp)?;
    let queue = device.queue()?;
    queue.set_nonblocking(true)?;
    let mut tunnel = Tunnel {
        writer: Writer::new(&queue),
        queue,
        wire,
        session: Session::new(options.key),
        peer: options.peer.map(Path::to),
        mtu: usize::try_from(device.mtu()?)?,
        large: vec![0; READ_SIZE],
        pool: vec![],
        counts: Counts::default(),
    };
    eprintln!("wireguard: {}: {}; {}", device.name()?, device.report(), tunnel.wire);
    tunnel.run(options.until_eof)?;
    let Counts { sent, received, refused, without_peer } = tunnel.counts;
    println!(
        "{{\"sent\":{sent},\"received\":{received},\"refused\":{refused},\"without_peer\":{without_peer},\
         \"tun_queue_drops\":{},\"tun_super_packets\":{},\"tun_writes\":{},{}}}",
        device.queue_drops()?,
        tunnel.writer.stats().super_packets,
        tunnel.writer.stats().writes,
        tunnel.wire.report()?
    );
    Ok(())
}

/// What the tunnel did, in packets.
#[derive(Default)]
struct Counts {
    sent: u64,
    received: u64,
    /// Messages with a wrong tag, or that came before.
    refused: u64,
    /// Packets for a peer whose address is not known.
    without_peer: u64,
}

struct Tunnel {
    queue: Queue,
    writer: Writer<Vec<u8>>,
    wire: Wire,
    session: Session,
    /// Where the last valid message came from.
    peer: Option<Path>,
    mtu: usize,
    large: Vec<u8>,
    pool: Vec<Vec<u8>>,
    counts: Counts,
}

impl Tunnel {
    /// Moves packets, until standard input ends if that is wanted.
    fn run(&mut self, until_eof: bool) -> io::Result<()> {
        let stdin = io::stdin();
        let mut set = PollSet::with_capacity(3);
        loop {
            set.clear();
            set.readable(self.queue.as_raw_fd());
            set.readable(self.wire.as_fd().as_raw_fd());
            if until_eof {
                set.readable(stdin.as_raw_fd());
            }
            set.wait(Duration::from_secs(60));
            let moved = self.seal_packets()? + self.open_messages()?;
            if moved == 0 && until_eof && is_readable(stdin.as_fd()) {
                return Ok(());
            }
        }
    }

    /// From the device to the peer.
    fn seal_packets(&mut self) -> io::Result<usize> {
        let Tunnel { queue, wire, session, peer, large, counts, .. } = self;
        let mut moved = 0;
        while moved < BURST {
            let received = match queue.read(large) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            moved += 1;
            let Some(peer) = peer else {
                counts.without_peer += 1;
                continue;
            };
            // A super-packet that contradicts itself is none of the kernel's.
            let Ok(mut segments) = received.segments() else { continue };
            while let Some(len) = segments.next_len() {
                wire.send(peer, Session::sealed_len(len, self.mtu), |message| {
                    segments.write(&mut message[session::HEADER..][..len]);
                    session.seal(message, len);
                })?;
                counts.sent += 1;
            }
        }
        wire.flush()?;
        Ok(moved)
    }

    /// From the peer to the device.
    fn open_messages(&mut self) -> io::Result<usize> {
        let Tunnel { writer, wire, session, peer, mtu, pool, counts, .. } = self;
        let room = *mtu;
        let moved = wire.receive(BURST, |path, message| {
            let Some(packet) = session.open(message).filter(|packet| packet.len() <= room) else {
                counts.refused += 1;
                return Ok(());
            };
            // The peer may change its address; only a valid message says so.
            *peer = Some(path.reply());
            counts.received += 1;
            let mut buffer = pool.pop().unwrap_or_else(|| vec![0; room]);
            buffer[..packet.len()].copy_from_slice(packet);
            writer.push(buffer, 0..packet.len(), |buffer| pool.push(buffer))
        })?;
        writer.flush(|buffer| pool.push(buffer))?;
        Ok(moved)
    }
}

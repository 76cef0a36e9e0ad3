//! The path through the kernel's stack: UDP sockets in two namespaces.

use super::Pair;
use super::exchange::{Mode, Round, STAMP, Sample, pin, stamp};
use super::sock::{HEADER, NAP};
use crate::args::BenchLatency;
use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;

const PORT: u16 = 9;

pub(super) fn round(mode: Mode, args: &BenchLatency, [core, other]: [usize; 2]) -> Result<Sample, Box<dyn Error>> {
    let pair = Pair::new()?;
    let receiver = pair.far.run(|| UdpSocket::bind(("198.18.0.2", PORT)))??;
    let sender = pair.near.run(|| {
        let socket = UdpSocket::bind(("198.18.0.1", 0))?;
        socket.connect(("198.18.0.2", PORT)).map(|()| socket)
    })??;
    match mode {
        Mode::Spin => receiver.set_nonblocking(true)?,
        Mode::Sleep | Mode::Adaptive => receiver.set_read_timeout(Some(NAP))?,
    }
    let round = Round::new(mode, args)?;
    // Same frame length as on the other paths.
    let mut message = vec![0; args.size.saturating_sub(HEADER.len() + 28).max(STAMP)];
    let mut buffer = [0; 2048];
    let receive = || match receiver.recv(&mut buffer) {
        Ok(n) => Ok(buffer.get(..n).and_then(stamp)),
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => Ok(None),
        Err(error) => Err(error.into()),
    };
    let send = |stamp: u64| {
        message[..STAMP].copy_from_slice(&stamp.to_ne_bytes());
        sender.send(&message)?;
        Ok(())
    };
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            pin(core);
            let sample = round.beside(other, receive, || round.send_all(send, || Ok(())));
            sample.map_err(|error| error.to_string())
        });
        Ok(sending.join().map_err(|_| "the sender failed")??)
    })
}

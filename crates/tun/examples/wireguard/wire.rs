//! UDP: in batches, or one call for each datagram.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use towpath_sys::poll::wait_writable;
use towpath_udp::{OpenError, Path, PushError, UdpBatch, UdpConfig};

pub(crate) struct Wire {
    batch: UdpBatch,
    /// Otherwise only its socket is used, which has the same buffers.
    batched: bool,
    message: Vec<u8>,
    calls: u64,
    /// Datagrams that the kernel refused.
    dropped: u64,
}

impl Wire {
    pub(crate) fn bind(address: SocketAddr, batched: bool) -> Result<Wire, OpenError> {
        let config = UdpConfig::default().segmentation(batched).gro(batched);
        let batch = UdpBatch::bind(address, &config)?;
        let failed = |error| OpenError::Bind { address, error };
        batch.socket().set_nonblocking(true).map_err(failed)?;
        Ok(Wire { batch, batched, message: vec![0; 65_535], calls: 0, dropped: 0 })
    }

    /// Makes a datagram of `len` bytes. In a batch it is sent by [`flush`](Wire::flush), or sooner.
    pub(crate) fn send(&mut self, path: &Path, len: usize, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        if self.batched {
            let mut write = Some(write);
            let mut fill = |room: &mut [u8]| {
                write.take().map(|write| {
                    write(room);
                    len
                })
            };
            while self.batch.sender.push_with(path, len, &mut fill) == Err(PushError::Full) {
                self.flush()?;
            }
            return Ok(());
        }
        let message = &mut self.message[..len];
        write(message);
        loop {
            self.calls += 1;
            match self.batch.socket().send_to(message, path.peer) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => drop(wait_writable(self.batch.as_fd(), None)?),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.dropped += 1;
                    return Ok(());
                }
            }
        }
    }

    /// Sends what is left in the batch.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.batch.sender.pending() > 0 {
            if self.batch.sender.flush().is_err() {
                wait_writable(self.batch.as_fd(), None)?;
            }
        }
        Ok(())
    }

    /// Receives what is there: one batch, or at most `most` datagrams; returns how many.
    pub(crate) fn receive(
        &mut self,
        most: usize,
        mut each: impl FnMut(&Path, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<usize> {
        let nothing = |error: io::Error| match error.kind() {
            // The peer is not there yet: ICMP.
            ErrorKind::WouldBlock | ErrorKind::ConnectionRefused => Ok(0),
            _ => Err(error),
        };
        if self.batched {
            let datagrams = match self.batch.receiver.receive() {
                Ok(datagrams) => datagrams,
                Err(error) => return nothing(error),
            };
            for mut message in self.batch.receiver.messages() {
                let path = message.path;
                message.iter_mut().try_for_each(|datagram| each(&path, datagram))?;
            }
            return Ok(datagrams);
        }
        for n in 0..most {
            self.calls += 1;
            match self.batch.socket().recv_from(&mut self.message) {
                Ok((len, from)) => each(&Path::to(from), &mut self.message[..len])?,
                Err(error) => return nothing(error).map(|_| n),
            }
        }
        Ok(most)
    }

    /// Its counters, as members of a JSON object.
    pub(crate) fn report(&mut self) -> io::Result<String> {
        let (sent, received) = (self.batch.sender.stats(), self.batch.receiver.stats());
        Ok(format!(
            "\"udp_calls\":{},\"udp_segmented\":{},\"udp_refused\":{},\"udp_dropped\":{},\"udp_coalesced\":{},\"udp_lost\":{}",
            self.calls + sent.calls + received.calls,
            sent.segmented,
            sent.refused,
            sent.dropped + self.dropped,
            received.coalesced,
            self.batch.receiver.lost()?
        ))
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.batch.info();
        let calls = if self.batched { "batches" } else { "one datagram a call" };
        let on = |on: bool| if on { "on" } else { "off" };
        write!(f, "UDP: {calls}, UDP_SEGMENT {}, UDP_GRO {}, ", on(info.segmentation), on(info.gro))?;
        write!(f, "buffers of {} and {} bytes", info.receive_buffer, info.send_buffer)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.batch.as_fd()
    }
}

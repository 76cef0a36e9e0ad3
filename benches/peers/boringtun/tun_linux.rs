use super::Error;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use towpath_tun::{Config, Device, Queue, Received, Writer};

/// A queue of the TUN device.
#[derive(Debug)]
pub struct TunSocket {
    device: Device,
    queue: Queue,
}

impl AsRawFd for TunSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.queue.as_raw_fd()
    }
}

impl TunSocket {
    pub fn new(name: &str) -> Result<TunSocket, Error> {
        let opened = match name.parse::<RawFd>() {
            // SAFETY: the descriptor is only duplicated, which fails if it is not open.
            Ok(fd) => Device::from_fd(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?),
            Err(_) => Device::open(&Config::tun(name).multi_queue(true).queue_len(4000)),
        };
        let mut device = opened.map_err(io::Error::other)?;
        let queue = device.queue().map_err(io::Error::other)?;
        Ok(TunSocket { device, queue })
    }

    pub fn set_non_blocking(self) -> Result<TunSocket, Error> {
        self.queue.set_nonblocking(true)?;
        Ok(self)
    }

    pub fn name(&self) -> Result<String, Error> {
        Ok(self.device.name().map_err(io::Error::other)?)
    }

    pub fn mtu(&self) -> Result<usize, Error> {
        Ok(self.device.mtu().map_err(io::Error::other)? as usize)
    }

    pub fn read<'a>(&self, dst: &'a mut [u8]) -> Result<Received<'a>, Error> {
        self.queue.read(dst).map_err(Error::IfaceRead)
    }

    pub fn output(&self) -> Output {
        Output { writer: Writer::new(&self.queue), spare: vec![] }
    }
}

/// Packets to the device: those of a burst are merged.
pub struct Output {
    writer: Writer<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Output {
    pub fn write(&mut self, packet: &[u8]) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(packet);
        let spare = &mut self.spare;
        let _ = self.writer.push(buffer, 0..packet.len(), |buffer| spare.push(buffer));
    }

    pub fn flush(&mut self) {
        let spare = &mut self.spare;
        let _ = self.writer.flush(|buffer| spare.push(buffer));
    }
}

//! A tee to a file, a pipe or a connection: the thread that writes it.

use super::encode::Encoder;
use super::{TeeShared, TeeStream};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use towpath_engine::tee::TeeReader;
use towpath_sys::lock;
use towpath_sys::poll::{is_shut, wait_writable};

/// Bytes of one write.
const PIECE: usize = 1 << 18;
/// Interval at which a writer that waits looks whether it is to stop.
const CHECK: Duration = Duration::from_millis(50);

/// Writes the records of `reader` until the tee is detached, and what is left then.
pub(super) fn run(mut reader: TeeReader, mut encoder: Encoder, stream: TeeStream, shared: &TeeShared) {
    let mut writer = Writer { stream, shared, detached: false };
    if let Err(error) = writer.run(&mut reader, &mut encoder) {
        // A peer that left is no failure of the tee.
        let left = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset].contains(&error.kind());
        if !(left && writer.stream.ends_with_peer) {
            shared.fail(format!("write: {error}"));
        }
    }
    shared.detach();
}

struct Writer<'a> {
    stream: TeeStream,
    shared: &'a TeeShared,
    detached: bool,
}

impl Writer<'_> {
    fn run(&mut self, reader: &mut TeeReader, encoder: &mut Encoder) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.stream.greeting);
        encoder.header(&mut buffer);
        self.write(&mut buffer)?;
        loop {
            self.check();
            let mut taken = 0;
            while buffer.len() < PIECE {
                let n = reader.read(64, |record, bytes| {
                    encoder.record(&mut buffer, record, bytes);
                    true
                });
                taken += n as u64;
                if n == 0 {
                    break;
                }
            }
            if taken > 0 {
                self.write(&mut buffer)?;
                self.shared.written.fetch_add(taken, Ordering::Relaxed);
            } else if reader.is_closed() {
                break;
            } else {
                reader.wait(None);
            }
        }
        let counts = lock(&self.shared.guard).counts();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        encoder.trailer(&mut buffer, now.as_nanos() as u64, counts.matched, counts.missed);
        self.write(&mut buffer)
    }

    /// Detaches the tee if it is to stop, or if its peer has shut the connection down.
    fn check(&mut self) {
        let ends = || {
            self.shared.stop.load(Ordering::Relaxed) || self.stream.ends_with_peer && is_shut(self.stream.out.as_fd())
        };
        if !self.detached && ends() {
            self.detached = true;
            self.shared.detach();
        }
    }

    /// Writes all of `buffer`, as long as the other side takes it or may do so.
    fn write(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        let (mut at, mut progress) = (0, Instant::now());
        while let Some(rest) = buffer.get(at..).filter(|rest| !rest.is_empty()) {
            match self.stream.out.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => (at, progress) = (at + n, Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.check();
                    if self.detached && progress.elapsed() >= self.stream.patience {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    wait_writable(self.stream.out.as_fd(), Some(CHECK))?;
                }
                Err(error) => return Err(error),
            }
        }
        buffer.clear();
        Ok(())
    }
}

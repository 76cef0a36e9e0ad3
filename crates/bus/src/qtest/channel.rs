//! QEMU's qtest protocol: one command per line, one answer per line, in order.
//!
//! A command without a result is *posted*: its answer is read later, with others, so that a
//! register write costs one system call and no wait. At most [`UNANSWERED`] commands are in flight.
//! Their lines and answers fit into the socket's buffers, so neither side ever blocks on the other.

use std::fmt::{Arguments, Write as _};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// The maximum of commands without a received answer.
const UNANSWERED: u32 = 64;

/// The longest line in bytes: twice the longest answer in use.
const LINE: usize = 128;

/// A connection to QEMU. Once it has failed it stays so: every command returns `None` at once.
pub(super) struct Channel {
    connection: Mutex<Connection>,
    gone: OnceLock<String>,
}

struct Connection {
    socket: UnixStream,
    input: [u8; 4096],
    /// The received bytes of `input` that are not parsed yet.
    from: usize,
    to: usize,
    unanswered: u32,
}

impl Channel {
    /// A channel that fails if an answer takes longer than `timeout`.
    pub(super) fn new(socket: UnixStream, timeout: Duration) -> io::Result<Channel> {
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        let connection = Connection { socket, input: [0; 4096], from: 0, to: 0, unanswered: 0 };
        Ok(Channel { connection: Mutex::new(connection), gone: OnceLock::new() })
    }

    /// Changes the timeout of an answer.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        let _ = self.with(|connection| connection.socket.set_read_timeout(Some(timeout)).map_err(|e| e.to_string()));
    }

    /// Sends a command and does not wait for its execution.
    pub(super) fn post(&self, command: Arguments<'_>) {
        let _ = self.with(|connection| {
            if connection.unanswered == UNANSWERED {
                connection.drain()?;
            }
            connection.send(command)?;
            connection.unanswered += 1;
            Ok(())
        });
    }

    /// Sends a command and waits for its numeric result. All commands posted before have been
    /// executed then.
    pub(super) fn request(&self, command: Arguments<'_>) -> Option<u64> {
        self.with(|connection| {
            connection.send(command)?;
            connection.drain()?;
            let answer = connection.answer()?;
            let number = answer.strip_prefix("OK 0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
            number.ok_or_else(|| format!("QEMU answered {answer:?} where a number was due"))
        })
    }

    /// Waits until the machine runs: before that, its memory and devices may not exist.
    pub(super) fn handshake(&self) -> Result<(), String> {
        let ready = self.with(|connection| {
            connection.send(format_args!("endianness"))?;
            match connection.answer()? {
                "OK little" => Ok(()),
                other => Err(format!("the machine is not little-endian: it answers {other:?}")),
            }
        });
        ready.ok_or_else(|| self.gone().unwrap_or_default().to_owned())
    }

    /// Why the connection has failed; `None` if it has not.
    pub(super) fn gone(&self) -> Option<&str> {
        self.gone.get().map(String::as_str)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Connection) -> Result<R, String>) -> Option<R> {
        if self.gone.get().is_some() {
            return None;
        }
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut connection).map_err(|why| self.gone.get_or_init(|| why)).ok()
    }
}

impl Connection {
    fn send(&mut self, command: Arguments<'_>) -> Result<(), String> {
        let mut text = LineBuffer { bytes: [0; LINE], len: 0 };
        writeln!(text, "{command}").map_err(|_| "a command is too long".to_owned())?;
        let mut rest = text.bytes.get(..text.len).unwrap_or_default();
        while !rest.is_empty() {
            // SAFETY: pointer and length are those of a slice that outlives the call. MSG_NOSIGNAL:
            // if QEMU has ended, the call fails instead of raising SIGPIPE.
            let sent =
                unsafe { libc::send(self.socket.as_raw_fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
            match usize::try_from(sent) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(_) => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e => return Err(describe(&e, "takes no commands")),
                },
            }
        }
        Ok(())
    }

    /// Reads the answers of all posted commands.
    fn drain(&mut self) -> Result<(), String> {
        while self.unanswered > 0 {
            match self.answer()? {
                "OK" => self.unanswered -= 1,
                other => return Err(format!("QEMU refused a command: {other:?}")),
            }
        }
        Ok(())
    }

    /// The next line that is an answer; events (`IRQ …`) are skipped.
    fn answer(&mut self) -> Result<&str, String> {
        let (from, to) = loop {
            let received = self.input.get(self.from..self.to).unwrap_or_default();
            if let Some(end) = received.iter().position(|&b| b == b'\n') {
                let at = self.from;
                self.from += end + 1;
                if !received.starts_with(b"IRQ ") {
                    break (at, at + end);
                }
            } else {
                self.receive()?;
            }
        };
        let line = self.input.get(from..to).unwrap_or_default();
        std::str::from_utf8(line).map(str::trim_end).map_err(|_| "QEMU's answer is not text".to_owned())
    }

    fn receive(&mut self) -> Result<(), String> {
        self.input.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let room = self.input.get_mut(self.to..).filter(|room| !room.is_empty()).ok_or("QEMU's answer has no end")?;
        loop {
            match self.socket.read(room) {
                Ok(0) => return Err("QEMU closed the connection".to_owned()),
                Ok(n) => self.to += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(describe(&e, "does not answer")),
            }
            return Ok(());
        }
    }
}

fn describe(error: &io::Error, what: &str) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("QEMU {what}"),
        _ => format!("QEMU {what}: {error}"),
    }
}

/// A line buffer on the stack.
struct LineBuffer {
    bytes: [u8; LINE],
    len: usize,
}

impl std::fmt::Write for LineBuffer {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + s.len()).ok_or(std::fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.len += s.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};

    /// A channel to a thread that answers each line with the result of `f`.
    fn answered(f: impl Fn(&str) -> String + Send + 'static) -> Channel {
        let (local, remote) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut to = remote.try_clone().unwrap();
            for line in BufReader::new(remote).lines().map_while(Result::ok) {
                if to.write_all(f(&line).as_bytes()).is_err() {
                    return;
                }
            }
        });
        Channel::new(local, Duration::from_millis(200)).unwrap()
    }

    #[test]
    fn answers_of_posted_commands_and_events_are_skipped() {
        let channel = answered(|line| match line {
            "read" => "IRQ raise 3\nOK 0x00000000000000ff\n".to_owned(),
            _ => "OK\nIRQ lower 1\n".to_owned(),
        });
        for _ in 0..10_000 {
            channel.post(format_args!("write"));
        }
        assert_eq!(channel.request(format_args!("read")), Some(0xff));
        assert_eq!(channel.gone(), None);
    }

    #[test]
    fn a_refused_truncated_endless_or_missing_answer_fails_the_channel_with_a_reason() {
        let reason = |f: fn(&str) -> String| {
            let channel = answered(f);
            assert_eq!(channel.request(format_args!("read")), None);
            assert_eq!(channel.request(format_args!("read")), None, "and it stays failed");
            channel.gone().unwrap().to_owned()
        };
        assert!(reason(|_| "FAIL Unknown command\n".to_owned()).contains("Unknown command"));
        assert!(reason(|_| "OK 0xZZ\n".to_owned()).contains("where a number was due"));
        assert!(reason(|_| "x".repeat(5000)).contains("no end"));
        assert!(reason(|_| "\n".to_owned()).contains("a number was due"));
        assert!(reason(|_| String::new()).contains("does not answer"));
    }

    #[test]
    fn a_closed_connection_fails_posted_commands_too() {
        let (local, remote) = UnixStream::pair().unwrap();
        let channel = Channel::new(local, Duration::from_secs(1)).unwrap();
        drop(remote);
        channel.post(format_args!("write"));
        assert!(channel.gone().unwrap().contains("takes no commands"), "{:?}", channel.gone());
        assert!(channel.handshake().is_err());
    }
}

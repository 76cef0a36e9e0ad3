//! Settings of a running `towpath`, read and changed from another terminal.
//!
//! ```text
//!   towpath fwd … --control PATH          towpath set --control PATH [PORT NAME=VALUE…]
//!      └─ thread: several clients       ◄── Request, a line of JSON
//!                                       ──► Answer, a line of JSON
//! ```
//!
//! The socket is a file that only its owner may open ([`unix_socket`]). It is removed at the end. A
//! stale socket, whose process was killed, is replaced. A client has two seconds from its
//! connection to the last byte of its answer. No client delays another one, or the end of the
//! command. `request` reads and answers a line.

pub(crate) mod request;

use crate::args::Set;
use crate::output::outln;
use request::{Answer, Change, LONGEST, Line, Request, answer};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath::packet::port::SettingValue;
use towpath::{Observer, PortControls};
use towpath_sys::EventFd;
use towpath_sys::poll::{PollSet, is_readable};
use towpath_sys::unix_socket::{self, Access, Kind};

/// Time limit of a whole request, on either side.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Clients at a time.
const MAX_CLIENTS: usize = 16;
/// The pause before the next `accept` when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the socket answers from.
#[derive(Clone)]
pub(crate) struct Service {
    /// What runs now, by name: one for `fwd A B`.
    pub(crate) observers: Arc<dyn Fn() -> Vec<(String, Observer)> + Send + Sync>,
}

impl Service {
    /// The service of a command that runs one thing from its start to its end.
    pub(crate) fn of(observer: &Observer) -> Service {
        let name = if observer.bridge().is_some() { "bridge" } else { "fwd" };
        let one = vec![(name.to_owned(), observer.clone())];
        Service { observers: Arc::new(move || one.clone()) }
    }

    /// The ports of all that runs now.
    fn controls(&self) -> PortControls {
        (self.observers)().iter().map(|(_, observer)| observer.port_controls().clone()).collect()
    }
}

/// The socket of a running `towpath`.
pub(crate) struct Listener {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens at `path` until it is dropped.
    pub(crate) fn new(path: &Path, service: Service) -> Result<Listener, Box<dyn Error>> {
        let about = |error: &dyn std::fmt::Display| format!("--control {}: {error}", path.display());
        let access = Access { mode: 0o600, uid: None, gid: None };
        let socket = unix_socket::Listener::new(path, Kind::Stream, access).map_err(|error| about(&error))?;
        let stop = Arc::new(EventFd::new().map_err(|error| about(&error))?);
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("towpath-control".into())
            .spawn(move || serve(&socket, &stopped, &service))
            .map_err(|error| about(&error))?;
        Ok(Listener { stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers clients until `stop` is readable.
fn serve(socket: &unix_socket::Listener, stop: &EventFd, service: &Service) {
    let (mut waits, mut clients) = (PollSet::default(), Vec::<Client>::new());
    let mut accepts = true;
    while !is_readable(stop.as_fd()) {
        waits.clear();
        waits.readable(stop.fd());
        if accepts {
            waits.readable(socket.as_fd().as_raw_fd());
        }
        let mut time = if accepts { TIMEOUT } else { ACCEPT_PAUSE };
        for client in &clients {
            let fd = client.stream.as_raw_fd();
            if client.answer.is_empty() {
                waits.readable(fd)
            } else {
                waits.writable(fd)
            }
            time = time.min(client.end.saturating_duration_since(Instant::now()));
        }
        waits.wait(time);
        // It fails if the process has no descriptor left.
        accepts = accept(socket, &mut clients).is_ok();
        clients.retain_mut(|client| client.advance(service).unwrap_or(false) && Instant::now() < client.end);
    }
}

/// Accepts a bounded number of connections. If there are too many, those that came first are
/// closed: a request takes much less time than it may.
fn accept(socket: &unix_socket::Listener, clients: &mut Vec<Client>) -> io::Result<()> {
    for _ in 0..MAX_CLIENTS {
        let stream = match unix_socket::accept(socket.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            accepted => accepted?.into(),
        };
        if clients.len() == MAX_CLIENTS {
            clients.remove(0);
        }
        clients.push(Client { stream, end: Instant::now() + TIMEOUT, request: Vec::new(), answer: Vec::new() });
    }
    Ok(())
}

/// A connection, until its answer is written.
struct Client {
    stream: UnixStream,
    /// The deadline of the request and its answer.
    end: Instant,
    /// What was read of the request.
    request: Vec<u8>,
    /// What is left of the answer; empty before the request is complete.
    answer: Vec<u8>,
}

impl Client {
    /// Reads and writes what is possible now. Returns whether the client is still to be served.
    fn advance(&mut self, service: &Service) -> io::Result<bool> {
        if self.answer.is_empty() {
            let room = LONGEST.saturating_sub(self.request.len() as u64);
            match (&self.stream).take(room).read_to_end(&mut self.request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.request.contains(&b'\n') => {
                    return Ok(true);
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => self.answer = answer(&self.request, service)?,
            }
        }
        while !self.answer.is_empty() {
            match (&self.stream).write(&self.answer) {
                Ok(n) => drop(self.answer.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// A connection whose reads and writes have one deadline.
struct Until<'a>(&'a UnixStream, Instant);

impl Until<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.set_read_timeout(self.left()?)?;
        self.0.read(bytes)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set_write_timeout(self.left()?)?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a request to the `towpath` that listens at `path`; returns the line of its answer.
pub(crate) fn ask(path: &Path, request: &Request) -> Result<String, Box<dyn Error>> {
    let (at, end) = (path.display(), Instant::now() + TIMEOUT);
    let slow = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("--control {at}: no answer in {TIMEOUT:?}"),
        _ => format!("--control {at}: {error}"),
    };
    let stream = unix_socket::connect(path, Kind::Stream, Some(end))
        .map_err(|error| format!("{} (start towpath with --control {at})", slow(error)))?;
    let stream = UnixStream::from(stream);
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    Until(&stream, end).write_all(&line).map_err(slow)?;
    let mut line = String::new();
    BufReader::new(Until(&stream, end).take(LONGEST)).read_line(&mut line).map_err(slow)?;
    if line.is_empty() { Err(format!("--control {at}: closed without an answer").into()) } else { Ok(line) }
}

/// `towpath set`.
pub(crate) fn set(args: &Set) -> Result<ExitCode, Box<dyn Error>> {
    let line = ask(&args.control, &Request::Settings(Change { port: args.port.clone(), set: args.settings.clone() }))?;
    let lines = match serde_json::from_str(&line)? {
        Answer::Settings(lines) => lines,
        Answer::Error(error) => return Err(error.into()),
        Answer::Fdb(_) => return Err("an answer to another request".into()),
    };
    if args.json {
        outln!("{}", serde_json::to_string(&lines)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if lines.is_empty() {
        outln!("no port has settings that can be changed while it runs")?;
    }
    let width = lines.iter().map(|line| line.port.len()).max().unwrap_or(0);
    for Line { port, name, value, what } in lines {
        outln!("{port:width$}  {name}={}  {what}", SettingValue::from(value))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A listener in a directory of its own.
    fn listener() -> (tempfile::TempDir, std::path::PathBuf, Listener) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let listener = Listener::new(&path, Service { observers: Arc::new(Vec::new) }).unwrap();
        (dir, path, listener)
    }

    fn is_answered(path: &Path) {
        let line = ask(path, &Request::Settings(Change::default())).unwrap();
        assert_eq!(line, "{\"settings\":[]}\n");
    }

    #[test]
    fn only_the_owner_may_open_the_socket_and_it_is_gone_at_the_end() {
        let (_dir, path, listener) = listener();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        is_answered(&path);
        drop(listener);
        assert!(!path.exists());
        let error = ask(&path, &Request::Settings(Change::default())).unwrap_err().to_string();
        assert!(error.contains("start towpath with --control"), "{error}");
    }

    #[test]
    fn clients_that_say_nothing_delay_neither_others_nor_the_end() {
        let (_dir, path, listener) = listener();
        // More than are served at a time, and as many as the queue has room for.
        let silent: Vec<_> = (0..4 * MAX_CLIENTS).map(|_| UnixStream::connect(&path).unwrap()).collect();
        is_answered(&path);
        let open = silent.iter().filter(|client| !is_readable(client.as_fd())).count();
        assert!(open <= MAX_CLIENTS, "{open} connections are open");
        drop(listener);
        // All are closed.
        for mut client in silent {
            assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
        }
    }

    #[test]
    fn a_client_that_trickles_is_closed_after_its_time_whatever_it_sends() {
        let (_dir, path, _listener) = listener();
        let mut client = UnixStream::connect(&path).unwrap();
        let begin = Instant::now();
        while client.write_all(b" ").is_ok() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is never closed");
            std::thread::sleep(Duration::from_millis(20));
        }
        is_answered(&path);
    }

    #[test]
    fn what_is_no_request_or_too_long_is_answered_with_the_reason() {
        let (_dir, path, _listener) = listener();
        let long = vec![b' '; LONGEST as usize];
        for (request, part) in
            [(&b"what?\n{}\n"[..], "not a request"), (&long, "65536 bytes or more"), (b"", "not a request")]
        {
            let mut client = UnixStream::connect(&path).unwrap();
            client.write_all(request).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("{\"error\":") && answer.contains(part), "{answer}");
        }
    }

    #[test]
    fn a_server_that_does_not_answer_is_named_after_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let access = Access { mode: 0o600, uid: None, gid: None };
        let _silent = unix_socket::Listener::new(&path, Kind::Stream, access).unwrap();
        let error = ask(&path, &Request::Settings(Change::default())).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("no answer in 2s"), "{error}");
    }
}

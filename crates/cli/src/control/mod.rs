//! State and settings of a running `towpath`, read and changed from another terminal.
//!
//! ```text
//!   towpath fwd … --control PATH          towpath set --control PATH [PORT NAME=VALUE…]
//!      └─ Server: several clients         towpath state --control PATH, towpath top --control PATH
//!                                       ◄── Request, a line of JSON
//!                                       ──► Answer, a line of JSON
//! ```
//!
//! The socket is a file that only its owner may open ([`unix_socket`]). It is removed at the end. A
//! stale socket, whose process was killed, is replaced. [`server`](crate::server) serves it.
//!
//! | file | content |
//! |---|---|
//! | `request` | a line, read and answered |
//! | `settings` | settings of ports |
//! | `fdb` | addresses of a bridge |
//! | `tables` | routes and neighbours of a router |
//! | `tees` | the connections that watch packets |

pub(crate) mod fdb;
pub(crate) mod request;
pub(crate) mod settings;
pub(crate) mod tables;
mod tees;

use crate::args::{Reload, Set};
use crate::output::outln;
use crate::run::while_nothing_opens;
use crate::server::{Answers, Server, Socket, TIMEOUT};
use crate::state::{State, gather};
use request::{Answer, LONGEST, LONGEST_ANSWER, Request, parse};
use settings::{Change, Line};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tees::Tees;
use towpath::packet::port::SettingValue;
use towpath::{Observer, PortControls};
use towpath_sys::unix_socket::{self, Access, Kind};

/// How long a reload may take: ports are opened, and those that end have time to drain.
const LONGEST_RELOAD: Duration = Duration::from_secs(120);

/// What the socket answers from.
#[derive(Clone)]
pub(crate) struct Service {
    /// What runs now, by name: one for `fwd A B`.
    pub(crate) observers: Arc<dyn Fn() -> Vec<(String, Observer)> + Send + Sync>,
    /// Takes connections that ask for a reload; `None` if there is no file.
    pub(crate) reload: Option<Sender<UnixStream>>,
}

impl Service {
    /// The service of a command that runs one thing from its start to its end.
    pub(crate) fn of(observer: &Observer) -> Service {
        let name = match (observer.bridge(), observer.router()) {
            (Some(_), _) => "bridge",
            (_, Some(_)) => "router",
            _ => "fwd",
        };
        let one = vec![(name.to_owned(), observer.clone())];
        Service { observers: Arc::new(move || one.clone()), reload: None }
    }

    /// The state of now. `watched`: the routes count their largest flows, for the next reading.
    pub(crate) fn state(&self, watched: bool) -> State {
        let running = (self.observers)();
        if watched {
            running.iter().for_each(|(_, observer)| observer.watch_flows());
        }
        gather(&running)
    }

    /// The names of all ports that run now.
    fn port_names(&self) -> Vec<String> {
        let infos = |(_, observer): &(String, Observer)| observer.infos().to_vec();
        (self.observers)().iter().flat_map(infos).map(|info| info.name).collect()
    }

    /// The ports of all that runs now.
    fn controls(&self) -> PortControls {
        (self.observers)().iter().map(|(_, observer)| observer.port_controls().clone()).collect()
    }
}

/// The socket of a running `towpath`; it is removed on drop.
pub(crate) struct Listener(#[expect(dead_code, reason = "it serves until it is dropped")] Server);

impl Listener {
    /// Listens at `path` until it is dropped.
    pub(crate) fn new(path: &Path, service: Service) -> Result<Listener, Box<dyn Error>> {
        let about = |error: &dyn std::fmt::Display| format!("--control {}: {error}", path.display());
        let access = Access { mode: 0o600, uid: None, gid: None };
        let socket = unix_socket::Listener::new(path, Kind::Stream, access).map_err(|error| about(&error))?;
        let server = Server::start("towpath-control", Socket::Unix(socket), Lines { service, tees: Tees::default() });
        Ok(Listener(server.map_err(|error| about(&error))?))
    }
}

/// Requests that are lines of JSON.
struct Lines {
    service: Service,
    tees: Tees,
}

impl Answers for Lines {
    const LONGEST: usize = LONGEST as usize;

    fn answer(&mut self, request: &[u8], ended: bool) -> Vec<u8> {
        if ended || request.contains(&b'\n') {
            request::answer(request, &self.service).unwrap_or_default()
        } else {
            Vec::new()
        }
    }

    fn takes(&mut self, request: &[u8], stream: &File) -> bool {
        if !request.contains(&b'\n') {
            return false;
        }
        let (request, stream) = match (parse(request), stream.try_clone()) {
            (Ok(request), Ok(stream)) => (request, UnixStream::from(OwnedFd::from(stream))),
            _ => return false,
        };
        match (request, &self.service.reload) {
            (Request::Tee(tee), _) => while_nothing_opens(|| self.tees.start(stream, &tee, &self.service)),
            // It takes longer than a request may.
            (Request::Reload, Some(reload)) => return reload.send(stream).is_ok(),
            _ => return false,
        }
        true
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

/// An error of the connection to the `towpath` that listens at `path`.
fn slow(path: &Path, error: &io::Error) -> String {
    let at = path.display();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("--control {at}: no answer in {TIMEOUT:?}"),
        _ => format!("--control {at}: {error}"),
    }
}

/// Sends a request to the `towpath` that listens at `path`; returns the connection, whose reads end
/// after the time of a request.
pub(crate) fn send(path: &Path, request: &Request) -> Result<UnixStream, Box<dyn Error>> {
    let end = Instant::now() + TIMEOUT;
    let stream = unix_socket::connect(path, Kind::Stream, Some(end))
        .map_err(|error| format!("{} (start towpath with --control {})", slow(path, &error), path.display()))?;
    let stream = UnixStream::from(stream);
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    Until(&stream, end).write_all(&line).map_err(|error| slow(path, &error))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Sends a request to the `towpath` that listens at `path`; returns the line of its answer.
pub(crate) fn ask(path: &Path, request: &Request) -> Result<String, Box<dyn Error>> {
    let (at, end) = (path.display(), Instant::now() + TIMEOUT);
    let stream = send(path, request)?;
    let mut line = String::new();
    let mut reader = BufReader::new(Until(&stream, end).take(LONGEST_ANSWER));
    reader.read_line(&mut line).map_err(|error| slow(path, &error))?;
    if line.is_empty() { Err(format!("--control {at}: closed without an answer").into()) } else { Ok(line) }
}

/// `towpath reload`.
pub(crate) fn reload(args: &Reload) -> Result<ExitCode, Box<dyn Error>> {
    let stream = send(&args.control, &Request::Reload)?;
    stream.set_read_timeout(Some(LONGEST_RELOAD))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST_ANSWER)).read_line(&mut line).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => format!("--control {}: no answer in {LONGEST_RELOAD:?}", args.control.display()),
        _ => slow(&args.control, &error),
    })?;
    match serde_json::from_str(&line)? {
        Answer::Reloaded { changes, failures } => {
            if args.json {
                outln!("{}", line.trim_end())?;
            } else {
                let nothing = changes.is_empty() && failures.is_empty();
                let lines = changes.iter().cloned().chain(nothing.then(|| "nothing has changed".to_owned()));
                lines.into_iter().try_for_each(|line| outln!("{line}"))?;
                failures.iter().for_each(|line| eprintln!("towpath: {line}"));
            }
            Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Answer::Error(error) => Err(error.into()),
        _ => Err(unexpected(&args.control)),
    }
}

/// Sends a request to the `towpath` that listens at `path`; returns its answer.
///
/// # Errors
/// Also what it answers as an error.
pub(crate) fn answer(path: &Path, request: &Request) -> Result<Answer, Box<dyn Error>> {
    match serde_json::from_str(&ask(path, request)?)? {
        Answer::Error(error) => Err(error.into()),
        answer => Ok(answer),
    }
}

pub(crate) fn unexpected(path: &Path) -> Box<dyn Error> {
    format!("--control {}: an answer to another request", path.display()).into()
}

/// The names of the ports of the `towpath` that listens at `path`.
pub(crate) fn ask_ports(path: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    match serde_json::from_str(&ask(path, &Request::Ports)?)? {
        Answer::Ports(ports) => Ok(ports),
        _ => Err(unexpected(path)),
    }
}

/// The state of the `towpath` that listens at `path`.
pub(crate) fn ask_state(path: &Path) -> Result<State, Box<dyn Error>> {
    let line = ask(path, &Request::State)?;
    let answer = serde_json::from_str(&line).map_err(|error| {
        let versions = "it may be of another version of towpath: use that one's command";
        format!("--control {}: the answer can't be read: {error}; {versions}", path.display())
    })?;
    match answer {
        Answer::State(state) => Ok(*state),
        Answer::Error(error) => Err(format!("--control {}: {error}", path.display()).into()),
        _ => Err(unexpected(path)),
    }
}

/// `towpath set`.
pub(crate) fn set(args: &Set) -> Result<ExitCode, Box<dyn Error>> {
    let line = ask(&args.control, &Request::Settings(Change { port: args.port.clone(), set: args.settings.clone() }))?;
    let lines = match serde_json::from_str(&line)? {
        Answer::Settings(lines) => lines,
        Answer::Error(error) => return Err(error.into()),
        _ => return Err(unexpected(&args.control)),
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
    use crate::server::MAX_CLIENTS;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    use towpath_sys::poll::is_readable;

    /// A listener in a directory of its own.
    fn listener() -> (tempfile::TempDir, std::path::PathBuf, Listener) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let listener = Listener::new(&path, Service { observers: Arc::new(Vec::new), reload: None }).unwrap();
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
    fn the_state_is_read_by_the_command_that_asks_for_it() {
        let (_dir, path, _listener) = listener();
        let state = ask_state(&path).unwrap();
        assert_eq!((state.pid, state.units.len()), (std::process::id(), 0));
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

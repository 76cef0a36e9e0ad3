//! Settings of a running `towpath`, read and changed from another terminal.
//!
//! ```text
//!   towpath fwd … --control PATH          towpath set --control PATH [PORT NAME=VALUE…]
//!      └─ thread: one client at a time  ◄── Request, a line of JSON
//!                                       ──► Answer, a line of JSON
//! ```
//!
//! The socket is a file that only its owner may open. It is removed at the end. A stale socket,
//! whose process was killed, is replaced.

use crate::args::Set;
use nix::sys::socket::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath::PortControls;
use towpath::packet::port::PortControl;

/// Longest request or answer in bytes.
const LONGEST: u64 = 1 << 16;
/// Time limit for the other side.
const TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// The port; all ports if it is absent.
    port: Option<String>,
    /// The settings to change.
    #[serde(default)]
    set: Vec<(String, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    #[serde(rename = "settings")]
    Settings(Vec<Line>),
    #[serde(rename = "error")]
    Error(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    port: String,
    name: String,
    value: u64,
    what: String,
}

/// The socket of a running `towpath`.
pub(crate) struct Listener {
    path: PathBuf,
    socket: UnixListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens at `path` until it is dropped.
    pub(crate) fn new(path: &Path, controls: PortControls) -> io::Result<Listener> {
        let about = |e: io::Error| io::Error::new(e.kind(), format!("--control {}: {e}", path.display()));
        if UnixStream::connect(path).is_ok() {
            return Err(about(io::Error::new(io::ErrorKind::AddrInUse, "another towpath listens there")));
        }
        if std::fs::symlink_metadata(path).is_ok_and(|found| is_socket(&found)) {
            std::fs::remove_file(path).map_err(about)?;
        }
        let socket = UnixListener::bind(path).map_err(about)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(about)?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let accepting = socket.try_clone().map_err(about)?;
        let serve = move || {
            for client in accepting.incoming() {
                if asked.load(Ordering::Relaxed) {
                    break;
                }
                // A client that disconnects or sends garbage loses only its own connection.
                let _ = client.and_then(|client| answer(client, &controls));
            }
        };
        let thread = std::thread::Builder::new().name("towpath-control".into()).spawn(serve).map_err(about)?;
        Ok(Listener { path: path.to_owned(), socket, stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Ends the `accept` of the listener; a sandbox allows no new socket that could wake it.
        let woken = shutdown(self.socket.as_raw_fd(), Shutdown::Both).is_ok();
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn is_socket(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_socket()
}

fn answer(client: UnixStream, controls: &PortControls) -> io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&client).take(LONGEST)).read_line(&mut line)?;
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) => tune(&request, controls).map_or_else(Answer::Error, Answer::Settings),
        Err(error) => Answer::Error(format!("not a request: {error}")),
    };
    writeln!(&client, "{}", serde_json::to_string(&answer)?)
}

fn tune(request: &Request, controls: &PortControls) -> Result<Vec<Line>, String> {
    if let Some(name) = &request.port {
        let tunable = |control: &dyn PortControl| !control.settings().is_empty();
        let port = controls.port(name).filter(|control| tunable(*control)).ok_or_else(|| {
            let known: Vec<_> =
                controls.iter().filter(|(_, control)| tunable(*control)).map(|(name, _)| name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("port '{name}' has nothing that can be changed; ports that have: {known}")
        })?;
        for (setting, value) in &request.set {
            port.set(setting, *value).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    let wanted = controls.iter().filter(|(name, _)| request.port.as_deref().is_none_or(|port| port == *name));
    let lines = wanted.flat_map(|(port, control)| {
        control.settings().into_iter().map(|setting| Line {
            port: port.to_owned(),
            name: setting.name.to_owned(),
            value: setting.value,
            what: setting.what.to_owned(),
        })
    });
    Ok(lines.collect())
}

/// `towpath set`.
pub(crate) fn set(args: &Set) -> Result<ExitCode, Box<dyn Error>> {
    let at = args.control.display();
    let stream = UnixStream::connect(&args.control)
        .map_err(|error| format!("--control {at}: {error} (start towpath with --control {at})"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = Request { port: args.port.clone(), set: args.settings.clone() };
    writeln!(&stream, "{}", serde_json::to_string(&request)?)?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    let lines = match serde_json::from_str(&line)? {
        Answer::Settings(lines) => lines,
        Answer::Error(error) => return Err(error.into()),
    };
    if args.json {
        println!("{}", serde_json::to_string(&lines)?);
        return Ok(ExitCode::SUCCESS);
    }
    if lines.is_empty() {
        println!("no port has settings that can be changed while it runs");
    }
    let width = lines.iter().map(|line| line.port.len()).max().unwrap_or(0);
    for Line { port, name, value, what } in lines {
        println!("{port:width$}  {name}={value}  {what}");
    }
    Ok(ExitCode::SUCCESS)
}

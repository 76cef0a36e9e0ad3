//! Attaches to a machine that was started by other means.

use super::channel::Channel;
use super::machine::{ANSWER, START};
use super::ram::Ram;
use crate::bus::BusError;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_sys::seqpacket::peer;

/// QEMU's name of a `memory-backend-memfd` (`backends/hostmem-memfd.c`).
const BACKEND: &str = "/memfd:memory-backend-memfd";

const HINT: &str =
    "start QEMU with -object memory-backend-memfd,id=ram,size=64M,share=on -machine q35,memory-backend=ram";

pub(super) fn attach(name: &str, socket: &Path, memory: Option<&Path>) -> Result<(Channel, Ram), BusError> {
    let device = |what: String| BusError::device(name, what);
    let hint = "start QEMU with -qtest unix:SOCKET,server=on,wait=off";
    let stream = connect(socket).map_err(BusError::os(name, "connecting")).map_err(|error| error.with_hint(hint))?;
    let peer = peer(stream.as_fd()).map_err(BusError::os(name, "SO_PEERCRED"))?;
    let channel = Channel::new(stream, START).map_err(BusError::os(name, "setting up the socket"))?;
    let busy = |why| device(format!("{why} (only one program at a time can be connected to its socket)"));
    channel.handshake().map_err(busy)?;
    channel.set_timeout(ANSWER);
    let path = match memory {
        Some(path) => path.to_owned(),
        None => find_memfd(peer.pid)
            .ok_or_else(|| device(format!("process {} has no memory that is shared: {HINT}", peer.pid)))?,
    };
    let file = File::options().read(true).write(true).open(&path);
    let file = file.map_err(BusError::os(name, format!("opening {}", path.display())))?;
    sealed(&file).map_err(|()| device(format!("{} could shrink while it is in use: {HINT}", path.display())))?;
    let ram = Ram::new(file.into()).map_err(BusError::os(name, "examining the memory"))?;
    if ram.is_empty() {
        return Err(device(format!("{} is no memory of a machine: it has {} bytes", path.display(), ram.len())));
    }
    Ok((channel, ram))
}

/// Attempts to connect, and the pause between two of them: a second or more. They are counted and
/// not timed, because none is made while the processor does not run.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Connects to a socket; waits until a process listens on it.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    for _ in 1..ATTEMPTS {
        match UnixStream::connect(socket) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    UnixStream::connect(socket)
}

/// The memory of a machine among the descriptors of a process; the first if there are several.
fn find_memfd(process: i32) -> Option<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(format!("/proc/{process}/fd"))
        .ok()?
        .filter_map(Result::ok)
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with(BACKEND)))
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    found.sort();
    found.into_iter().next().map(|(_, path)| path)
}

/// Access to a mapping whose file has shrunk kills the process, so the file must be sealed.
fn sealed(file: &File) -> Result<(), ()> {
    // SAFETY: fcntl with F_GET_SEALS takes no pointer.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals >= 0 && seals & libc::F_SEAL_SHRINK != 0 { Ok(()) } else { Err(()) }
}

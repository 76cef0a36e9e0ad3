//! UNIX sockets at paths: a listener whose file has its mode and owner before it can be seen, and
//! connections within a deadline.
//!
//! ```text
//!   DIR                   opened once: every further name is looked up in this descriptor
//!   DIR/.towpath-RANDOM   a directory of mode 0700: bind, chmod, chown, listen
//!   DIR/NAME              renamed to, if there is no such file; an abandoned socket goes the other
//!                         way, and is removed there
//! ```
//!
//! No mode or owner is set by a path that another user can replace: the file gets both in a
//! directory that only this user can enter, and connections refer to the file, not to its name.
//! (`fchmod` on a socket that is not bound decides the mode of the file as well, but only up to the
//! umask of the process; `fchown` decides nothing.) `ss -x` and `getpeername(2)` therefore show the
//! name at the time of `bind`, `/proc/self/fd/N/NAME`.
//!
//! **Rule for directories,** as sshd's `StrictModes`: neither DIR nor any directory above it may be
//! writable for its group or for all, unless it has the sticky bit, as `/tmp` has. In such a
//! directory another user could replace the socket, and applications would share their memory with
//! that user. Owners are not compared: the owner of a directory decides what is in it.

use crate::check;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 64;

/// What a socket carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Records with boundaries (`SOCK_SEQPACKET`).
    Records,
    /// Bytes (`SOCK_STREAM`).
    Stream,
}

/// Permissions, owner and group of a socket's file; `None` keeps those of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Permissions, whatever the umask of the process is.
    pub mode: u32,
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// Why nothing listens at a path.
#[derive(Debug)]
#[non_exhaustive]
pub struct ListenError {
    /// The step that failed.
    pub step: &'static str,
    /// Its error.
    pub source: io::Error,
    /// How to fix it.
    pub hint: Option<String>,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.source)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The error of a step.
fn at(step: &'static str) -> impl FnOnce(io::Error) -> ListenError {
    move |source: io::Error| {
        let hint = match source.kind() {
            io::ErrorKind::PermissionDenied if step.contains("directory") => {
                Some("choose a directory that this user can write to, or run as root".to_owned())
            }
            io::ErrorKind::NotFound if step.contains("directory") => Some("make the directory first".to_owned()),
            _ => None,
        };
        ListenError { step, source, hint }
    }
}

/// An unconnected socket.
fn socket(kind: Kind, flags: libc::c_int) -> io::Result<OwnedFd> {
    let kind = match kind {
        Kind::Records => libc::SOCK_SEQPACKET,
        Kind::Stream => libc::SOCK_STREAM,
    };
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC | flags, 0) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The address of a path.
fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    // SAFETY: sockaddr_un is plain data; all zeroes are an empty path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a path of a socket has 1 to 107 bytes"));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, byte) in address.sun_path.iter_mut().zip(bytes) {
        *to = *byte as libc::c_char;
    }
    Ok(address)
}

/// `bind(2)` or `connect(2)`.
type AddressCall = unsafe extern "C" fn(libc::c_int, *const libc::sockaddr, libc::socklen_t) -> libc::c_int;

fn with_address(call: AddressCall, fd: &OwnedFd, address: &libc::sockaddr_un) -> io::Result<()> {
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address lives across the call and has the length that is given.
    check(unsafe { call(fd.as_raw_fd(), std::ptr::from_ref(address).cast(), len) }).map(drop)
}

/// Connects to the listener at a path, until `deadline` (`None`: no limit). It waits while the
/// listener's queue of connections is full. Calls on the connection block.
///
/// # Errors
/// The error of `socket(2)` or `connect(2)`; `TimedOut` after the deadline; `InvalidInput` for a
/// path that no socket can have. A signal is no error.
pub fn connect(path: &Path, kind: Kind, deadline: Option<Instant>) -> io::Result<OwnedFd> {
    let (fd, address) = (socket(kind, 0)?, address(path)?);
    loop {
        // A timeout of zero would be none.
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()).max(Duration::from_micros(1)));
        set_send_timeout(&fd, left.unwrap_or_default())?;
        match with_address(libc::connect, &fd, &address) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
            Ok(()) => return set_send_timeout(&fd, Duration::ZERO).map(|()| fd),
        }
    }
}

/// Sets the time that `connect(2)` and sends wait for the other side (`SO_SNDTIMEO`); zero for no
/// limit.
fn set_send_timeout(fd: &OwnedFd, time: Duration) -> io::Result<()> {
    let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
    let time = libc::timeval { tv_sec: seconds, tv_usec: time.subsec_micros().into() };
    let (at, len) = ((&raw const time).cast(), size_of_val(&time) as libc::socklen_t);
    // SAFETY: the time lives across the call and has the length that is given.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDTIMEO, at, len) }).map(drop)
}

/// Accepts a connection. Calls on it do not block.
///
/// # Errors
/// The error of `accept4(2)`; `WouldBlock` if no connection is pending.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (no_address, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: null for an address that is not asked for.
    let fd = check(unsafe { libc::accept4(listener.as_raw_fd(), no_address, no_len, flags) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A listening socket at a path. Its file is removed on drop, unless the path has another file by
/// then.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    dir: OwnedFd,
    name: CString,
    /// The bound socket keeps its inode, so no other file gets the same number.
    file: FileId,
}

impl Listener {
    /// Listens at a path: at one without a file, or in place of a socket that nothing listens at.
    /// Calls on the socket do not block.
    ///
    /// The file appears with the permissions and the owner of `access`, and connections are
    /// accepted at once.
    ///
    /// # Errors
    /// [`ListenError`] with the failed step: `AddrInUse` for a path with another file, or a socket
    /// that is in use; `PermissionDenied` for a directory in which other users can replace the
    /// socket.
    pub fn new(path: &Path, kind: Kind, access: Access) -> Result<Listener, ListenError> {
        // Clients connect by the whole path.
        address(path).map_err(at("the path"))?;
        let name = path.file_name().and_then(|name| CString::new(name.as_bytes()).ok());
        let name = name.ok_or(io::ErrorKind::InvalidInput).map_err(|kind| at("the path")(kind.into()))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = open_at(None, &c_path(parent).map_err(at("the path"))?, libc::O_DIRECTORY)
            .map_err(at("opening the directory"))?;
        check_directories(&dir)?;
        let staging = Staging::new(&dir, &name).map_err(at("making a private directory beside the socket"))?;
        let socket = socket(kind, libc::SOCK_NONBLOCK).map_err(at("socket"))?;
        let bound = address(&staging.path()).and_then(|address| with_address(libc::bind, &socket, &address));
        bound.map_err(at("bind"))?;
        staging.set(access)?;
        // SAFETY: no pointers.
        check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) }).map_err(at("listen"))?;
        let file = staging.file().map_err(at("stat"))?;
        staging.publish(kind)?;
        drop(staging);
        Ok(Listener { socket, dir, name, file })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if stat_at(&self.dir, &self.name).is_ok_and(|found| file_id(found) == self.file) {
            unlink_at(&self.dir, &self.name, 0);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Device and inode.
type FileId = (libc::dev_t, libc::ino_t);

/// A directory of mode 0700 beside the socket's path, in which the file gets its mode and owner.
/// Removed on drop.
struct Staging<'a> {
    /// The directory of the socket, and its name there.
    target: (&'a OwnedFd, &'a CStr),
    name: CString,
    dir: OwnedFd,
    file: CString,
    /// The name that an abandoned socket gets.
    abandoned: CString,
}

impl<'a> Staging<'a> {
    fn new(parent: &'a OwnedFd, name: &'a CString) -> io::Result<Staging<'a>> {
        let own = CString::new(format!(".towpath-{:016x}", random()?))?;
        // SAFETY: the name is a string with a terminating zero.
        check(unsafe { libc::mkdirat(parent.as_raw_fd(), own.as_ptr(), 0o700) })?;
        let dir = open_at(Some(parent), &own, libc::O_DIRECTORY | libc::O_NOFOLLOW);
        let dir = dir.inspect_err(|_| unlink_at(parent, &own, libc::AT_REMOVEDIR))?;
        // As much of the name as fits in an address behind `/proc/self/fd/N/`.
        let file = CString::new(name.as_bytes().get(..80).unwrap_or(name.as_bytes()))?;
        let abandoned = CString::new([file.as_bytes(), b"~"].concat())?;
        let staging = Staging { target: (parent, name), name: own, dir, file, abandoned };
        // Where the owner of the parent has put another directory, only ours would do.
        let found = stat(&staging.dir)?;
        // SAFETY: it takes no argument, and can't fail.
        if found.st_uid != unsafe { libc::geteuid() } || found.st_mode & 0o077 != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user has replaced it"));
        }
        Ok(staging)
    }

    /// The file's path, by the descriptor of its directory.
    fn path(&self) -> PathBuf {
        descriptor_path(&self.dir).join(std::ffi::OsStr::from_bytes(self.file.as_bytes()))
    }

    fn file(&self) -> io::Result<FileId> {
        stat_at(&self.dir, &self.file).map(file_id)
    }

    /// Sets mode, owner and group. Only this user can replace what is in the directory.
    fn set(&self, access: Access) -> Result<(), ListenError> {
        let (dir, file) = (self.dir.as_raw_fd(), self.file.as_ptr());
        // SAFETY: the name is a string with a terminating zero.
        check(unsafe { libc::fchmodat(dir, file, access.mode, 0) }).map_err(at("chmod"))?;
        if access.uid.is_none() && access.gid.is_none() {
            return Ok(());
        }
        let (uid, gid) = (access.uid.unwrap_or(u32::MAX), access.gid.unwrap_or(u32::MAX));
        // SAFETY: as above.
        let done = check(unsafe { libc::fchownat(dir, file, uid, gid, libc::AT_SYMLINK_NOFOLLOW) });
        done.map(drop).map_err(|source| ListenError {
            step: "chown",
            source,
            hint: Some("uid= and gid= of others need root, gid= of one's own groups does not".to_owned()),
        })
    }

    /// Renames the file to the socket's path. An abandoned socket makes way.
    fn publish(&self, kind: Kind) -> Result<(), ListenError> {
        let (dir, name) = self.target;
        let rename = || rename_new((&self.dir, &self.file), (dir, name));
        let renamed = match rename() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.remove_abandoned(kind).then(rename).unwrap_or(Err(error))
            }
            other => other,
        };
        renamed.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => ListenError {
                step: "bind",
                source: io::ErrorKind::AddrInUse.into(),
                hint: Some("is another towpath, or a file, at this path?".to_owned()),
            },
            kind => ListenError {
                step: "renaming the socket to its path",
                hint: (kind == io::ErrorKind::InvalidInput)
                    .then(|| "this needs a file system with RENAME_NOREPLACE: tmpfs, as /run, ext4, xfs".to_owned()),
                source,
            },
        })
    }

    /// Removes the file at the socket's path if it is an abandoned socket. Returns whether it was.
    ///
    /// It is looked at again where no other user can replace it.
    fn remove_abandoned(&self, kind: Kind) -> bool {
        let (dir, name) = self.target;
        // The descriptor keeps the inode, so no other file gets the same number.
        let Ok(abandoned) = open_at(Some(dir), name, libc::O_NOFOLLOW) else { return false };
        if !is_abandoned(&abandoned, kind) || rename_new((dir, name), (&self.dir, &self.abandoned)).is_err() {
            return false;
        }
        let (expected, found) = (stat(&abandoned).map(file_id), stat_at(&self.dir, &self.abandoned).map(file_id));
        let same = matches!((expected, found), (Ok(expected), Ok(found)) if expected == found);
        if same {
            unlink_at(&self.dir, &self.abandoned, 0);
        } else {
            // Another file was put there meanwhile. Where a third one is by now, it stays here.
            let _ = rename_new((&self.dir, &self.abandoned), (dir, name));
        }
        same
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        unlink_at(&self.dir, &self.file, 0);
        unlink_at(self.target.0, &self.name, libc::AT_REMOVEDIR);
    }
}

/// Whether a file is a socket that nothing listens at.
fn is_abandoned(file: &OwnedFd, kind: Kind) -> bool {
    let is_socket = stat(file).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFSOCK);
    let refused = || {
        // By the descriptor, whatever the path names by now.
        let (socket, address) = (socket(kind, libc::SOCK_NONBLOCK)?, address(&descriptor_path(file))?);
        with_address(libc::connect, &socket, &address)
    };
    is_socket && refused().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Checks that no other user can replace what is in a directory, or the directory itself.
fn check_directories(dir: &OwnedFd) -> Result<(), ListenError> {
    let path = std::fs::read_link(descriptor_path(dir)).map_err(at("the path of the directory"))?;
    for dir in path.ancestors() {
        let mode = std::fs::metadata(dir).map_err(at("stat of the directories"))?.mode() & 0o7777;
        if mode & 0o022 != 0 && mode & libc::S_ISVTX == 0 {
            let dir = dir.display();
            let why = format!(
                "{dir} has mode {mode:o}: where others can write, they can replace the socket, unless there is a \
                 sticky bit"
            );
            return Err(ListenError {
                step: "checking the directory",
                source: io::Error::new(io::ErrorKind::PermissionDenied, why),
                hint: Some(format!("chmod go-w {dir}, or chmod +t {dir}")),
            });
        }
    }
    Ok(())
}

/// The path of a file that is open.
fn descriptor_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Opens a file for its name and its metadata alone (`O_PATH`).
fn open_at(dir: Option<&OwnedFd>, name: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    let dir = dir.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    // SAFETY: the name is a string with a terminating zero.
    let fd = check(unsafe { libc::openat(dir, name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC | flags) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The status of a name in a directory, which may be a symbolic link.
fn stat_at(dir: &OwnedFd, name: &CStr) -> io::Result<libc::stat> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    // SAFETY: the name is a string with a terminating zero; the structure lives across the call.
    check(unsafe { libc::fstatat(dir.as_raw_fd(), name.as_ptr(), found.as_mut_ptr(), flags) })?;
    // SAFETY: the call returned 0, so the kernel filled the whole structure.
    Ok(unsafe { found.assume_init() })
}

/// The same of an open file.
fn stat(fd: &OwnedFd) -> io::Result<libc::stat> {
    stat_at(fd, c"")
}

fn file_id(found: libc::stat) -> FileId {
    (found.st_dev, found.st_ino)
}

/// Renames a file to a name that does not exist.
fn rename_new(from: (&OwnedFd, &CStr), to: (&OwnedFd, &CStr)) -> io::Result<()> {
    let (old, new) = ((from.0.as_raw_fd(), from.1.as_ptr()), (to.0.as_raw_fd(), to.1.as_ptr()));
    // SAFETY: both names are strings with terminating zeroes.
    let done = unsafe { libc::syscall(libc::SYS_renameat2, old.0, old.1, new.0, new.1, libc::RENAME_NOREPLACE) };
    check(done as libc::c_int).map(drop)
}

/// Removes a name from a directory, if it is there.
fn unlink_at(dir: &OwnedFd, name: &CStr, flags: libc::c_int) {
    // SAFETY: the name is a string with a terminating zero.
    unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) };
}

fn random() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: eight bytes live across the call. So few are never returned in part.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    crate::check_len(n).map(|_| u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests;

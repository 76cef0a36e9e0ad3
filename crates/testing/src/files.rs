//! Files to send to another process: memory, and some that are slow to close; the file of a socket.

use std::ffi::CString;
use std::fs::File;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Result, Write};
use std::mem::size_of_val;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::ptr::null;

/// A memfd of `len` bytes that does not shrink, with all of its pages.
pub fn sealed_memory(len: i64) -> OwnedFd {
    // SAFETY: the name is a string with a terminating zero; the descriptor is new.
    let file = unsafe {
        let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    // A page that was only reserved counts as missing.
    (&file).write_all(&vec![0; len as usize]).expect("the bytes");
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    file.into()
}

/// Leaves the file of a socket at which nothing listens. Connections are refused from the
/// beginning, even while a program that another test starts holds the closed socket until its
/// `exec`.
pub fn abandoned_socket(path: &Path) {
    let socket = OwnedFd::from(UnixListener::bind(path).expect("a socket"));
    // A socket that receives no more takes no connections either.
    UnixStream::from(socket).shutdown(Shutdown::Both).expect("it is shut down");
}

/// A connection with bytes that its peer does not take, and the peer. The last close of the first
/// blocks for an hour (`SO_LINGER`), or until the peer is closed.
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let mut near = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let far = listener.accept().expect("its other end").0;
    near.set_nonblocking(true).expect("a mode");
    while near.write(&[0; 65536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
    let (fd, len) = (near.as_raw_fd(), size_of_val(&linger) as u32);
    // SAFETY: the value lives across the call.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len) };
    assert_eq!(set, 0);
    (near, far)
}

/// A file of a FUSE server that never answers a question about it, and no `close(2)` of it.
pub struct SilentFile {
    /// Closed first: the server ends, and the file can be closed.
    _server: PipeWriter,
    /// The file.
    pub file: File,
}

/// Starts the server as a process that ends with the returned file. The file system is mounted at
/// `at`, in a mount namespace of the calling thread. The process must not be killed while it has
/// the file: its end would wait for the server, which waits for its end.
///
/// # Errors
/// The error of the failed call: no `/dev/fuse`, or no permission.
pub fn silent_file(at: &Path) -> Result<SilentFile> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let path = CString::new(at.as_os_str().as_encoded_bytes())?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = CString::new(options)?;
    let none = c"none".as_ptr();
    // SAFETY: all strings live across the calls.
    let failed = unsafe {
        libc::unshare(libc::CLONE_NEWNS) != 0
            || libc::mount(none, c"/".as_ptr(), null(), libc::MS_REC | libc::MS_PRIVATE, null()) != 0
            || libc::mount(none, path.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast()) != 0
    };
    if failed {
        return Err(std::io::Error::last_os_error());
    }
    let (until, server) = std::io::pipe()?;
    // SAFETY: the child calls nothing but `serve`, and does not return.
    match unsafe { libc::fork() } {
        -1 => return Err(std::io::Error::last_os_error()),
        0 => {
            drop(server);
            serve(&device, &until);
            // SAFETY: no pointers.
            unsafe { libc::_exit(0) }
        }
        _ => drop(device),
    }
    let file = File::options().read(true).write(true).open(at.join("file"))?;
    Ok(SilentFile { _server: server, file })
}

/// Requests of `linux/fuse.h` that the server answers.
const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const INIT: u32 = 26;

/// Answers what opening a file needs, until the other end of the pipe is closed.
fn serve(mut device: &File, until: &PipeReader) {
    let mut request = vec![0; 1 << 17];
    loop {
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut set = [wait(device.as_raw_fd()), wait(until.as_raw_fd())];
        // SAFETY: the array lives across the call and has the length that is given.
        unsafe { libc::poll(set.as_mut_ptr(), 2, -1) };
        if set[1].revents != 0 {
            return;
        }
        match device.read(&mut request) {
            Ok(n) if n >= 40 => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            _ => return,
        }
        let mut code = [0; 4];
        code.copy_from_slice(&request[4..8]);
        let words: Vec<u32> = match u32::from_ne_bytes(code) {
            // Version 7.31, readahead, flags, background, the longest write, …
            INIT => [&[7, 31, 65536, 0, 0, 65536, 1], &[0; 9][..]].concat(),
            // Node 2, its generation, the seconds that name and attributes are valid.
            LOOKUP => {
                let entry = [2, 0, 0, 0, 10_000, 0, 10_000, 0, 0, 0];
                // Inode 2, sizes and times, a regular file that all may write, one link.
                let attributes = [&[2, 0][..], &[0; 13], &[libc::S_IFREG | 0o666, 1, 0, 0, 0, 4096, 0]].concat();
                [&entry[..], &attributes].concat()
            }
            OPEN => vec![1, 0, 0, 0],
            _ => continue,
        };
        let len = 16 + 4 * words.len() as u32;
        let mut answer = [len.to_ne_bytes(), [0; 4]].concat();
        answer.extend_from_slice(&request[8..16]);
        words.iter().for_each(|word| answer.extend_from_slice(&word.to_ne_bytes()));
        if device.write(&answer).is_err() {
            return;
        }
    }
}

//! A QEMU that this process started: it ends with this process.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// A child process, killed and reaped on drop.
///
/// The kernel kills it if this process dies first (`PR_SET_PDEATHSIG`). That signal is bound to the
/// *thread* that started the child, so a dedicated thread starts it and stays until it is reaped.
pub(super) struct Process {
    /// Dropping it makes the thread kill the child.
    stop: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    id: u32,
    errors: File,
}

impl Process {
    /// Starts a program that inherits the descriptors `inherit` under their own numbers. Its error
    /// output is kept in memory.
    pub(super) fn start(mut command: Command, inherit: Vec<OwnedFd>) -> io::Result<Process> {
        let errors = File::from(memfd(c"qemu-errors", 0)?);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(errors.try_clone()?));
        let (stop, stopped) = mpsc::channel::<()>();
        let (started, result) = mpsc::channel();
        let keeper = std::thread::Builder::new().name("qemu".to_owned()).spawn(move || {
            let child = spawn(&mut command, &inherit);
            drop(inherit);
            match child {
                Ok(mut child) => {
                    let _ = started.send(Ok(child.id()));
                    let _ = stopped.recv();
                    let _ = child.kill();
                    let _ = child.wait();
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
        let mut process = Process { stop: Some(stop), keeper: Some(keeper), id: 0, errors };
        process.id =
            result.recv().unwrap_or_else(|_| Err(io::Error::other("the thread that starts QEMU has ended")))?;
        Ok(process)
    }

    /// Kills the process and waits until it has ended.
    pub(super) fn end(&mut self) {
        self.stop = None;
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }

    /// The process id.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// The error output.
    pub(super) fn errors(&mut self) -> String {
        let mut text = String::new();
        let read = self.errors.rewind().and_then(|()| self.errors.read_to_string(&mut text));
        if read.is_ok() { text.trim().to_owned() } else { String::new() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(command: &mut Command, inherit: &[OwnedFd]) -> io::Result<Child> {
    let inherit: Vec<i32> = inherit.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: between fork and exec only prctl and fcntl are called. They are async-signal-safe,
    // take no pointer and affect only the child. The vector was allocated before the fork and is
    // only read.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            for &fd in &inherit {
                if libc::fcntl(fd, libc::F_SETFD, 0) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    command.spawn()
}

/// A file without a path.
pub(super) fn memfd(name: &std::ffi::CStr, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the name is a NUL-terminated string that outlives the call.
    let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

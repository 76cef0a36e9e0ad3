//! The kernel's log, as `dmesg` shows it.

use std::io;

/// `SYSLOG_ACTION_READ_ALL` and `SYSLOG_ACTION_SIZE_BUFFER` (syslog(2)).
const READ_ALL: libc::c_int = 3;
const SIZE: libc::c_int = 10;

/// The whole buffer of the kernel's log; nothing is removed from it.
///
/// # Errors
/// The kernel refuses: `kernel.dmesg_restrict` is set, and `CAP_SYSLOG` missing.
pub fn read() -> io::Result<String> {
    // SAFETY: with this action the call writes nothing.
    let size = unsafe { libc::klogctl(SIZE, std::ptr::null_mut(), 0) };
    let size = usize::try_from(size).map_err(|_| io::Error::last_os_error())?;
    let mut text = vec![0; size];
    // SAFETY: the call writes at most the length that it is given.
    let read = unsafe { libc::klogctl(READ_ALL, text.as_mut_ptr().cast(), size as libc::c_int) };
    text.truncate(usize::try_from(read).map_err(|_| io::Error::last_os_error())?);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

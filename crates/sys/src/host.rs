//! The running kernel.

use super::check;

/// Version of the running kernel: major, minor.
pub fn kernel_version() -> (u32, u32) {
    // SAFETY: utsname is arrays of bytes, for which all zeroes is a value.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: uname fills the structure that is borrowed exclusively.
    if check(unsafe { libc::uname(&mut name) }).is_err() {
        return (0, 0);
    }
    let release: String =
        name.release.iter().map(|&c| c as u8 as char).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let mut numbers = release.split('.').map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Bytes of the machine's memory; 0 if the kernel does not tell.
pub fn memory() -> u64 {
    // SAFETY: no pointers.
    let [pages, page] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(page).unwrap_or(0))
}

/// Nanoseconds of `CLOCK_TAI`, the clock of the kernel's TX timestamps; 0 without this clock.
pub fn clock_tai() -> u64 {
    clock(libc::CLOCK_TAI)
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of the host share.
#[inline]
pub fn clock_monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime fills the structure that is borrowed exclusively.
    if check(unsafe { libc::clock_gettime(id, &mut now) }).is_err() {
        return 0;
    }
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

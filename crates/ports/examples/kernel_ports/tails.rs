//! Buffers for the rest of a super-packet: one large chunk, a few, or 32 of the pool; and the
//! number of large ones.

use super::{LOADS, Result, fill, line, median, open_packet};
use std::fs::{File, OpenOptions};
use std::io::{IoSliceMut, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;
use towpath_packet::{Direction, Pool};

fn tap(name: &str) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: ifreq is plain data; TUNSETIFF reads and writes one.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        if libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) != 0
            || libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, 0x6fu64) != 0
        {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    super::ip(&format!("link set {name} up"))?;
    Ok(file)
}

/// Reads the same packets into tails of different kinds.
pub(super) fn compare(pool: &Pool) -> Result<()> {
    let mut file = tap("bench1")?;
    let mut into = open_packet("packet:bench1", pool)?;
    drop(std::mem::take(&mut into.rx));
    let mut cache = pool.cache(Direction::Tx)?;
    for load in LOADS {
        for (pieces, len) in [(1, 65_536), (4, 16_384), (32, 2048)] {
            for cycle in [1, 16, 32, 64, 256] {
                // As with a pool that returns its chunks in turn: each packet uses the next set of
                // buffers.
                let mut tails: Vec<Vec<Vec<u8>>> = vec![vec![vec![1; len]; pieces]; cycle];
                let mut head = vec![1u8; 1920];
                let mut next = 0;
                let ns = median(load, || {
                    fill(&mut into.tx[0], &mut cache, load)?;
                    let begin = Instant::now();
                    let mut seen = 0;
                    while seen < load.burst && begin.elapsed().as_millis() < 100 {
                        let mut header = [0; 10];
                        let tail = &mut tails[next % cycle];
                        let mut room = Vec::with_capacity(40);
                        room.push(IoSliceMut::new(&mut header));
                        room.push(IoSliceMut::new(&mut head));
                        room.extend(tail.iter_mut().map(|piece| IoSliceMut::new(piece)));
                        if let Ok(n) = file.read_vectored(&mut room) {
                            seen += 1;
                            next += usize::from(n > 1930);
                        }
                    }
                    Ok(begin.elapsed())
                })?;
                line(&format!("tap rx into {pieces} x {len}, {cycle} in turn"), load, ns);
                if load.name != "64 KiB TSO" {
                    break;
                }
            }
        }
    }
    Ok(())
}

//! Receiving from an AF_PACKET socket through a ring of blocks: TPACKET_V3 with virtio-net headers,
//! as `packet_mmap.rst` describes it.

use super::Result;
use std::io::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use towpath_packet::{Cache, Packet};
use towpath_ports::vnet::VnetHeader;

const BLOCK: usize = 1 << 18;
const BLOCKS: usize = 32;

/// A receive ring on one interface.
pub(super) struct Ring {
    fd: libc::c_int,
    map: *mut u8,
    at: usize,
    received: u64,
}

fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Error::last_os_error().into()) } else { Ok(result) }
}

/// Sets an option of AF_PACKET.
fn set<T>(fd: libc::c_int, option: libc::c_int, value: &[T]) -> Result<()> {
    let len = size_of_val(value) as libc::socklen_t;
    // SAFETY: address and length describe the borrowed value.
    check(unsafe { libc::setsockopt(fd, libc::SOL_PACKET, option, value.as_ptr().cast(), len) })?;
    Ok(())
}

/// A socket with virtio-net headers, prepared by `prepare` and bound to the interface.
pub(super) fn socket(interface: &str, prepare: impl FnOnce(libc::c_int) -> Result<()>) -> Result<libc::c_int> {
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) })?;
    set(fd, libc::PACKET_VNET_HDR, &[1i32])?;
    set(fd, libc::PACKET_IGNORE_OUTGOING, &[1i32])?;
    prepare(fd)?;
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: a valid C string; sockaddr_ll is plain data.
    let address = unsafe {
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        address
    };
    // SAFETY: a sockaddr_ll and its size.
    check(unsafe { libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32) })?;
    Ok(fd)
}

impl Ring {
    pub(super) fn new(interface: &str) -> Result<Ring> {
        let fd = socket(interface, |fd| {
            set(fd, libc::PACKET_VERSION, &[2i32])?;
            let frames = (BLOCK / 2048 * BLOCKS) as u32;
            // A block is handed over after 1 ms, the least timeout; no private area, no features.
            let request = [BLOCK as u32, BLOCKS as u32, 2048, frames, 1, 0, 0];
            set(fd, libc::PACKET_RX_RING, &request)
        })?;
        let (len, access) = (BLOCK * BLOCKS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping of the ring that was just made.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        if map == libc::MAP_FAILED {
            return Err(Error::last_os_error().into());
        }
        Ok(Ring { fd, map: map.cast(), at: 0, received: 0 })
    }

    /// Waits for packets, and takes them.
    pub(super) fn wait(&mut self, cache: &mut Cache) -> Duration {
        let (begin, before) = (Instant::now(), self.received);
        while self.received == before && begin.elapsed() < Duration::from_millis(100) {
            self.drain(cache);
        }
        begin.elapsed()
    }

    fn word(&self, at: usize) -> u32 {
        // SAFETY: callers stay inside the mapping; the block belongs to user space.
        unsafe { self.map.add(at).cast::<u32>().read() }
    }

    fn status(&self, at: usize) -> &AtomicU32 {
        // SAFETY: callers pass the place of a status word: aligned, inside the mapping, written by
        // the kernel.
        unsafe { AtomicU32::from_ptr(self.map.add(at).cast()) }
    }

    /// Takes every packet of the blocks that belong to user space.
    pub(super) fn drain(&mut self, cache: &mut Cache) -> Duration {
        let begin = Instant::now();
        while self.status(self.at * BLOCK + 8).load(Ordering::Acquire) & 1 != 0 {
            let block = self.at * BLOCK;
            let mut frame = block + self.word(block + 16) as usize;
            for _ in 0..self.word(block + 12) {
                let (len, mac) = (self.word(frame + 12) as usize, (self.word(frame + 24) & 0xffff) as usize);
                self.take(frame + mac, len, cache);
                frame += self.word(frame) as usize;
            }
            self.status(block + 8).store(0, Ordering::Release);
            self.at = (self.at + 1) % BLOCKS;
        }
        begin.elapsed()
    }

    fn take(&mut self, data: usize, len: usize, cache: &mut Cache) {
        // SAFETY: the kernel put the frame there, behind its virtio-net header, and does not write
        // to it until the block is released.
        let (header, bytes) = unsafe {
            let data = self.map.add(data);
            let header = data.sub(VnetHeader::LEN).cast::<[u8; VnetHeader::LEN]>().read();
            (header, std::slice::from_raw_parts(data, len))
        };
        if let Some(mut packet) = Packet::copy_from(cache, bytes) {
            let _ = towpath_ports::vnet::apply(VnetHeader::from_ne_bytes(&header), &mut packet);
            cache.free(packet);
        }
        self.received += 1;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping and the descriptor.
        unsafe {
            libc::munmap(self.map.cast(), BLOCK * BLOCKS);
            libc::close(self.fd);
        }
    }
}

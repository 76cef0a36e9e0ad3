//! A fake of the kernel module, at the level of its requests: registers are plain memory, and
//! firmware checks what the module would.

use super::abi;
use super::cdev::Shim;
use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;
use towpath_packet::{Backing, Region};
use towpath_sys::Mmap;

/// What the driver did.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) messages: Vec<Vec<u8>>,
    pub(super) mapped: Vec<(u64, u64)>,
    pub(super) fds: Vec<i32>,
    pub(super) enabled: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct FakeShim {
    pub(super) info: abi::Info,
    /// Windows of each region: place and length. They lie one after the other in `registers`.
    pub(super) windows: Vec<Vec<(u64, u64)>>,
    pub(super) registers: Region,
    pub(super) seen: Mutex<Seen>,
    /// The error of the next request.
    pub(super) fails: Mutex<Option<i32>>,
    /// The DMA address of the next mapping.
    pub(super) next: Mutex<u64>,
}

fn named(name: &str) -> [u8; 16] {
    let mut soc = [0; 16];
    soc[..name.len()].copy_from_slice(name.as_bytes());
    soc
}

impl FakeShim {
    /// An AM64x: the rings of transmit and of receive flows are two windows.
    pub(super) fn am64x() -> FakeShim {
        FakeShim {
            info: abi::Info { size: 32, version: 1, soc: named("am64x"), irqs: 16, pad: 0 },
            windows: vec![
                vec![(0, 0x20_0000)],
                vec![(16 * 0x2000, 64 * 0x2000), (128 * 0x2000, 16 * 0x2000)],
                vec![(16 * 0x1000, 8 * 0x1000)],
                vec![(16 * 0x1000, 0x1000)],
            ],
            registers: Region::new(4 << 20, Backing::Memfd).unwrap(),
            seen: Mutex::default(),
            fails: Mutex::default(),
            next: Mutex::new(0x8_8000_0000),
        }
    }

    fn fail(&self) -> io::Result<()> {
        self.fails.lock().unwrap().take().map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
    }
}

impl Shim for FakeShim {
    fn info(&self) -> io::Result<abi::Info> {
        self.fail().map(|()| self.info)
    }

    fn region(&self, wanted: abi::RegionWindow) -> io::Result<abi::RegionWindow> {
        self.fail()?;
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let windows = self.windows.get(wanted.region as usize).ok_or_else(invalid)?;
        let &(at, len) = windows.get(wanted.window as usize).ok_or_else(invalid)?;
        let before = self.windows[..wanted.region as usize].iter().flatten();
        let before: u64 = before.chain(&windows[..wanted.window as usize]).map(|&(_, len)| len).sum();
        Ok(abi::RegionWindow { windows: windows.len() as u32, at, len, offset: before, ..wanted })
    }

    fn call(&self, mut call: abi::Call) -> io::Result<abi::Call> {
        self.fail()?;
        let message = call.message[..call.len as usize].to_vec();
        // GET_RESOURCE_RANGE: 16 and 8.
        if message[..2] == [0, 0x15] {
            call.message[8..16].copy_from_slice(&[16, 0, 8, 0, 0, 0, 0, 0]);
            call.len = 16;
        } else {
            call.len = 8;
        }
        self.seen.lock().unwrap().messages.push(message);
        Ok(call)
    }

    unsafe fn map(&self, map: abi::Map) -> io::Result<abi::Map> {
        self.fail()?;
        let mut next = self.next.lock().unwrap();
        let dma = *next;
        *next += map.len;
        self.seen.lock().unwrap().mapped.push((dma, map.len));
        Ok(abi::Map { dma, ..map })
    }

    fn unmap(&self, map: abi::Map) -> io::Result<()> {
        self.fail()?;
        self.seen.lock().unwrap().mapped.retain(|&known| known != (map.dma, map.len));
        Ok(())
    }

    fn irqs(&self, irqs: abi::Irqs) -> io::Result<()> {
        self.fail()?;
        self.seen.lock().unwrap().fds = irqs.fds[..irqs.count as usize].to_vec();
        Ok(())
    }

    fn enable(&self, irq: abi::Enable) -> io::Result<()> {
        self.fail()?;
        self.seen.lock().unwrap().enabled.push(irq.irq);
        Ok(())
    }

    fn mmap(&self, offset: u64, len: usize) -> io::Result<Mmap> {
        Mmap::shared(self.registers.fd().unwrap().as_fd(), offset, len)
    }
}

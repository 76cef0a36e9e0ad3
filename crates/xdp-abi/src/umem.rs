//! `xsk_umem__*`: memory to send from and to receive into.

use crate::abi::{PACKET_HEADROOM, Ring, UMEM_UNALIGNED, UmemConfig};
use crate::area::Area;
use crate::failure::{Failure, answer, failure};
use crate::memory::Memory;
use libc::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_client::Sizes;
use towpath_client::protocol::Hello;

/// `struct xsk_umem`.
#[derive(Debug)]
pub struct Umem {
    memory: Memory,
    /// Bytes that the program has named.
    size: u64,
    config: UmemConfig,
    /// The rings that the program got with the memory, until a socket has them.
    prepared: Mutex<Option<Prepared>>,
    sockets: Mutex<Vec<Known>>,
}

/// A socket of the memory.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) interface: Vec<u8>,
    pub(crate) queue: u32,
    /// Where its datapath listens, and the number of the session there.
    pub(crate) path: PathBuf,
    pub(crate) session: u64,
}

/// Rings that no socket has yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) area: Area,
    /// The addresses of the program's structures for FILL and COMPLETION.
    pub(crate) told: [usize; 2],
}

impl Umem {
    /// Rings for one more socket.
    pub(crate) fn reserve(&self) -> Result<Area, Failure> {
        Area::reserve(self.config.fill_size, self.config.comp_size)
    }

    /// What to ask the datapath that listens at `path` for. Sessions of the same datapath share the memory there.
    pub(crate) fn hello(&self, path: &Path, rings: Sizes, pieces: bool, rules: String) -> Hello {
        let share = self.sockets().iter().find(|known| known.path == path).map_or(0, |known| known.session);
        Hello { pieces, share, rules, ..hello(self.size, &self.config, rings) }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn prepared(&self) -> MutexGuard<'_, Option<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sockets(&self) -> MutexGuard<'_, Vec<Known>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hello(umem: u64, config: &UmemConfig, rings: Sizes) -> Hello {
    Hello {
        umem,
        chunk: config.frame_size,
        unaligned: config.flags & UMEM_UNALIGNED != 0,
        // The kernel's own headroom is there as well: who pushes headers in front of what was received relies on it.
        headroom: config.frame_headroom.saturating_add(PACKET_HEADROOM),
        pieces: false,
        one_descriptor: true,
        lenient: true,
        rings,
        ..Hello::default()
    }
}

/// The first argument, if it is one.
pub(crate) fn given<T>(pointer: *mut T, what: &str) -> Result<*mut T, Failure> {
    if pointer.is_null() { Err(failure(libc::EFAULT, format!("{what} is null"))) } else { Ok(pointer) }
}

/// `xsk_umem__create`: makes `size` bytes at `area` memory that can be shared with a datapath, at the same addresses, and gives a FILL and a
/// COMPLETION ring, for the first socket.
///
/// # Errors
/// As a negative number: `EFAULT` for a null pointer or memory that is not mapped, `EINVAL` for memory that does not begin with a page, or
/// sizes and flags that can't be, `EOPNOTSUPP` for memory that is not private and anonymous, and what the system says.
///
/// # Safety
/// Pointers are null or point to what the header says. The memory is the program's, and nobody touches the pages that it lies in during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__create(
    umem: *mut *const Umem,
    area: *mut c_void,
    size: u64,
    fill: *mut Ring,
    comp: *mut Ring,
    config: *const UmemConfig,
) -> c_int {
    answer("xsk_umem__create", || {
        let (umem, area) = (given(umem, "umem")?, given(area, "umem_area")?);
        let (fill, comp) = (given(fill, "fill")?, given(comp, "comp")?);
        // SAFETY: null, or a configuration, as the caller promises.
        let config = unsafe { config.as_ref() }.copied().unwrap_or_default();
        if config.flags & !UMEM_UNALIGNED != 0 {
            return Err(failure(libc::EINVAL, format!("flags {:#x} that are not known", config.flags)));
        }
        let sizes = Sizes { fill: config.fill_size, completion: config.comp_size, rx: 2, tx: 2 };
        let check = hello(size, &config, sizes).check();
        check.map_err(|rule| failure(libc::EINVAL, rule.to_string()))?;
        let len = usize::try_from(size).map_err(|_| failure(libc::EINVAL, "more memory than there is"))?;
        let rings = Area::reserve(config.fill_size, config.comp_size)?;
        let (produced, consumed) = rings.prepared();
        let prepared = Prepared { area: rings, told: [fill.addr(), comp.addr()] };
        // SAFETY: the memory is the program's own, as the caller promises.
        let memory = unsafe { Memory::share(area.cast(), len)? };
        let made = Umem { memory, size, config, prepared: Mutex::new(Some(prepared)), sockets: Mutex::default() };
        // SAFETY: three pointers that are not null, to be written to, as the caller promises.
        unsafe {
            fill.write(produced);
            comp.write(consumed);
            umem.write(Arc::into_raw(Arc::new(made)));
        }
        Ok(())
    })
}

/// `xsk_umem__fd`: the descriptor of the memory, a memfd; it belongs to the library. `-EINVAL` for a null pointer.
///
/// # Safety
/// Null, or what [`xsk_umem__create`] gave.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__fd(umem: *const Umem) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { umem.as_ref() }.map_or(-libc::EINVAL, |umem| umem.memory.file().as_raw_fd())
}

/// `xsk_umem__delete`: makes the memory private again, with the bytes that are in it. A null pointer is fine.
///
/// # Errors
/// `-EBUSY` as long as there are sockets; nothing has changed then.
///
/// # Safety
/// Null, or what [`xsk_umem__create`] gave, for the last time if this succeeds. Nobody touches the memory's
/// pages during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__delete(umem: *const Umem) -> c_int {
    answer("xsk_umem__delete", || {
        if umem.is_null() {
            return Ok(());
        }
        // SAFETY: what `xsk_umem__create` gave, and nobody has deleted yet; each socket holds one more.
        let umem = unsafe { Arc::from_raw(umem) };
        Arc::try_unwrap(umem).map(drop).map_err(|umem| {
            let _ = Arc::into_raw(umem);
            failure(libc::EBUSY, "the memory has sockets")
        })
    })
}

//! `xsk_umem__*`: the memory that frames are sent from and received into.

use crate::abi::{PACKET_HEADROOM, Ring, UMEM_UNALIGNED, UmemConfig};
use crate::failure::{Failure, c_call, failure};
use crate::memory::ProgramMemory;
use crate::ring_area::RingArea;
use libc::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_client::Sizes;
use towpath_client::protocol::Hello;

/// `struct xsk_umem`.
#[derive(Debug)]
pub struct Umem {
    memory: ProgramMemory,
    /// Bytes, as the program gave them.
    size: u64,
    config: UmemConfig,
    /// The rings that the program got with the UMEM, until a socket has them.
    prepared: Mutex<Option<Prepared>>,
    sockets: Mutex<Vec<SocketRecord>>,
}

/// A socket of the UMEM.
#[derive(Debug)]
pub(crate) struct SocketRecord {
    pub(crate) interface: Vec<u8>,
    pub(crate) queue: u32,
    /// The datapath's path, and the number of the session there.
    pub(crate) path: PathBuf,
    pub(crate) session: u64,
}

/// Rings without a socket.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) area: RingArea,
    /// The addresses of the program's structures for FILL and COMPLETION.
    pub(crate) ring_ptrs: [usize; 2],
}

impl Umem {
    /// Rings for one more socket.
    pub(crate) fn reserve(&self) -> Result<RingArea, Failure> {
        RingArea::reserve(self.config.fill_size, self.config.comp_size)
    }

    /// The message for the datapath that listens at `path`. Sessions at the same datapath share the
    /// memory there.
    pub(crate) fn hello(&self, path: &Path, rings: Sizes, pieces: bool, rules: String) -> Hello {
        let share = self.sockets().iter().find(|record| record.path == path).map_or(0, |record| record.session);
        Hello { pieces, share, rules, ..hello(self.size, &self.config, rings) }
    }

    pub(crate) fn memory(&self) -> &ProgramMemory {
        &self.memory
    }

    pub(crate) fn prepared(&self) -> MutexGuard<'_, Option<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sockets(&self) -> MutexGuard<'_, Vec<SocketRecord>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hello(umem: u64, config: &UmemConfig, rings: Sizes) -> Hello {
    Hello {
        umem,
        chunk: config.frame_size,
        unaligned: config.flags & UMEM_UNALIGNED != 0,
        // The kernel's own headroom is added: programs that push headers rely on it.
        headroom: config.frame_headroom.saturating_add(PACKET_HEADROOM),
        pieces: false,
        one_descriptor: true,
        skip_invalid: true,
        rings,
        ..Hello::default()
    }
}

/// A pointer argument that must not be null.
pub(crate) fn non_null<T>(pointer: *mut T, what: &str) -> Result<*mut T, Failure> {
    if pointer.is_null() { Err(failure(libc::EFAULT, format!("{what} is null"))) } else { Ok(pointer) }
}

/// `xsk_umem__create`: makes `size` bytes at `area` shareable at the same addresses, and writes a
/// FILL and a COMPLETION ring for the first socket.
///
/// # Errors
/// As a negative number: `EFAULT` for a null pointer or memory that is not mapped; `EINVAL` for
/// memory that does not begin at a page, or invalid sizes and flags; `EOPNOTSUPP` for memory that
/// is not private and anonymous; the errors of the system calls.
///
/// # Safety
/// Pointers are null or point to what the header requires. The memory is the program's, and no
/// other thread accesses its pages during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__create(
    umem: *mut *const Umem,
    area: *mut c_void,
    size: u64,
    fill: *mut Ring,
    comp: *mut Ring,
    config: *const UmemConfig,
) -> c_int {
    c_call("xsk_umem__create", || {
        let (umem, area) = (non_null(umem, "umem")?, non_null(area, "umem_area")?);
        let (fill, comp) = (non_null(fill, "fill")?, non_null(comp, "comp")?);
        // SAFETY: null, or a configuration, as the caller promises.
        let config = unsafe { config.as_ref() }.copied().unwrap_or_default();
        if config.flags & !UMEM_UNALIGNED != 0 {
            return Err(failure(libc::EINVAL, format!("flags {:#x} that are not known", config.flags)));
        }
        let sizes = Sizes { fill: config.fill_size, completion: config.comp_size, rx: 2, tx: 2 };
        let check = hello(size, &config, sizes).check();
        check.map_err(|rule| failure(libc::EINVAL, rule.to_string()))?;
        let len = usize::try_from(size).map_err(|_| failure(libc::EINVAL, "more memory than there is"))?;
        let rings = RingArea::reserve(config.fill_size, config.comp_size)?;
        let (produced, consumed) = rings.prepared();
        let prepared = Prepared { area: rings, ring_ptrs: [fill.addr(), comp.addr()] };
        // SAFETY: the memory is the program's own, as the caller promises.
        let memory = unsafe { ProgramMemory::share(area.cast(), len)? };
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

/// `xsk_umem__fd`: the descriptor of the memory, a memfd; it belongs to the library. `-EINVAL` for
/// a null pointer.
///
/// # Safety
/// Null, or what [`xsk_umem__create`] wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__fd(umem: *const Umem) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { umem.as_ref() }.map_or(-libc::EINVAL, |umem| umem.memory.file().as_raw_fd())
}

/// `xsk_umem__delete`: makes the memory private again, with its bytes. Accepts a null pointer.
///
/// # Errors
/// `-EBUSY` as long as there are sockets; nothing changes.
///
/// # Safety
/// Null, or what [`xsk_umem__create`] wrote, for the last time if this succeeds. No other thread
/// accesses the memory's pages during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__delete(umem: *const Umem) -> c_int {
    c_call("xsk_umem__delete", || {
        if umem.is_null() {
            return Ok(());
        }
        // SAFETY: what `xsk_umem__create` wrote, and the program has not deleted; each socket holds
        // one more reference.
        let umem = unsafe { Arc::from_raw(umem) };
        Arc::try_unwrap(umem).map(drop).map_err(|umem| {
            let _ = Arc::into_raw(umem);
            failure(libc::EBUSY, "the memory has sockets")
        })
    })
}

//! `xsk_umem__*`: the memory that frames are sent from and received into.

use crate::abi::{PACKET_HEADROOM, Ring, UMEM_TX_METADATA_LEN, UMEM_TX_SW_CSUM, UMEM_UNALIGNED, UmemConfig};
use crate::failure::{Failure, c_call, c_call_for, failure, system};
use crate::memory::ProgramMemory;
use crate::opts::{self, UmemOpts};
use crate::ring_area::RingArea;
use libc::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
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
    /// Bytes of metadata in front of sent frames; 0 for none.
    tx_metadata: u32,
    /// The socket that the program gave to libxdp for the UMEM. It has no use here.
    _given: Option<OwnedFd>,
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
        Hello { pieces, share, rules, ..hello(self.size, &self.config, self.tx_metadata, rings) }
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

fn hello(umem: u64, config: &UmemConfig, tx_metadata: u32, rings: Sizes) -> Hello {
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
        tx_metadata,
        ..Hello::default()
    }
}

/// A pointer argument that must not be null.
pub(crate) fn non_null<T>(pointer: *mut T, what: &str) -> Result<*mut T, Failure> {
    if pointer.is_null() { Err(failure(libc::EFAULT, format!("{what} is null"))) } else { Ok(pointer) }
}

/// All kinds of creation: memory, FILL and COMPLETION, the options and a socket.
///
/// # Safety
/// Pointers are null or point to what the header requires. The memory is the program's, and no
/// other thread accesses its pages during the call.
unsafe fn create(
    (area, size): (*mut c_void, u64),
    (fill, comp): (*mut Ring, *mut Ring),
    config: UmemConfig,
    tx_metadata: u32,
    given: c_int,
) -> Result<*const Umem, Failure> {
    let area = non_null(area, "umem_area")?;
    let (fill, comp) = (non_null(fill, "fill")?, non_null(comp, "comp")?);
    // The datapath completes a checksum if the device can't, so UMEM_TX_SW_CSUM changes nothing.
    if config.flags & !(UMEM_UNALIGNED | UMEM_TX_SW_CSUM | UMEM_TX_METADATA_LEN) != 0 {
        return Err(failure(libc::EINVAL, format!("flags {:#x}: some are not known", config.flags)));
    }
    let tx_metadata = if config.flags & UMEM_TX_METADATA_LEN == 0 { 0 } else { tx_metadata };
    if config.flags & UMEM_TX_METADATA_LEN != 0 && !(16..256).contains(&tx_metadata) {
        let why = format!("XDP_UMEM_TX_METADATA_LEN with {tx_metadata} bytes; xsk_umem__create_opts takes 16 to 248");
        return Err(failure(libc::EINVAL, why));
    }
    let sizes = Sizes { fill: config.fill_size, completion: config.comp_size, rx: 2, tx: 2 };
    let check = hello(size, &config, tx_metadata, sizes).check();
    check.map_err(|rule| failure(libc::EINVAL, rule.to_string()))?;
    let len = usize::try_from(size).map_err(|_| failure(libc::EINVAL, "more memory than there is"))?;
    // SAFETY: no pointers.
    if given > 0 && unsafe { libc::fcntl(given, libc::F_GETFD) } < 0 {
        return Err(system("the descriptor of the UMEM"));
    }
    let rings = RingArea::reserve(config.fill_size, config.comp_size)?;
    let (produced, consumed) = rings.prepared();
    let prepared = Prepared { area: rings, ring_ptrs: [fill.addr(), comp.addr()] };
    // SAFETY: the memory is the program's own, as the caller promises.
    let memory = unsafe { ProgramMemory::share(area.cast(), len)? };
    // SAFETY: an open descriptor, which libxdp closes with the UMEM, so it is the library's now.
    let _given = (given > 0).then(|| unsafe { OwnedFd::from_raw_fd(given) });
    let prepared = Mutex::new(Some(prepared));
    let made = Umem { memory, size, config, tx_metadata, _given, prepared, sockets: Mutex::default() };
    // SAFETY: two pointers that are not null, to be written to, as the caller promises.
    unsafe {
        fill.write(produced);
        comp.write(consumed);
    }
    Ok(Arc::into_raw(Arc::new(made)))
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
    // SAFETY: as the caller promises.
    unsafe { xsk_umem__create_with_fd(umem, 0, area, size, fill, comp, config) }
}

/// `xsk_umem__create_with_fd`: [`xsk_umem__create`] with an AF_XDP socket that another process
/// made. The socket has no use here. It is closed with the UMEM, as in libxdp.
///
/// # Errors
/// As for [`xsk_umem__create`], and `EBADF` for a positive number that is no descriptor.
///
/// # Safety
/// As for [`xsk_umem__create`]. A positive `fd` becomes the library's if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__create_with_fd(
    umem: *mut *const Umem,
    fd: c_int,
    area: *mut c_void,
    size: u64,
    fill: *mut Ring,
    comp: *mut Ring,
    config: *const UmemConfig,
) -> c_int {
    c_call("xsk_umem__create", || {
        let umem = non_null(umem, "umem")?;
        // SAFETY: null, or a configuration, as the caller promises.
        let config = unsafe { config.as_ref() }.copied().unwrap_or_default();
        // SAFETY: as the caller promises.
        let made = unsafe { create((area, size), (fill, comp), config, 0, fd)? };
        // SAFETY: not null, so it may be written to, as the caller promises.
        unsafe { umem.write(made) };
        Ok(())
    })
}

/// `xsk_umem__create_opts`: the same with a structure of options, in which 0 stands for a default.
/// With `XDP_UMEM_TX_METADATA_LEN` frames may have `tx_metadata_len` bytes of metadata in front of
/// them. Null with `errno` set for a failure.
///
/// # Errors
/// As for [`xsk_umem__create_with_fd`]; `EINVAL` for options that are not known.
///
/// # Safety
/// As for [`xsk_umem__create_with_fd`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__create_opts(
    area: *mut c_void,
    fill: *mut Ring,
    comp: *mut Ring,
    opts: *const UmemOpts,
) -> *const Umem {
    c_call_for("xsk_umem__create_opts", || {
        // SAFETY: as the caller promises.
        unsafe {
            let opts = opts::read(opts)?;
            create((area, opts.size), (fill, comp), opts.config(), opts.tx_metadata_len, opts.fd)
        }
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

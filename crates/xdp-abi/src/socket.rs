//! `xsk_socket__*`: sessions with a datapath.

use crate::abi::{BIND_COPY, BIND_NEED_WAKEUP, BIND_SG, BIND_ZEROCOPY, INHIBIT_PROG_LOAD, Ring, SocketConfig};
use crate::endpoint::Endpoint;
use crate::failure::{Failure, c_call, c_call_for, failure};
use crate::options::OptionsEntry;
use crate::opts::{self, SocketOpts};
use crate::poll::PollEntry;
use crate::ring_area::RingArea;
use crate::umem::{SocketRecord, Umem, non_null};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Arc, Once};
use towpath_client::protocol::Rings;
use towpath_client::{Connection, Session, Sizes};
use towpath_sys::membarrier;

/// `struct xsk_socket`.
#[derive(Debug)]
pub struct Socket {
    umem: Arc<Umem>,
    /// The rings; the program has their addresses.
    _area: Arc<RingArea>,
    _options: OptionsEntry,
    _poll: PollEntry,
    /// The session lasts as long as this connection.
    _connection: Connection,
    /// The descriptor by which the program waits and kicks.
    poll_fd: OwnedFd,
    /// The datapath's path, and the number of the session there.
    path: PathBuf,
    session: u64,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The connection is still open, so no other socket has this number at the same path.
        let gone = |record: &SocketRecord| record.session == self.session && record.path == self.path;
        self.umem.sockets().retain(|record| !gone(record));
    }
}

/// The size of an unused ring: the minimum.
const UNUSED: u32 = 2;

/// Whether packets may come in pieces. Fails for flags that are not supported.
fn pieces(config: &SocketConfig, receives: bool) -> Result<bool, Failure> {
    let (libxdp, flags) = (config.libxdp_flags, config.bind_flags);
    if libxdp & !INHIBIT_PROG_LOAD != 0
        || flags & !(BIND_COPY | BIND_ZEROCOPY | BIND_NEED_WAKEUP | BIND_SG) != 0
        || flags & BIND_COPY != 0 && flags & BIND_ZEROCOPY != 0
    {
        let why = format!("libxdp_flags {libxdp:#x}, bind_flags {flags:#x}: some are not known, or exclude others");
        return Err(failure(libc::EINVAL, why));
    }
    if flags & BIND_ZEROCOPY != 0 && receives {
        let why = "XDP_ZEROCOPY with an RX ring: what is sent is not copied, what is received is, once";
        return Err(failure(libc::EOPNOTSUPP, why));
    }
    Ok(flags & BIND_SG != 0)
}

/// The arguments of `xsk_socket__create[_shared]`.
struct CreateArgs<'a> {
    interface: &'a CStr,
    queue: u32,
    umem: &'a Arc<Umem>,
    /// Where to write the rings; null for an unused one.
    rx: *mut Ring,
    tx: *mut Ring,
    /// Where to write FILL and COMPLETION; null if the program uses those of the UMEM.
    fill: *mut Ring,
    comp: *mut Ring,
    config: SocketConfig,
}

impl CreateArgs<'_> {
    /// Opens a session.
    ///
    /// # Safety
    /// The rings' pointers are null or may be written to.
    unsafe fn create(mut self) -> Result<Socket, Failure> {
        let (interface, queue) = (self.interface.to_bytes(), self.queue);
        // Held to the end: of two threads that create sockets of one UMEM, the second sees what the
        // first made.
        let mut first = self.umem.prepared();
        if self.umem.sockets().iter().any(|record| record.interface == interface && record.queue == queue) {
            let why = "a second socket of the same memory and queue, which would share FILL and COMPLETION";
            return Err(failure(libc::EOPNOTSUPP, why));
        }
        let (area, opened) = match first.take() {
            Some(prepared) => match self.open(&prepared.area) {
                Ok(opened) => {
                    if prepared.ring_ptrs == [self.fill.addr(), self.comp.addr()] {
                        (self.fill, self.comp) = (null_mut(), null_mut());
                    }
                    (prepared.area, opened)
                }
                Err(why) => {
                    // The program may retry with other flags.
                    *first = Some(prepared);
                    return Err(why);
                }
            },
            None if self.fill.is_null() || self.comp.is_null() => {
                let why = "FILL and COMPLETION belong to another socket: xsk_socket__create_shared takes others";
                return Err(failure(libc::EFAULT, why));
            }
            None => {
                let area = self.umem.reserve()?;
                let opened = self.open(&area)?;
                (area, opened)
            }
        };
        let Opened { session: Session { connection, kick: poll_fd, welcome, .. }, sizes, rings, path } = opened;
        let (fill, comp) = area.prepared();
        let views = [
            (self.rx, area.consumer(&rings.rx, sizes.rx)),
            (self.tx, area.producer(&rings.tx, sizes.tx)),
            (self.fill, fill),
            (self.comp, comp),
        ];
        for (to, ring) in views.into_iter().filter(|(to, _)| !to.is_null()) {
            // SAFETY: not null, so it may be written to, as the caller promises.
            unsafe { to.write(ring) };
        }
        let (interface, session) = (interface.to_vec(), welcome.session);
        self.umem.sockets().push(SocketRecord { interface, queue, path: path.clone(), session });
        let (_area, zero_copy) = (Arc::new(area), self.config.bind_flags & BIND_ZEROCOPY != 0);
        let _options = OptionsEntry::of(poll_fd.as_raw_fd(), _area.clone(), rings.statistics, zero_copy);
        let tx = (!self.tx.is_null()).then_some(rings.tx);
        let _poll = PollEntry::of(poll_fd.as_raw_fd(), _area.clone(), tx);
        let umem = self.umem.clone();
        Ok(Socket { umem, _area, _options, _poll, _connection: connection, poll_fd, path, session })
    }

    /// Opens a session whose rings lie in an area. A failure changes nothing.
    fn open(&self, area: &RingArea) -> Result<Opened, Failure> {
        let (receives, sends) = (!self.rx.is_null(), !self.tx.is_null());
        let pieces = pieces(&self.config, receives)?;
        let Endpoint { path, rules } = Endpoint::find(self.interface, self.queue)?;
        let size = |used, size| if used { size } else { UNUSED };
        let sizes = area.sizes(size(receives, self.config.rx_size), size(sends, self.config.tx_size));
        let hello = self.umem.hello(&path, sizes, pieces, if receives { rules } else { String::new() });
        let session = Session::open(&path, &hello, self.umem.memory().file()).map_err(|error| {
            let Failure { errno, why } = error.into();
            failure(errno, format!("{}: {why}", path.display()))
        })?;
        let rings = area.open(&session.rings, &session.welcome, &sizes)?;
        fence_for_datapaths();
        Ok(Opened { session, sizes, rings, path })
    }
}

/// A session, and the place of its rings.
struct Opened {
    session: Session,
    sizes: Sizes,
    rings: Rings,
    path: PathBuf,
}

/// Lets datapaths fence this process: the header's helpers leave out the fence between a counter
/// and the flag.
fn fence_for_datapaths() {
    static ONCE: Once = Once::new();
    // A datapath on a kernel without the call uses a timer.
    ONCE.call_once(|| {
        membarrier::register_global_expedited();
    });
}

/// All kinds of creation.
///
/// # Safety
/// Pointers are null or point to what the header says.
unsafe fn create(
    ifname: *const c_char,
    queue: u32,
    umem: *const Umem,
    (rx, tx): (*mut Ring, *mut Ring),
    (fill, comp): (*mut Ring, *mut Ring),
    config: SocketConfig,
) -> Result<*mut Socket, Failure> {
    let umem = non_null(umem.cast_mut(), "umem")?;
    let ifname = non_null(ifname.cast_mut(), "ifname")?;
    if rx.is_null() && tx.is_null() {
        return Err(failure(libc::EFAULT, "neither an RX nor a TX ring"));
    }
    // SAFETY: not null, so it is a string, as the caller promises.
    let interface = unsafe { CStr::from_ptr(ifname) };
    // SAFETY: the caller passes what `xsk_umem__create` wrote, and has not deleted it; the new
    // reference holds it for the time of the call.
    let umem = unsafe {
        Arc::increment_strong_count(umem);
        Arc::from_raw(umem)
    };
    let args = CreateArgs { interface, queue, umem: &umem, rx, tx, fill, comp, config };
    // SAFETY: the pointers are null or may be written to.
    let socket = unsafe { args.create()? };
    Ok(Box::into_raw(Box::new(socket)))
}

/// The same for a configuration that may be null, and a place for the socket.
///
/// # Safety
/// As for [`create`].
unsafe fn create_at(
    xsk: *mut *mut Socket,
    config: *const SocketConfig,
    create: impl FnOnce(SocketConfig) -> Result<*mut Socket, Failure>,
) -> Result<(), Failure> {
    let xsk = non_null(xsk, "xsk")?;
    // SAFETY: null, or a configuration.
    let socket = create(unsafe { config.as_ref() }.copied().unwrap_or_default())?;
    // SAFETY: not null, so it may be written to.
    unsafe { xsk.write(socket) };
    Ok(())
}

/// `xsk_socket__create`: opens a session over the UMEM, with its first FILL and COMPLETION rings,
/// at the socket that stands for the interface and the queue.
///
/// # Errors
/// As a negative number: `EFAULT` for a null pointer, or if another socket has those rings;
/// `EINVAL` for invalid arguments; `EOPNOTSUPP` for what is not supported; `ENODEV` if no socket
/// stands for the interface; `EBUSY` if another program receives the packets; `EPROTO` if the other
/// side is no datapath; `ECONNRESET` if it ended meanwhile; the errors of the system calls:
/// `ENOENT`, `ECONNREFUSED`, `EACCES`. A failure changes nothing.
///
/// # Safety
/// Pointers are null or point to what the header requires; `umem` is what
/// [`xsk_umem__create`](crate::umem::xsk_umem__create) wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_socket__create(
    xsk: *mut *mut Socket,
    ifname: *const c_char,
    queue_id: u32,
    umem: *const Umem,
    rx: *mut Ring,
    tx: *mut Ring,
    config: *const SocketConfig,
) -> c_int {
    let none = (null_mut(), null_mut());
    // SAFETY: as the caller promises.
    let make = |config| unsafe { create(ifname, queue_id, umem, (rx, tx), none, config) };
    // SAFETY: as the caller promises.
    c_call("xsk_socket__create", || unsafe { create_at(xsk, config, make) })
}

/// `xsk_socket__create_shared`: the same with FILL and COMPLETION rings of its own, so that several
/// sockets can use the same UMEM.
///
/// # Errors
/// As for [`xsk_socket__create`].
///
/// # Safety
/// As for [`xsk_socket__create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_socket__create_shared(
    xsk: *mut *mut Socket,
    ifname: *const c_char,
    queue_id: u32,
    umem: *const Umem,
    rx: *mut Ring,
    tx: *mut Ring,
    fill: *mut Ring,
    comp: *mut Ring,
    config: *const SocketConfig,
) -> c_int {
    // SAFETY: as the caller promises.
    let make = |config| unsafe { create(ifname, queue_id, umem, (rx, tx), (fill, comp), config) };
    // SAFETY: as the caller promises.
    c_call("xsk_socket__create_shared", || unsafe { create_at(xsk, config, make) })
}

/// `xsk_socket__create_opts`: the same with a structure of options, in which 0 stands for a
/// default. Null with `errno` set for a failure.
///
/// # Errors
/// As for [`xsk_socket__create`]; `EINVAL` for options that are not known.
///
/// # Safety
/// As for [`xsk_socket__create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_socket__create_opts(
    ifname: *const c_char,
    queue_id: u32,
    umem: *const Umem,
    opts: *const SocketOpts,
) -> *const Socket {
    c_call_for("xsk_socket__create_opts", || {
        // SAFETY: as the caller promises.
        unsafe {
            let opts = opts::read(opts)?;
            if opts.fill.is_null() != opts.comp.is_null() {
                return Err(failure(libc::EFAULT, "one of fill and comp is null"));
            }
            let rings = ((opts.rx, opts.tx), (opts.fill, opts.comp));
            create(ifname, queue_id, umem, rings.0, rings.1, opts.config()).map(<*mut Socket>::cast_const)
        }
    })
}

/// `xsk_socket__fd`: a descriptor that behaves as an AF_XDP socket in `poll`, `select` and `epoll`,
/// and with `sendto` and `recvfrom` without data. It belongs to the library. `-EINVAL` for a null
/// pointer.
///
/// # Safety
/// Null, or what a creation wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_socket__fd(xsk: *const Socket) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { xsk.as_ref() }.map_or(-libc::EINVAL, |socket| socket.poll_fd.as_raw_fd())
}

/// `xsk_socket__delete`: ends the session, and unmaps its rings. Accepts a null pointer.
///
/// # Safety
/// Null, or what a creation wrote, for the last time. The program does not use its rings any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_socket__delete(xsk: *mut Socket) {
    c_call("xsk_socket__delete", || {
        if !xsk.is_null() {
            // SAFETY: what a creation wrote, and the program has not deleted.
            drop(unsafe { Box::from_raw(xsk) });
        }
        Ok(())
    });
}

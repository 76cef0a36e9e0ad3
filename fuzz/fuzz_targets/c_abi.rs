//! Calls of `libtowpath_xdp` in any order, with any arguments that a C program may pass, beside a
//! real port: each returns 0 or an errno that is no defect of the library, and in the end the
//! memory is as it was, with its bytes, and no descriptor is left.
#![no_main]

use libc::{c_int, c_void};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};
use towpath_fuzz::{Input, OpenFiles};
use towpath_xdp::abi::{Ring, SocketConfig, UmemConfig};
use towpath_xdp::inline::{
    xsk_ring_cons__cancel, xsk_ring_cons__peek, xsk_ring_cons__release, xsk_ring_prod__needs_wakeup,
    xsk_ring_prod__reserve, xsk_ring_prod__submit,
};
use towpath_xdp::options::getsockopt;
use towpath_xdp::opts::UmemOpts;
use towpath_xdp::poll::poll;
use towpath_xdp::program::{xsk_setup_xdp_prog, xsk_socket__update_xskmap};
use towpath_xdp::socket::{Socket, xsk_socket__create, xsk_socket__create_shared, xsk_socket__delete, xsk_socket__fd};
use towpath_xdp::umem::{Umem, xsk_umem__create, xsk_umem__create_opts, xsk_umem__delete, xsk_umem__fd};

#[allow(dead_code, reason = "the target needs a part of what the tests need")]
#[path = "../../crates/ports/tests/hostile/rig.rs"]
mod rig;

use rig::{Rig, until};

/// Bytes of the program's memory, which holds this byte.
const MEMORY: usize = 64 << 10;
const BYTE: u8 = 0x5a;
const PAGE: [u8; 4096] = [BYTE; 4096];
/// Addresses behind it without pages: more than any size that passes the checks.
const BEHIND: usize = 40 << 30;
/// `-errno` of the last error number.
const LAST: c_int = 133;

/// What lives as long as the process.
struct Fixture {
    rig: Rig,
    memory: NonNull<u8>,
    /// Standard error, and what takes its place while the library prints reasons.
    stderr: OwnedFd,
    nothing: File,
    open: OpenFiles,
}

impl Fixture {
    fn new() -> Fixture {
        let rig = Rig::new("umem=1M,sessions=6");
        // SAFETY: no other thread reads the environment at this time; both mappings are new, the
        // second one at the beginning of the first.
        let memory = unsafe {
            std::env::set_var(
                "TOWPATH_XDP",
                format!("f0={0},f0:1={0}?match=udp dport 9,f1=/nowhere", rig.path.display()),
            );
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let at = libc::mmap(null_mut(), BEHIND, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at, MEMORY, libc::PROT_READ | libc::PROT_WRITE), 0);
            at.cast::<u8>().write_bytes(BYTE, MEMORY);
            NonNull::new(at.cast()).unwrap()
        };
        let stderr = std::io::stderr();
        let stderr = std::os::fd::AsFd::as_fd(&stderr).try_clone_to_owned().unwrap();
        let (visible, hook) = (stderr.as_raw_fd(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            // SAFETY: no pointers.
            unsafe { libc::dup2(visible, 2) };
            hook(panic);
        }));
        let nothing = File::options().write(true).open("/dev/null").unwrap();
        Fixture { rig, memory, stderr, nothing, open: OpenFiles::default() }
    }

    fn print_to(&self, file: &impl AsRawFd) {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
    }
}

fn ring() -> Box<Ring> {
    let none = null_mut();
    Box::new(Ring {
        cached_prod: 0,
        cached_cons: 0,
        mask: 0,
        size: 0,
        producer: none,
        consumer: none,
        ring: none.cast(),
        flags: none,
    })
}

/// A UMEM of the program, with its rings until they are gone.
struct OwnUmem {
    umem: *const Umem,
    rings: [Box<Ring>; 2],
    /// The socket that has its rings.
    with: Option<*mut Socket>,
    rings_gone: bool,
    sockets: usize,
}

/// A socket, with RX, TX, FILL and COMPLETION as far as it has them.
struct OwnSocket {
    socket: *mut Socket,
    umem: *const Umem,
    rings: [Box<Ring>; 4],
}

/// A C program.
#[derive(Default)]
struct Program {
    umems: Vec<OwnUmem>,
    sockets: Vec<OwnSocket>,
    opened: u64,
}

/// The result of a function of the library; whether it succeeded.
#[track_caller]
fn done(result: c_int) -> bool {
    assert!(result == 0 || (-LAST..0).contains(&result), "{result} is no errno");
    assert_ne!(result, -libc::EIO, "a defect");
    result == 0
}

fn pointer(ring: &mut Box<Ring>, given: bool) -> *mut Ring {
    if given { &raw mut **ring } else { null_mut() }
}

impl Program {
    fn create_umem(&mut self, input: &mut Input<'_>, memory: NonNull<u8>) {
        let (how, sizes) = (input.byte(), input.byte());
        let size = |bits: u8| if how & 2 != 0 { 2 << ((sizes >> bits & 15) % 16) } else { u32::from(sizes) };
        let config = UmemConfig {
            fill_size: size(0),
            comp_size: size(4),
            frame_size: [2048, 4096, 3000, input.int()][usize::from(how >> 2 & 3)],
            frame_headroom: if how & 16 != 0 { input.int() } else { 0 },
            flags: if how & 32 != 0 { input.int() } else { u32::from(how >> 6 & 1) },
        };
        let what = input.byte();
        let bytes = match what & 7 {
            0 => input.long(),
            1 => u64::from(input.int()),
            2 => 4096,
            _ => MEMORY as u64,
        };
        let at = match what >> 3 & 7 {
            0 => null_mut(),
            1 => memory.as_ptr().wrapping_add(usize::from(input.word()) % MEMORY),
            _ => memory.as_ptr(),
        };
        // A program has no two UMEMs of the same memory.
        if !self.umems.is_empty() {
            return;
        }
        let (mut rings, mut umem) = ([ring(), ring()], null::<Umem>());
        let [fill, comp] = &mut rings;
        let (fill, comp) = (pointer(fill, what >> 6 != 1), pointer(comp, what >> 6 != 2));
        let result = if what >> 6 == 3 {
            let UmemConfig { fill_size, comp_size, frame_size, frame_headroom, flags } = config;
            let (sz, tx_metadata_len) = (usize::from(input.byte()) % (size_of::<UmemOpts>() + 1), input.byte().into());
            let (fd, size) = (0, bytes);
            let opts =
                UmemOpts { sz, fd, size, fill_size, comp_size, frame_size, frame_headroom, flags, tx_metadata_len };
            // SAFETY: as below; the structure is as long as it states, or longer.
            umem = unsafe { xsk_umem__create_opts(at.cast(), fill, comp, &raw const opts) };
            if umem.is_null() { -std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
        } else {
            let config = if how & 1 != 0 { null() } else { &raw const config };
            // SAFETY: pointers are null or to what the header requires; the memory is the target's
            // own, and addresses behind it have no pages.
            unsafe { xsk_umem__create(&raw mut umem, at.cast(), bytes, fill, comp, config) }
        };
        if done(result) {
            assert!(!umem.is_null() && rings.iter().all(|ring| ring.size.is_power_of_two()));
            self.umems.push(OwnUmem { umem, rings, with: None, rings_gone: false, sockets: 0 });
        } else {
            assert!(umem.is_null(), "nothing is written");
        }
    }

    fn create_socket(&mut self, input: &mut Input<'_>) {
        let (how, flags) = (input.byte(), input.byte());
        let names = [c"f0", c"f0", c"f1", c"f2", c"", c"a/b", c"a-name-of-sixteen", c"f0:1"];
        let name = names[usize::from(input.byte()) % names.len()];
        let queue = if how & 1 != 0 { input.int() } else { u32::from(input.byte() % 3) };
        let config = SocketConfig {
            rx_size: if how & 2 != 0 { input.int() } else { 64 },
            tx_size: if how & 4 != 0 { u32::from(input.word()) } else { 16 },
            libxdp_flags: u32::from(flags & 3) % 3,
            xdp_flags: input.byte().into(),
            bind_flags: u16::from(flags >> 2),
        };
        let mut rings = [ring(), ring(), ring(), ring()];
        let given = input.byte();
        let mut own = self.umems.first_mut();
        let umem = own.as_ref().map_or(null(), |own| own.umem);
        let mut socket = null_mut();
        let [rx, tx, fill, comp] = &mut rings;
        let (rx, tx) = (pointer(rx, given & 3 != 1), pointer(tx, given & 3 != 2));
        let config = if how & 8 != 0 { null() } else { &raw const config };
        let name = if how & 0xf0 == 0xf0 { null() } else { name.as_ptr() };
        let shared = how & 16 != 0;
        let result = if shared {
            let (fill, comp) = match own.as_mut().filter(|_| given & 4 != 0) {
                Some(own) => {
                    let [fill, comp] = &mut own.rings;
                    (pointer(fill, true), pointer(comp, true))
                }
                None => (pointer(fill, given & 8 == 0), pointer(comp, given & 16 == 0)),
            };
            let out = &raw mut socket;
            // SAFETY: pointers are null or to what the header wants; the UMEM is not deleted.
            unsafe { xsk_socket__create_shared(out, name, queue, umem, rx, tx, fill, comp, config) }
        } else {
            // SAFETY: as above.
            unsafe { xsk_socket__create(&raw mut socket, name, queue, umem, rx, tx, config) }
        };
        if !done(result) {
            assert!(socket.is_null(), "nothing is written");
            return;
        }
        let own = own.expect("a UMEM");
        own.sockets += 1;
        if own.with.is_none() && !own.rings_gone {
            own.with = Some(socket);
        } else if given & 4 != 0 {
            // The rings of the UMEM were written again, for this socket.
            own.with = Some(socket);
            own.rings_gone = false;
        }
        self.opened += 1;
        // SAFETY: the socket was created.
        assert!(unsafe { xsk_socket__fd(socket) } >= 0);
        self.sockets.push(OwnSocket { socket, umem: own.umem, rings });
    }

    fn delete_socket(&mut self, at: usize) {
        if self.sockets.is_empty() {
            // SAFETY: null is accepted.
            unsafe { xsk_socket__delete(null_mut()) };
            return;
        }
        let socket = self.sockets.swap_remove(at % self.sockets.len());
        let umem = self.umems.iter_mut().find(|own| own.umem == socket.umem).expect("its UMEM");
        umem.sockets -= 1;
        if umem.with == Some(socket.socket) {
            umem.with = None;
            umem.rings_gone = true;
            umem.rings = [ring(), ring()];
        }
        // SAFETY: the socket was created and is deleted once; its rings are gone from the program.
        unsafe { xsk_socket__delete(socket.socket) };
    }

    fn delete_umem(&mut self) {
        let Some(own) = self.umems.first() else {
            // SAFETY: null is accepted.
            assert!(done(unsafe { xsk_umem__delete(null()) }));
            return;
        };
        // SAFETY: the UMEM was created and not deleted.
        let deleted = done(unsafe { xsk_umem__delete(own.umem) });
        assert_eq!(deleted, own.sockets == 0, "EBUSY as long as there are sockets");
        if deleted {
            self.umems.clear();
        }
    }

    /// Reserves and submits, or peeks and releases, any number of entries.
    fn use_ring(&mut self, input: &mut Input<'_>) {
        let (which, how, n) = (usize::from(input.byte()), input.byte(), u32::from(input.byte()));
        let of_sockets = self.sockets.iter_mut().flat_map(|own| own.rings.iter_mut().enumerate());
        let of_umems =
            self.umems.iter_mut().flat_map(|own| own.rings.iter_mut().zip([2, 3]).map(|(ring, i)| (i, ring)));
        let mut rings: Vec<_> = of_sockets.chain(of_umems).filter(|(_, ring)| ring.size > 0).collect();
        if rings.is_empty() {
            return;
        }
        let count = rings.len();
        let (kind, ring) = &mut rings[which % count];
        let (ring, mut index) = (&raw mut ***ring, 0);
        // SAFETY: a ring that the library wrote, and that is mapped.
        unsafe {
            if matches!(kind, 1 | 2) {
                let got = xsk_ring_prod__reserve(ring, n, &raw mut index);
                assert!(got == 0 || got == n);
                xsk_ring_prod__submit(ring, if how & 1 != 0 { got } else { n });
                xsk_ring_prod__needs_wakeup(ring);
            } else {
                let got = xsk_ring_cons__peek(ring, n, &raw mut index);
                assert!(got <= n);
                if how & 1 != 0 { xsk_ring_cons__cancel(ring, got) } else { xsk_ring_cons__release(ring, got) }
            }
        }
    }

    fn ask_option(&self, input: &mut Input<'_>) {
        let (option, room) = (c_int::from(input.byte() % 12), u32::from(input.byte()));
        let fd = self.sockets.first().map_or(c_int::from(input.byte() % 3), |own| {
            // SAFETY: the socket was created.
            unsafe { xsk_socket__fd(own.socket) }
        });
        let mut value = [BYTE; 256];
        let mut len = if input.byte() & 1 != 0 { input.int() | 1 << 31 } else { room };
        let at = if input.byte() & 7 != 0 { (&raw mut value).cast::<c_void>() } else { null_mut() };
        // SAFETY: the value has the room that is stated, or the length is not one.
        let result = unsafe { getsockopt(fd, libc::SOL_XDP, option, at, &raw mut len) };
        assert!(result == 0 || result == -1);
        if result == 0 {
            assert!(len <= room);
        }
        let mut wait = libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: one element.
        assert!(unsafe { poll(&raw mut wait, 1, 0) } >= 0);
        assert!(value[room as usize..].iter().all(|byte| *byte == BYTE), "it is written behind the room");
    }

    fn act(&mut self, input: &mut Input<'_>, fixture: &mut Fixture) {
        match input.byte() % 12 {
            0 | 1 => self.create_umem(input, fixture.memory),
            2..=4 => self.create_socket(input),
            5 => self.delete_socket(input.byte().into()),
            6 => self.delete_umem(),
            7 | 8 => self.use_ring(input),
            9 => self.ask_option(input),
            10 => {
                let mut map = -1;
                let out = if input.byte() & 1 != 0 { &raw mut map } else { null_mut() };
                let socket = self.sockets.first().map_or(null_mut(), |own| own.socket);
                // SAFETY: the pointers are null or valid; the descriptor is new.
                unsafe {
                    done(xsk_setup_xdp_prog(input.byte().into(), out));
                    done(xsk_socket__update_xskmap(socket, map));
                    if map >= 0 {
                        libc::close(map);
                    }
                    let umem = self.umems.first().map_or(null(), |own| own.umem);
                    assert_eq!(xsk_umem__fd(umem) >= 0, !umem.is_null());
                }
            }
            _ => drop(fixture.rig.step()),
        }
    }

    fn end(mut self, fixture: &mut Fixture, ended: u64) {
        while !self.sockets.is_empty() {
            self.delete_socket(0);
        }
        self.delete_umem();
        fixture.rig.until_event("sessions-ended", ended + self.opened);
        // SAFETY: the memory is the target's own.
        let bytes = unsafe { std::slice::from_raw_parts(fixture.memory.as_ptr(), MEMORY) };
        assert!(bytes.chunks(PAGE.len()).all(|page| page == PAGE), "the bytes are as they were");
    }
}

thread_local! {
    static FIXTURE: RefCell<Option<Fixture>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    FIXTURE.with_borrow_mut(|fixture| {
        let fixture = fixture.get_or_insert_with(Fixture::new);
        let mut input = Input(data);
        let (mut program, ended) = (Program::default(), fixture.rig.event("sessions-ended"));
        fixture.print_to(&fixture.nothing);
        while !input.0.is_empty() {
            program.act(&mut input, fixture);
        }
        program.end(fixture, ended);
        fixture.print_to(&fixture.stderr);
        until(|| fixture.open.are_bounded());
    });
});

//! What the kernel and the driver do: found out by doing it.
//!
//! ```text
//!   program loaded, attached in the driver, or in the stack
//!     └ a socket with a few buffers of its own: bound with the best that is wanted, then with less    closed again
//!         └ woken once, and if that was asked for: one frame sent and completed
//! ```
//!
//! Nothing is received meanwhile: the map of sockets is empty, all frames go to the host.

use super::config::{Config, SelfTest};
use super::queue::{open, patiently, set_busy_poll};
use super::rings::Rings;
use super::umem::Frames;
use super::{ask, metadata, program};
use crate::uri::Want;
use std::io;
use std::time::{Duration, Instant};
use towpath_packet::port::PortError;
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{Backing, Direction, InFlight, Packet, Pool, PoolConfig, ToDevice};
use towpath_sys::bpf::{Hook, Kind, Link, Map, MapKind, Program};
use towpath_sys::netdev_genl::Features;
use towpath_sys::xsk::{Socket, bind};

/// Queues that the map of sockets has room for.
const QUEUES: u32 = 64;
/// Pieces of a packet that the kernel copies (`MAX_SKB_FRAGS` + 1).
const COPIED_PIECES: u16 = 18;
/// Why something is not there.
pub(super) const OFF: &str = "switched off by option";
/// How long a frame may take to be completed.
const PATIENCE: Duration = Duration::from_millis(200);

/// Our program on an interface.
#[derive(Debug)]
pub(super) struct OnInterface {
    pub(super) map: Map,
    pub(super) link: Link,
    pub(super) program: Program,
    hook: Hook,
    /// Why it does not run in the driver.
    not_native: Option<String>,
    /// Whether it takes packets in several pieces.
    frags: bool,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) hook: Hook,
    /// Why the program does not run in the driver.
    pub(super) not_native: Option<String>,
    /// Flags to bind with.
    pub(super) flags: u16,
    /// Why the driver does not use our memory.
    pub(super) not_zero_copy: Option<String>,
    /// Why packets are not taken in several pieces.
    pub(super) not_frags: Option<String>,
    /// Pieces of a packet that may be sent as one.
    pub(super) pieces: u16,
    /// Bytes of metadata in front of sent frames, or why there are none.
    pub(super) metadata: Result<u32, String>,
    /// Whether one call may send more than 32 frames.
    pub(super) budget: Result<(), String>,
    /// What the self-test did.
    pub(super) tested: &'static str,
}

impl Found {
    pub(super) fn zero_copy(&self) -> bool {
        self.not_zero_copy.is_none()
    }
}

/// Loads the program and attaches it as it is wanted.
pub(super) fn attach(config: &Config, index: i32) -> Result<OnInterface, PortError> {
    let failed = |step: &'static str| ask::os(config, step);
    let map = Map::new(MapKind::Sockets, 4, QUEUES, "towpath_xsks").map_err(failed("bpf(BPF_MAP_CREATE)"))?;
    let code = if config.matches.is_empty() {
        program::everything(map.number())
    } else {
        program::flows(map.number(), &config.matches)
    };
    let mut frags = config.frags != Want::Off;
    let mut loaded = Program::load(Kind::Xdp { frags }, &code, "towpath");
    if loaded.is_err() && config.frags == Want::Prefer {
        // Before Linux 5.18 the flag is not known.
        frags = false;
        loaded = Program::load(Kind::Xdp { frags }, &code, "towpath");
    }
    let program = loaded.map_err(failed("bpf(BPF_PROG_LOAD)"))?;
    let mut not_native = Some(OFF.to_owned());
    if config.native != Want::Off {
        let error = match patiently(|| Link::attach(&program, index, Hook::Native)) {
            Ok(link) => return Ok(OnInterface { map, link, program, hook: Hook::Native, not_native: None, frags }),
            Err(error) => error,
        };
        // Something else is attached, which would be in the way in the stack as well; or nobody may attach anything.
        if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST | libc::EPERM)) {
            return Err(failed("attach the program")(error));
        }
        let why = format!("the driver refuses the program: {error}{}", ask::why_not_native(&error));
        if config.native == Want::Require || config.generic == Want::Off {
            return Err(PortError::Required { port: config.port(), ability: "native".to_owned(), why });
        }
        not_native = Some(why);
    }
    let link = patiently(|| Link::attach(&program, index, Hook::Generic)).map_err(failed("attach the program"))?;
    Ok(OnInterface { map, link, program, hook: Hook::Generic, not_native, frags })
}

/// A pool for trials.
fn small() -> Result<Pool, towpath_packet::PoolError> {
    Pool::new(PoolConfig { capacity: 256, backing: Backing::Anonymous, max_caches: 2, ..PoolConfig::default() })
}

/// The memory of a trial, and the metadata that the kernel reads in front of frames.
fn memory(trial: &Config, pool: &Pool, mtu: u32) -> Result<(Frames, Result<u32, String>), PortError> {
    let without = || Frames::new(trial, pool, mtu, 0);
    if trial.csum == Want::Off && trial.timestamps == Want::Off {
        return Ok((without()?, Err(OFF.to_owned())));
    }
    let with = Frames::new(trial, pool, mtu, metadata::LEN as u32)?;
    match open(trial, &with, None) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((without()?, Err("the kernel knows no metadata of sent frames: Linux 6.8 does".to_owned())))
        }
        // Any other error comes again where it is told.
        _ => Ok((with, Ok(metadata::LEN as u32))),
    }
}

/// Whether to try with an ability, and without it.
fn tries(want: Want, possible: bool) -> (bool, bool) {
    (want != Want::Off && possible, want != Want::Require)
}

/// Whether the driver's receive loop may be run from here as it is wanted, tried on a socket that is closed again; with what is to
/// be said about it.
pub(super) fn busy_poll(config: &Config) -> Result<String, PortError> {
    if config.busy_poll.is_zero() {
        return Ok("not asked for: busypoll=20us runs the driver's receive loop from here".to_owned());
    }
    let step = "SO_PREFER_BUSY_POLL";
    let socket = Socket::new().map_err(ask::os(config, "socket(AF_XDP)"))?;
    set_busy_poll(config, &socket).map_err(ask::os(config, step))?;
    let does = format!("the driver's receive loop is run from here, {} frames at a time", config.busy_budget);
    let settings = ["napi_defer_hard_irqs", "gro_flush_timeout"];
    // What is mounted here shows the interfaces of this namespace only.
    let waits = config.netns.is_some()
        || settings.iter().all(|name| {
            let path = format!("/sys/class/net/{}/{name}", config.interface);
            std::fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
        });
    let name = &config.interface;
    let advice = format!(
        "; its interrupts still come: echo 2 >/sys/class/net/{name}/{}; echo 200000 >/sys/class/net/{name}/{}",
        settings[0], settings[1]
    );
    Ok(if waits { does } else { does + &advice })
}

/// Finds out how sockets can be bound. The calling thread is in the port's namespace.
pub(super) fn probe(
    config: &Config,
    index: i32,
    mtu: u32,
    mac: [u8; 6],
    on: &OnInterface,
    features: Option<Features>,
) -> Result<Found, PortError> {
    let pool = small().map_err(|source| PortError::Pool { port: config.port(), source })?;
    // Small rings will do.
    let trial = Config { ring: 64, tx_budget: 32, netns: None, ..config.clone() };
    let (frames, metadata) = memory(&trial, &pool, mtu)?;
    let wakeup = if config.wakeup == Want::Off { 0 } else { bind::NEED_WAKEUP };
    let zero_copy = if config.copy == Want::Require { (false, true) } else { tries(config.zero_copy, true) };
    let zero_copy = (zero_copy.0, zero_copy.1 && config.copy != Want::Off);
    let frags = tries(config.frags, on.frags);
    let (mut no_zero_copy, mut refused, mut last) = (OFF.to_owned(), None, io::ErrorKind::Unsupported.into());
    for (driver, wanted) in [(true, zero_copy.0), (false, zero_copy.1)] {
        for (sg, wanted) in [(true, wanted && frags.0), (false, wanted && frags.1)] {
            if !wanted {
                continue;
            }
            let memory = if driver { bind::ZEROCOPY } else { bind::COPY };
            let flags = wakeup | memory | if sg { bind::SG } else { 0 };
            let error = match attempt(&trial, &frames, index, flags, mac) {
                Ok((budget, tested)) => {
                    let given = features.map_or(1, |f| f.zero_copy_pieces).clamp(1, COPIED_PIECES.into()) as u16;
                    return Ok(Found {
                        hook: on.hook,
                        not_native: on.not_native.clone(),
                        flags,
                        not_zero_copy: (!driver).then_some(no_zero_copy),
                        not_frags: (!sg).then(|| refused.unwrap_or_else(|| no_frags(config, on.frags))),
                        pieces: if !sg {
                            1
                        } else if driver {
                            given
                        } else {
                            COPIED_PIECES
                        },
                        metadata,
                        budget,
                        tested,
                    });
                }
                Err(error) => error,
            };
            // It is not about zero copy, or pieces.
            if matches!(
                error.raw_os_error(),
                Some(libc::EBUSY | libc::ENODEV | libc::ENETDOWN | libc::EPERM | libc::ENOBUFS)
            ) {
                return Err(ask::bind_failed(config, config.queue.into(), error));
            }
            if driver {
                no_zero_copy = format!("the driver refuses it: {error}");
            } else if sg {
                refused = Some(format!("the kernel refuses it: {error}"));
            }
            last = error;
        }
    }
    let required = |ability: &str, why| PortError::Required { port: config.port(), ability: ability.to_owned(), why };
    Err(match (config.zero_copy, config.frags) {
        (Want::Require, _) => required("zerocopy", no_zero_copy),
        (_, Want::Require) => required("frags", refused.unwrap_or_else(|| no_frags(config, on.frags))),
        _ => ask::bind_failed(config, config.queue.into(), last),
    })
}

fn no_frags(config: &Config, loaded: bool) -> String {
    match config.frags {
        Want::Off => OFF.to_owned(),
        _ if !loaded => "the kernel takes no program for packets in several pieces: Linux 5.18 does".to_owned(),
        _ => "the kernel takes no packets in several pieces: Linux 6.6 does".to_owned(),
    }
}

/// Binds a socket with these flags, and tries it out.
fn attempt(
    config: &Config,
    frames: &Frames,
    index: i32,
    flags: u16,
    mac: [u8; 6],
) -> io::Result<(Result<(), String>, &'static str)> {
    let (socket, mut rings) = open(config, frames, None)?;
    let budget =
        socket.set_tx_budget(64).map_err(|_| "the kernel sends 32 frames a call: Linux 6.17 can more".to_owned());
    patiently(|| socket.bind(index, config.queue.into(), flags, None))?;
    let tested = match config.self_test {
        SelfTest::Off => "not tried, as asked",
        SelfTest::Wake => {
            wake(&socket)?;
            "the driver can be woken; it was not tried whether it sends (selftest=frame does)"
        }
        SelfTest::Frame => {
            wake(&socket)?;
            send_one(&socket, &mut rings, frames, mac)?;
            "a frame was sent and completed"
        }
    };
    Ok((budget, tested))
}

/// Some drivers refuse to be woken although binding worked; then they would never send.
fn wake(socket: &Socket) -> io::Result<()> {
    match socket.wake_tx() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::EINVAL | libc::EOPNOTSUPP)) => Err(error),
        _ => Ok(()),
    }
}

/// Sends a frame to the interface's own address: a request of the Ethernet configuration testing protocol that asks for nothing
/// (type 0x9000, function 1, reply).
fn send_one(socket: &Socket, rings: &mut Rings, frames: &Frames, mac: [u8; 6]) -> io::Result<()> {
    let dry = || io::Error::other("no buffer for the test");
    let mut cache = frames.pool.cache(Direction::Tx).map_err(io::Error::other)?;
    let mut bytes = [0u8; 60];
    bytes[..6].copy_from_slice(&mac);
    bytes[6..12].copy_from_slice(&mac);
    bytes[12..18].copy_from_slice(&[0x90, 0, 0, 0, 1, 0]);
    let packet = Packet::copy_from(&mut cache, &bytes).ok_or_else(dry)?;
    let (_, addr) = packet.chunks().next().and_then(|piece| frames.address(&piece)).ok_or_else(dry)?;
    let lent = InFlight::<ToDevice>::post(packet);
    rings.tx.write(Desc { addr, len: bytes.len() as u32, options: 0 });
    rings.tx.submit();
    let end = Instant::now() + PATIENCE;
    while rings.completion.peek(1) == 0 {
        if rings.tx.waiting() > 0 || rings.tx.ring().needs_wakeup() {
            let _ = socket.wake_tx();
        }
        if Instant::now() > end {
            // The loan stays out with this: the socket is closed next, and the pool is one for the trial.
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the driver took a frame and did not complete it"));
        }
        std::thread::yield_now();
    }
    drop(lent.complete());
    Ok(())
}

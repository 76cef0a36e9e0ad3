//! Probes the kernel and the driver: each mode is tried.
//!
//! ```text
//!   program loaded, attached in the driver, or in the stack
//!     └ a socket with a small pool of its own: bound in the best configured mode, then in lesser ones    closed again
//!         └ woken once, and with selftest=frame: one frame sent and completed
//! ```
//!
//! Nothing is received meanwhile: the XSKMAP is empty, and all frames go to the host.

use super::config::{Config, SelfTest};
use super::queue::{Rings, open, retry_while_busy, set_busy_poll};
use super::umem::Umem;
use super::{errors, program, tx_metadata};
use crate::uri::Want;
use std::io;
use std::time::{Duration, Instant};
use towpath_packet::port::PortError;
use towpath_packet::xsk_ring::Desc;
use towpath_packet::{Backing, Direction, InFlight, Packet, Pool, PoolConfig, ToDevice};
use towpath_sys::bpf::{AttachMode, Map, MapType, Program, ProgramType, XdpLink};
use towpath_sys::netdev_genl::Features;
use towpath_sys::xsk::{Socket, bind};

/// Entries of the XSKMAP.
const QUEUES: u32 = 64;
/// Most fragments of a packet in copy mode (`MAX_SKB_FRAGS` + 1).
const COPY_MODE_FRAGS: u16 = 18;
/// The reason of an ability that is switched off.
pub(super) const OFF: &str = "switched off by option";
/// The reason if the port has no program.
const NOT_RECEIVING: &str = "there is no program: the port only sends (rx=off), the host has its traffic";
/// Time limit of the test frame's completion.
const TIMEOUT: Duration = Duration::from_millis(200);

/// The attached program.
#[derive(Debug)]
pub(super) struct AttachedProgram {
    pub(super) map: Map,
    pub(super) link: XdpLink,
    pub(super) program: Program,
    pub(super) mode: AttachMode,
    /// The reason if it does not run in the driver.
    not_native: Option<String>,
    /// It accepts packets of several fragments.
    frags: bool,
}

/// The result of the probe.
#[derive(Debug)]
pub(super) struct Probed {
    /// Where the program runs, if there is one.
    pub(super) mode: Option<AttachMode>,
    /// The reason if the program does not run in the driver.
    pub(super) not_native: Option<String>,
    /// Whether other programs can name and watch this one, if there is one.
    pub(super) btf: Option<Result<(), String>>,
    /// Flags to bind with.
    pub(super) flags: u16,
    /// The reason if the mode is not zero copy.
    pub(super) not_zero_copy: Option<String>,
    /// The reason if packets have one fragment.
    pub(super) not_frags: Option<String>,
    /// Most fragments of a transmitted packet.
    pub(super) max_frags: u16,
    /// Bytes of metadata in front of transmitted frames, or the reason if there are none.
    pub(super) metadata: Result<u32, String>,
    /// Whether one call may send more than 32 frames.
    pub(super) budget: Result<(), String>,
    /// The result of the self-test.
    pub(super) tested: &'static str,
}

impl Probed {
    pub(super) fn zero_copy(&self) -> bool {
        self.not_zero_copy.is_none()
    }
}

/// Loads the program and attaches it in the configured mode.
pub(super) fn attach(config: &Config, index: i32) -> Result<AttachedProgram, PortError> {
    let failed = |step: &'static str| errors::os_error(config, step);
    let map = Map::new(MapType::Xskmap, 4, QUEUES, "towpath_xsks").map_err(failed("bpf(BPF_MAP_CREATE)"))?;
    let code = if config.matches.is_empty() {
        program::all_frames(map.fd())
    } else {
        program::flows(map.fd(), &config.matches)
    }
    .map_err(failed("the program of the matches"))?;
    let mut frags = config.frags != Want::Off;
    let mut loaded = Program::load(ProgramType::Xdp { frags }, &code, "towpath");
    if loaded.is_err() && config.frags == Want::Prefer {
        // Before Linux 5.18 the flag does not exist.
        frags = false;
        loaded = Program::load(ProgramType::Xdp { frags }, &code, "towpath");
    }
    let program = loaded.map_err(failed("bpf(BPF_PROG_LOAD)"))?;
    let mut not_native = Some(OFF.to_owned());
    if config.native != Want::Off {
        let error = match retry_while_busy(|| XdpLink::attach(&program, index, AttachMode::Native)) {
            Ok(link) => {
                return Ok(AttachedProgram { map, link, program, mode: AttachMode::Native, not_native: None, frags });
            }
            Err(error) => error,
        };
        // Another program is attached, which prevents generic mode too; or the process may not
        // attach one.
        if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST | libc::EPERM)) {
            return Err(failed("attach the program")(error));
        }
        let why = format!("the driver refuses the program: {error}{}", errors::native_refusal(&error));
        if config.native == Want::Require || config.generic == Want::Off {
            return Err(PortError::Required { port: config.port(), ability: "native".to_owned(), why });
        }
        not_native = Some(why);
    }
    let link = retry_while_busy(|| XdpLink::attach(&program, index, AttachMode::Generic))
        .map_err(failed("attach the program"))?;
    Ok(AttachedProgram { map, link, program, mode: AttachMode::Generic, not_native, frags })
}

/// Whether the program has BTF.
fn watchable(program: &Program) -> Result<(), String> {
    let why = |error| format!("the kernel refuses the program's BTF ({error}): xdpdump can't attach to it");
    program.no_btf().map_or(Ok(()), |error| Err(why(error)))
}

/// A pool for the trial.
fn small_pool() -> Result<Pool, towpath_packet::PoolError> {
    Pool::new(PoolConfig::default().capacity(256).backing(Backing::Anonymous).max_caches(2))
}

/// The UMEM of the trial, and the metadata that the kernel reads in front of frames.
fn trial_umem(trial: &Config, pool: &Pool, mtu: u32) -> Result<(Umem, Result<u32, String>), PortError> {
    let without = || Umem::new(trial, pool, mtu, 0);
    if trial.csum == Want::Off && trial.timestamps == Want::Off {
        return Ok((without()?, Err(OFF.to_owned())));
    }
    let with = Umem::new(trial, pool, mtu, tx_metadata::LEN as u32)?;
    match open(trial, &with, None) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((without()?, Err("the kernel knows no metadata of sent frames: Linux 6.8 does".to_owned())))
        }
        // Any other error recurs in `attempt`, which reports it.
        _ => Ok((with, Ok(tx_metadata::LEN as u32))),
    }
}

/// Whether to try with an ability, and without it.
fn variants(want: Want, possible: bool) -> (bool, bool) {
    (want != Want::Off && possible, want != Want::Require)
}

/// Tries the busy poll of the configuration on a socket that is closed again; returns the report.
pub(super) fn busy_poll(config: &Config) -> Result<String, PortError> {
    if config.busy_poll.is_zero() {
        return Ok("not asked for: busypoll=20us runs the driver's receive loop from here".to_owned());
    }
    let step = "SO_PREFER_BUSY_POLL";
    let socket = Socket::new().map_err(errors::os_error(config, "socket(AF_XDP)"))?;
    set_busy_poll(config, &socket).map_err(errors::os_error(config, step))?;
    let does = format!("the driver's receive loop is run from here, {} frames at a time", config.busy_budget);
    let settings = ["napi_defer_hard_irqs", "gro_flush_timeout"];
    // The mounted sysfs shows the interfaces of this process's namespace only.
    let deferred = config.netns.is_some()
        || settings.iter().all(|name| {
            let path = format!("/sys/class/net/{}/{name}", config.interface);
            std::fs::read_to_string(path).is_ok_and(|value| value.trim() != "0")
        });
    let name = &config.interface;
    let advice = format!(
        "; its interrupts still come: echo 2 >/sys/class/net/{name}/{}; echo 200000 >/sys/class/net/{name}/{}",
        settings[0], settings[1]
    );
    Ok(if deferred { does } else { does + &advice })
}

/// Tries the modes in which sockets can be bound. The calling thread is in the port's namespace.
pub(super) fn probe(
    config: &Config,
    index: i32,
    mtu: u32,
    (mac, driver_name): ([u8; 6], &str),
    attached: Option<&AttachedProgram>,
    features: Option<Features>,
) -> Result<Probed, PortError> {
    let pool = small_pool().map_err(|source| PortError::Pool { port: config.port(), source })?;
    // Small rings suffice.
    let trial = Config { ring: 64, tx_budget: 32, netns: None, ..config.clone() };
    let (umem, metadata) = trial_umem(&trial, &pool, mtu)?;
    let wakeup = if config.wakeup == Want::Off { 0 } else { bind::NEED_WAKEUP };
    let zero_copy = if config.copy == Want::Require { (false, true) } else { variants(config.zero_copy, true) };
    let zero_copy = (zero_copy.0, zero_copy.1 && config.copy != Want::Off);
    // Without a program only the kernel's socket has to support fragments.
    let program_frags = attached.is_none_or(|program| program.frags);
    let frags = variants(config.frags, program_frags);
    let (mut no_zero_copy, mut refused, mut last) = (OFF.to_owned(), None, io::ErrorKind::Unsupported.into());
    for (driver, wanted) in [(true, zero_copy.0), (false, zero_copy.1)] {
        for (sg, wanted) in [(true, wanted && frags.0), (false, wanted && frags.1)] {
            if !wanted {
                continue;
            }
            let memory = if driver { bind::ZEROCOPY } else { bind::COPY };
            let flags = wakeup | memory | if sg { bind::SG } else { 0 };
            let error = match attempt(&trial, &umem, index, flags, mac) {
                Ok((budget, tested)) => {
                    let zc_frags = features.map_or(1, |f| f.zc_max_segs).clamp(1, COPY_MODE_FRAGS.into()) as u16;
                    return Ok(Probed {
                        mode: attached.map(|program| program.mode),
                        not_native: attached.map_or_else(|| Some(NOT_RECEIVING.to_owned()), |p| p.not_native.clone()),
                        btf: attached.map(|program| watchable(&program.program)),
                        flags,
                        not_zero_copy: (!driver).then_some(no_zero_copy),
                        not_frags: (!sg).then(|| refused.unwrap_or_else(|| no_frags(config, program_frags))),
                        max_frags: if !sg {
                            1
                        } else if driver {
                            zc_frags
                        } else {
                            COPY_MODE_FRAGS
                        },
                        metadata,
                        budget,
                        tested,
                    });
                }
                Err(error) => error,
            };
            // Drivers that send from a UMEM only beside a program refuse the wakeup then.
            let no_program = driver && attached.is_none() && error.raw_os_error() == Some(libc::ENETDOWN);
            // The error concerns neither zero copy nor fragments.
            if !no_program
                && matches!(
                    error.raw_os_error(),
                    Some(libc::EBUSY | libc::ENODEV | libc::ENETDOWN | libc::EPERM | libc::ENOBUFS)
                )
            {
                return Err(errors::bind_error(config, config.queue.into(), error));
            }
            if sg {
                refused = Some(match driver {
                    true => format!("the driver refuses them without copies: {error}"),
                    false => format!("the kernel refuses them: {error}"),
                });
            }
            if driver {
                let reason = errors::zero_copy_refusal(&error, attached.is_some(), driver_name);
                no_zero_copy = format!("the driver refuses it: {error}{reason}");
            }
            last = error;
        }
    }
    let required = |ability: &str, why| PortError::Required { port: config.port(), ability: ability.to_owned(), why };
    Err(match (config.zero_copy, config.frags) {
        (Want::Require, _) => required("zerocopy", no_zero_copy),
        (_, Want::Require) => required("frags", refused.unwrap_or_else(|| no_frags(config, program_frags))),
        _ => errors::bind_error(config, config.queue.into(), last),
    })
}

fn no_frags(config: &Config, loaded: bool) -> String {
    match config.frags {
        Want::Off => OFF.to_owned(),
        _ if !loaded => "the kernel takes no program for packets in several pieces: Linux 5.18 does".to_owned(),
        _ => "the kernel takes no packets in several pieces: Linux 6.6 does".to_owned(),
    }
}

/// Binds a socket with these flags, and tests it.
fn attempt(
    config: &Config,
    umem: &Umem,
    index: i32,
    flags: u16,
    mac: [u8; 6],
) -> io::Result<(Result<(), String>, &'static str)> {
    let (socket, mut rings) = open(config, umem, None)?;
    let budget =
        socket.set_tx_budget(64).map_err(|_| "the kernel sends 32 frames a call: Linux 6.17 can more".to_owned());
    retry_while_busy(|| socket.bind(index, config.queue.into(), flags, None))?;
    let zero_copy_alone = !config.receives() && flags & bind::ZEROCOPY != 0;
    let tested = match config.self_test {
        SelfTest::Off => "not tried, as asked",
        SelfTest::Wake => {
            wake(&socket, zero_copy_alone)?;
            "the driver can be woken; it was not tried whether it sends (selftest=frame does)"
        }
        SelfTest::Frame => {
            wake(&socket, zero_copy_alone)?;
            send_one(&socket, &mut rings, umem, mac)?;
            "a frame was sent and completed"
        }
    };
    Ok((budget, tested))
}

/// Some drivers refuse a wakeup although the bind worked; they would never send. Without a program
/// some report that as an interface that is down (mlx5).
fn wake(socket: &Socket, zero_copy_alone: bool) -> io::Result<()> {
    match socket.wake_tx() {
        Err(error) if zero_copy_alone && error.raw_os_error() == Some(libc::ENETDOWN) => Err(error),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::EINVAL | libc::EOPNOTSUPP)) => Err(error),
        _ => Ok(()),
    }
}

/// Sends a frame to the interface's own address: a reply of the Ethernet configuration testing
/// protocol (type 0x9000, function 1), which causes no answer.
fn send_one(socket: &Socket, rings: &mut Rings, umem: &Umem, mac: [u8; 6]) -> io::Result<()> {
    let no_buffer = || io::Error::other("no buffer for the test");
    let mut cache = umem.pool.cache(Direction::Tx).map_err(io::Error::other)?;
    let mut bytes = [0u8; 60];
    bytes[..6].copy_from_slice(&mac);
    bytes[6..12].copy_from_slice(&mac);
    bytes[12..18].copy_from_slice(&[0x90, 0, 0, 0, 1, 0]);
    let packet = Packet::copy_from(&mut cache, &bytes).ok_or_else(no_buffer)?;
    let (_, addr) = packet.chunks().next().and_then(|piece| umem.address(&piece)).ok_or_else(no_buffer)?;
    let in_flight = InFlight::<ToDevice>::post(packet);
    rings.tx.write(Desc { addr, len: bytes.len() as u32, options: 0 });
    rings.tx.submit();
    let end = Instant::now() + TIMEOUT;
    while rings.completion.peek(1) == 0 {
        if rings.tx.waiting() > 0 || rings.tx.ring().needs_wakeup() {
            let _ = socket.wake_tx();
        }
        if Instant::now() > end {
            // The frame stays in flight: the socket is closed next, and the pool exists for the
            // trial only.
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the driver took a frame and did not complete it"));
        }
        std::thread::yield_now();
    }
    drop(in_flight.complete());
    Ok(())
}

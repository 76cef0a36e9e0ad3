//! `towpath tee`: what passes a running instance, by its control socket.
//!
//! ```text
//!   towpath tee                         the instance
//!      ── Request::Tee, a line ──────►  attaches
//!      ◄── Answer, a line, then blocks of pcapng
//!      ── shutdown ──────────────────►  detaches, writes the rest and the totals, closes
//! ```

use super::blocks::{Block, Blocks};
use crate::args::TeeArgs;
use crate::control::request::{Answer, LONGEST, Request, TeeRequest};
use crate::control::send;
use crate::units::grouped;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::error::Error;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath::tee::{TeeFormat, interface_totals};

/// Interval at which signals and times are looked at.
const CHECK: Duration = Duration::from_millis(50);
/// How long the instance may take to end the stream.
const PATIENCE: Duration = Duration::from_secs(10);

/// When a watch ends, besides the end of the instance.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) count: Option<u64>,
    pub(super) duration: Option<Duration>,
}

/// What was seen: packets that matched and were missed, as the instance has it, and those that were
/// written here.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    totals: Option<(u64, u64)>,
    written: u64,
    /// The output has no reader any more.
    unread: bool,
}

/// `towpath tee`.
pub(crate) fn watch(args: &TeeArgs) -> Result<ExitCode, Box<dyn Error>> {
    let to_stdout = args.write.as_deref().is_none_or(|path| path == Path::new("-"));
    if to_stdout && io::stdout().is_terminal() {
        return Err("the packets are no text: -w FILE, or | tshark -r -".into());
    }
    let mut options = vec![format!("at={}", if args.drops { "drops" } else { args.at.name() })];
    options.extend(args.snaplen.map(|n| format!("snaplen={n}")));
    options.extend(args.filter.as_ref().map(|filter| format!("filter={filter}")));
    let request = TeeRequest { ports: args.ports.clone(), options: options.join(";") };
    let stream = attach(&args.control, request)?;
    // The file is made once the instance has agreed.
    let (out, format): (Box<dyn Write>, _) = match args.write.as_deref().filter(|_| !to_stdout) {
        None => (Box::new(io::stdout().lock()), TeeFormat::Pcapng),
        Some(path) => {
            let file = File::create(path).map_err(|error| format!("-w {}: {error}", path.display()))?;
            (Box::new(file), TeeFormat::of(path))
        }
    };
    let seen = copy(stream, out, format, Limits { count: args.count, duration: args.duration })?;
    match seen.totals {
        Some((matched, missed)) => {
            let [matched, written, missed] = [matched, seen.written, missed].map(grouped);
            eprintln!("{matched} matched, {written} written, {missed} missed");
            Ok(ExitCode::SUCCESS)
        }
        None if seen.unread => Ok(ExitCode::SUCCESS),
        None => {
            eprintln!("{} written; the instance ended without its totals", grouped(seen.written));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Attaches a tee to the instance that listens at `path`; returns the stream of its blocks.
pub(super) fn attach(path: &Path, request: TeeRequest) -> Result<UnixStream, Box<dyn Error>> {
    let at = path.display();
    let stream = send(path, &Request::Tee(request))?;
    let mut line = Vec::new();
    let mut byte = [0];
    // One byte at a time: what follows the line is not a part of the answer.
    while line.last() != Some(&b'\n') && (line.len() as u64) < LONGEST {
        match (&stream).read(&mut byte) {
            Ok(0) => break,
            Ok(_) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("--control {at}: {error}").into()),
        }
    }
    match serde_json::from_slice(&line) {
        Ok(Answer::Tee(_)) => Ok(stream),
        Ok(Answer::Error(error)) => Err(error.into()),
        _ => Err(format!("--control {at}: no answer that can be read").into()),
    }
}

/// Copies the stream until the limits, a signal or its end.
pub(super) fn copy(
    stream: UnixStream,
    mut out: impl Write,
    format: TeeFormat,
    limits: Limits,
) -> Result<Seen, Box<dyn Error>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, interrupted.clone())?;
        signal_hook::flag::register(signal, interrupted.clone())?;
    }
    stream.set_read_timeout(Some(CHECK))?;
    let end = limits.duration.and_then(|time| Instant::now().checked_add(time));
    let (mut blocks, mut seen) = (Blocks::default(), Seen::default());
    let mut piece = vec![0; 1 << 17];
    let (mut shut, mut has_header) = (None::<Instant>, false);
    let is_full = |seen: &Seen| limits.count.is_some_and(|count| seen.written >= count);
    loop {
        let over =
            interrupted.load(Ordering::Relaxed) || is_full(&seen) || end.is_some_and(|end| Instant::now() >= end);
        if shut.is_none() && (over || seen.unread) {
            stream.shutdown(Shutdown::Write)?;
            shut = Some(Instant::now());
        }
        if shut.is_some_and(|since| since.elapsed() > PATIENCE) {
            return Ok(seen);
        }
        let read = match (&stream).read(&mut piece) {
            Ok(0) => return Ok(seen),
            Ok(n) => n,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            // The instance was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(seen),
            Err(error) => return Err(error.into()),
        };
        blocks.push(&piece[..read]);
        let mut text = Vec::with_capacity(read);
        while let Some(block) = blocks.next()? {
            seen.totals = interface_totals(block.kind, block.body()).or(seen.totals);
            if block.packet().is_some() {
                if is_full(&seen) || seen.unread {
                    continue;
                }
                seen.written += 1;
            }
            if block.interface().is_some() && std::mem::replace(&mut has_header, true) && format == TeeFormat::Pcap {
                continue;
            }
            encode(block, format, &mut text);
        }
        if !seen.unread {
            match out.write_all(&text).and_then(|()| out.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => seen.unread = true,
                written => written.map_err(|error| format!("the packets can't be written: {error}"))?,
            }
        }
    }
}

/// A block as it came, or what pcap has of it.
fn encode(block: Block<'_>, format: TeeFormat, out: &mut Vec<u8>) {
    let mut words = |words: &[u32]| words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    if format == TeeFormat::Pcapng {
        out.extend_from_slice(block.bytes);
    } else if let Some(packet) = block.packet() {
        let seconds = u32::try_from(packet.time / 1_000_000_000).unwrap_or(u32::MAX);
        let rest = (packet.time % 1_000_000_000) as u32;
        words(&[seconds, rest, packet.bytes.len() as u32, packet.original]);
        out.extend_from_slice(packet.bytes);
    } else if let Some((link, snaplen)) = block.interface() {
        words(&[0xa1b2_3c4d, 2 | 4 << 16, 0, 0, snaplen, link]);
    }
}

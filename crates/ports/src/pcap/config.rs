//! Configuration of a capture file.

use super::format::{Format, MAX_CAPTURED};
use crate::kind::{Kind, PortOption};
use crate::uri::Uri;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;
use towpath_packet::port::{Layer, PortError};

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "pcap",
    example: "pcap:file.pcapng",
    what: "a capture file, read or written",
    options: &[
        PortOption::new(
            "timing",
            "fast|original",
            "fast",
            "read: as fast as possible, or with the gaps of the capture",
            "timing=original",
        ),
        PortOption::new("speed", "FACTOR above 0", "1", "read: divides the gaps", "timing=original,speed=2.5"),
        PortOption::new("loop", "PASSES", "1", "read: passes over the file; 0 is no end", "loop=10"),
        PortOption::new("format", "pcap|pcapng", "pcapng for .pcapng, else pcap", "written: format", "format=pcapng"),
        PortOption::new("link", "ethernet|ip", "ethernet", "written: first header of packets", "link=ip"),
        PortOption::new("snaplen", "BYTES, 1–262144", "262144", "written: most bytes of each packet", "snaplen=96"),
        PortOption::new(
            "rotate-size",
            "BYTES",
            "off",
            "written: begin a new file, FILE-00001.pcap and so on, at this size",
            "rotate-size=100M",
        ),
        PortOption::new(
            "rotate-time",
            "TIME",
            "off",
            "written: begin a new file at this age, with the next packet",
            "rotate-time=1h",
        ),
        PortOption::new("files", "1–1M", "all", "written: files to keep", "rotate-size=100M,files=10"),
        PortOption::new(
            "flush",
            "TIME",
            "100ms",
            "written: longest time before gathered packets are written",
            "flush=1s",
        ),
        PortOption::new("interface", "NAME", "towpath", "written: name of the interface in pcapng", "interface=eth1"),
    ],
};

/// The side of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Packets are read from the file.
    Ingress,
    /// Packets are written to the file.
    Egress,
}

/// Configuration of a capture port.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The file; also a named pipe, or `/dev/stdin` and `/dev/stdout`.
    pub path: PathBuf,
    /// Read or write.
    pub mode: Mode,
}

/// Read or write, each with its options.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// The file is read.
    Read(ReadConfig),
    /// The file is written; an existing one is overwritten.
    Write(WriteConfig),
}

/// The times at which the packets of a file are received.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Timing {
    /// As fast as possible.
    #[default]
    Fast,
    /// With the gaps of the capture.
    Original {
        /// The gaps are divided by this; a finite number above 0.
        speed: f64,
    },
}

/// Options of a file that is read.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ReadConfig {
    /// The times of packets.
    pub timing: Timing,
    /// Passes over the file; `None` for no end.
    pub loops: Option<NonZeroU32>,
}

impl Default for ReadConfig {
    /// One pass, as fast as possible.
    fn default() -> ReadConfig {
        ReadConfig { timing: Timing::Fast, loops: Some(NonZeroU32::MIN) }
    }
}

/// Options of a file that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteConfig {
    /// The format; `None` for the one of the file's name: pcapng for `.pcapng` and `.ntar`, else
    /// pcap.
    pub format: Option<Format>,
    /// The first header of packets: Ethernet or IP.
    pub layer: Layer,
    /// Most bytes of each packet, 1 to [`MAX_CAPTURED`].
    pub snaplen: u32,
    /// Largest size of a file; then a new one begins.
    pub rotate_size: Option<u64>,
    /// Age of a file after which the next packet begins a new one.
    pub rotate_time: Option<Duration>,
    /// The number of files to keep; `None` for all.
    pub files: Option<u32>,
    /// Longest time before gathered packets are written.
    pub flush: Duration,
    /// Name of the interface, noted in pcapng.
    pub interface: String,
}

impl Default for WriteConfig {
    /// Whole Ethernet packets to one file, written every 100 milliseconds at least.
    fn default() -> WriteConfig {
        WriteConfig {
            format: None,
            layer: Layer::Ethernet,
            snaplen: MAX_CAPTURED,
            rotate_size: None,
            rotate_time: None,
            files: None,
            flush: Duration::from_millis(100),
            interface: "towpath".to_owned(),
        }
    }
}

impl Config {
    /// Reads a file, in one pass, as fast as possible.
    pub fn read(path: impl Into<PathBuf>) -> Config {
        Config { path: path.into(), mode: Mode::Read(ReadConfig::default()) }
    }

    /// Writes a file.
    pub fn write(path: impl Into<PathBuf>) -> Config {
        Config { path: path.into(), mode: Mode::Write(WriteConfig::default()) }
    }

    /// Parses `pcap:FILE?…`; see the [module](super) for the options of each role.
    ///
    /// # Errors
    /// [`PortError::Option`] for an invalid value or an option that is unknown in this role;
    /// [`PortError::Input`] without a file.
    pub fn from_uri(uri: &Uri, role: Role) -> Result<Config, PortError> {
        if uri.target().is_empty() {
            return Err(uri.error("a file is missing: pcap:FILE"));
        }
        let mut o = uri.options(KIND.options);
        let mode = match role {
            Role::Ingress => {
                let original = o.choice("timing", &[("fast", false), ("original", true)])?.unwrap_or(false);
                let speed = match o.text("speed") {
                    None => 1.0,
                    Some(text) => match text.parse::<f64>() {
                        Ok(speed) if speed.is_finite() && speed > 0.0 && original => speed,
                        _ => return Err(o.error("speed", text, "must be a number above 0, and timing=original")),
                    },
                };
                let loops = o.number("loop", 0..=u64::from(u32::MAX))?.unwrap_or(1);
                let timing = if original { Timing::Original { speed } } else { Timing::Fast };
                Mode::Read(ReadConfig { timing, loops: NonZeroU32::new(loops as u32) })
            }
            Role::Egress => {
                let default = WriteConfig::default();
                let layer = o.choice("link", &[("ethernet", Layer::Ethernet), ("ip", Layer::Ip)])?;
                let files = o.number("files", 1..=1_000_000)?.map(|n| n as u32);
                let write = WriteConfig {
                    format: o.choice("format", &[("pcap", Format::Pcap), ("pcapng", Format::Pcapng)])?,
                    layer: layer.unwrap_or(default.layer),
                    snaplen: o.number("snaplen", 1..=u64::from(MAX_CAPTURED))?.map_or(default.snaplen, |n| n as u32),
                    rotate_size: o.number("rotate-size", 1..=u64::MAX)?,
                    rotate_time: o.duration("rotate-time")?,
                    files,
                    flush: o.duration("flush")?.unwrap_or(default.flush),
                    interface: o.text("interface").unwrap_or(default.interface),
                };
                if let Some(files) = files.filter(|_| !write.rotates()) {
                    return Err(o.error("files", files, "needs rotate-size or rotate-time"));
                }
                Mode::Write(write)
            }
        };
        o.finish()?;
        Ok(Config { path: PathBuf::from(uri.target()), mode })
    }
}

impl WriteConfig {
    /// Whether there may be several files.
    pub(super) fn rotates(&self) -> bool {
        self.rotate_size.is_some() || self.rotate_time.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str, role: Role) -> Result<Config, String> {
        Config::from_uri(&text.parse().unwrap(), role).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_is_read() {
        let read = config("pcap:/tmp/a.pcap?timing=original,speed=2.5,loop=0", Role::Ingress).unwrap();
        let mode = Mode::Read(ReadConfig { timing: Timing::Original { speed: 2.5 }, loops: None });
        assert_eq!(read, Config { path: "/tmp/a.pcap".into(), mode });
        assert_eq!(config("pcap:a", Role::Ingress).unwrap(), Config::read("a"));

        let text = "pcap:a?format=pcapng,link=ip,snaplen=96,rotate-size=1M,rotate-time=5s,files=3,flush=1s,interface=x";
        let write = WriteConfig {
            format: Some(Format::Pcapng),
            layer: Layer::Ip,
            snaplen: 96,
            rotate_size: Some(1_000_000),
            rotate_time: Some(Duration::from_secs(5)),
            files: Some(3),
            flush: Duration::from_secs(1),
            interface: "x".to_owned(),
        };
        assert_eq!(config(text, Role::Egress).unwrap().mode, Mode::Write(write));
        assert_eq!(config("pcap:a", Role::Egress).unwrap(), Config::write("a"));
    }

    #[test]
    fn what_cannot_be_is_named_with_its_rule() {
        for (text, role, part) in [
            ("pcap:", Role::Ingress, "a file is missing"),
            ("pcap:a?speed=2", Role::Ingress, "timing=original"),
            ("pcap:a?timing=original,speed=0", Role::Ingress, "speed=0: must be a number above 0"),
            ("pcap:a?loop=-1", Role::Ingress, "loop=-1"),
            ("pcap:a?snaplen=10", Role::Ingress, "snaplen=10: no such option; there are: loop, speed, timing"),
            ("pcap:a?snaplen=0", Role::Egress, "snaplen=0: must be a whole number from 1 to 262144"),
            ("pcap:a?files=3", Role::Egress, "files=3: needs rotate-size or rotate-time"),
            ("pcap:a?format=snoop", Role::Egress, "must be one of pcap, pcapng"),
        ] {
            let error = config(text, role).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

//! Configuration of a capture file.

use super::edit::Edits;
use super::format::{Format, MAX_CAPTURED};
use super::timing::Timing;
use crate::kind::{Kind, PortOption};
use crate::uri::{Uri, parse_number};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
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
        PortOption::new("speed", "FACTOR above 0", "1", "read: divides the gaps of the capture", "speed=2.5"),
        PortOption::new("pps", "PACKETS per second", "off", "read: packets at this rate", "pps=10k"),
        PortOption::new("mbps", "MBIT/S", "off", "read: frames at this rate, their bytes counted", "mbps=0.5"),
        PortOption::new("loop", "PASSES", "1", "read: passes over the file; 0 or inf is no end", "loop=10"),
        PortOption::new(
            "truncated",
            "send|skip|pad",
            "send",
            "read: packets that the capture cut: sent as captured, left out, or padded with zeros",
            "truncated=skip",
        ),
        PortOption::new("smac", "MAC", "as captured", "read: sets the Ethernet source", "smac=02:00:00:00:00:01"),
        PortOption::new("dmac", "MAC", "as captured", "read: sets the Ethernet destination", "dmac=02:00:00:00:00:02"),
        PortOption::new(
            "vlan",
            "ID 1–4094|strip",
            "as captured",
            "read: sets the ID of the outer tag, which is added where there is none, or removes it",
            "vlan=100",
        ),
        PortOption::new(
            "src",
            "OLD/LEN:NEW, joined by +",
            "as captured",
            "read: maps a prefix of IPv4 or IPv6 source addresses",
            "src=10.0.0.0/8:172.16.0.0+fd00::/64:fd01::",
        ),
        PortOption::new(
            "dst",
            "OLD/LEN:NEW, joined by +",
            "as captured",
            "read: maps a prefix of IPv4 or IPv6 destination addresses",
            "dst=10.0.0.0/8:172.16.0.0",
        ),
        PortOption::new(
            "sport",
            "OLD:NEW, joined by +",
            "as captured",
            "read: maps TCP and UDP source ports",
            "sport=80:8080",
        ),
        PortOption::new(
            "dport",
            "OLD:NEW, joined by +",
            "as captured",
            "read: maps TCP and UDP destination ports",
            "dport=80:8080+53:5353",
        ),
        PortOption::new("format", "pcap|pcapng", "pcapng for .pcapng, else pcap", "written: format", "format=pcapng"),
        PortOption::new(
            "compress",
            "none|gzip|zstd",
            "by .gz and .zst",
            "written: compression; what is read is recognised by its first bytes, also xz",
            "compress=zstd",
        ),
        PortOption::new(
            "link",
            "ethernet|ip",
            "ethernet; read: the egress's",
            "first header of packets; read: what frames of other link types become",
            "link=ip",
        ),
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
    /// The file; also a named pipe, or `-` for standard input and standard output.
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

/// What becomes of a packet of which the capture has the first bytes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncated {
    /// It is sent as it was captured.
    #[default]
    Send,
    /// It is left out, and counted.
    Skip,
    /// Zeros stand for the missing bytes.
    Pad,
}

/// Options of a file that is read.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReadConfig {
    /// The times of packets.
    pub timing: Timing,
    /// Passes over the file; `None` for no end.
    pub loops: Option<NonZeroU32>,
    /// What becomes of packets that the capture cut.
    pub truncated: Truncated,
    /// What packets become: Ethernet frames or IP packets; `None` for what the egress takes, or as
    /// they were captured.
    pub layer: Option<Layer>,
    /// What is changed in packets.
    pub edits: Edits,
}

impl Default for ReadConfig {
    /// One pass, as fast as possible.
    fn default() -> ReadConfig {
        ReadConfig {
            timing: Timing::Fast,
            loops: Some(NonZeroU32::MIN),
            truncated: Truncated::Send,
            layer: None,
            edits: Edits::default(),
        }
    }
}

/// Options of a file that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteConfig {
    /// The format; `None` for the one of the file's name: pcapng for `.pcapng` and `.ntar`, else
    /// pcap.
    pub format: Option<Format>,
    /// The compression; `None` for the one of the file's name: `.gz` and `.zst`.
    pub compress: Option<Compress>,
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

/// The compression of a file that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compress {
    /// None.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

impl Compress {
    /// The one that a file's name shows.
    pub(super) fn from_name(path: &Path) -> Compress {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Compress::Gzip,
            Some("zst") => Compress::Zstd,
            _ => Compress::None,
        }
    }
}

impl Default for WriteConfig {
    /// Whole Ethernet packets to one file, written every 100 milliseconds at least.
    fn default() -> WriteConfig {
        WriteConfig {
            format: None,
            compress: None,
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
                let timing = Timing::of(&mut o)?;
                let loops = match o.text("loop") {
                    None => Some(NonZeroU32::MIN),
                    Some(text) if text == "inf" => None,
                    Some(text) => match parse_number(&text).and_then(|n| u32::try_from(n).ok()) {
                        Some(n) => NonZeroU32::new(n),
                        None => {
                            return Err(o.error("loop", text, "must be a whole number from 0 to 4294967295, or inf"));
                        }
                    },
                };
                let truncated = [("send", Truncated::Send), ("skip", Truncated::Skip), ("pad", Truncated::Pad)];
                let truncated = o.choice("truncated", &truncated)?.unwrap_or_default();
                let layer = o.choice("link", &[("ethernet", Layer::Ethernet), ("ip", Layer::Ip)])?;
                let edits = Edits::of(&mut o)?;
                if let Some(name) = edits.needs_ethernet().filter(|_| layer == Some(Layer::Ip)) {
                    return Err(o.error(name, "…", "needs an Ethernet header: leave out link=ip"));
                }
                Mode::Read(ReadConfig { timing, loops, truncated, layer, edits })
            }
            Role::Egress => {
                let default = WriteConfig::default();
                let layer = o.choice("link", &[("ethernet", Layer::Ethernet), ("ip", Layer::Ip)])?;
                let files = o.number("files", 1..=1_000_000)?.map(|n| n as u32);
                let compress = [("none", Compress::None), ("gzip", Compress::Gzip), ("zstd", Compress::Zstd)];
                let write = WriteConfig {
                    compress: o.choice("compress", &compress)?,
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
                if uri.target() == "-" && write.rotates() {
                    let (name, value) =
                        if write.rotate_size.is_some() { ("rotate-size", "…") } else { ("rotate-time", "…") };
                    return Err(o.error(name, value, "needs a file: standard output has no next one"));
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
    use super::super::edit::{PortMap, PrefixMap, VlanEdit};
    use super::*;

    fn config(text: &str, role: Role) -> Result<Config, String> {
        Config::from_uri(&text.parse().unwrap(), role).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_is_read() {
        let read = config("pcap:/tmp/a.pcap?timing=original,speed=2.5,loop=0", Role::Ingress).unwrap();
        let original = Timing::Original { speed: 2.5 };
        let mode = Mode::Read(ReadConfig { timing: original, loops: None, ..ReadConfig::default() });
        assert_eq!(read, Config { path: "/tmp/a.pcap".into(), mode });
        assert_eq!(config("pcap:a", Role::Ingress).unwrap(), Config::read("a"));

        let edited = "pcap:a?truncated=pad,link=ethernet,smac=02:00:00:00:00:01,dmac=02:00:00:00:00:02,vlan=strip,\
                      src=10.0.0.0/8:172.16.0.0+fd00::/64:fd01::,dst=::/0:::1,sport=80:8080,dport=1:2+3:4";
        let map = |old: &str, len, new: &str| PrefixMap::new(old.parse().unwrap(), len, new.parse().unwrap()).unwrap();
        let edits = Edits {
            smac: Some([2, 0, 0, 0, 0, 1]),
            dmac: Some([2, 0, 0, 0, 0, 2]),
            vlan: Some(VlanEdit::Strip),
            src: vec![map("10.0.0.0", 8, "172.16.0.0"), map("fd00::", 64, "fd01::")],
            dst: vec![map("::", 0, "::1")],
            sport: vec![PortMap { old: 80, new: 8080 }],
            dport: vec![PortMap { old: 1, new: 2 }, PortMap { old: 3, new: 4 }],
        };
        let read =
            ReadConfig { truncated: Truncated::Pad, layer: Some(Layer::Ethernet), edits, ..ReadConfig::default() };
        assert_eq!(config(edited, Role::Ingress).unwrap().mode, Mode::Read(read));
        for (text, timing) in [
            ("speed=2", Timing::Original { speed: 2.0 }),
            ("timing=original", Timing::Original { speed: 1.0 }),
            ("timing=fast", Timing::Fast),
            ("pps=10k", Timing::PacketRate(10_000)),
            ("mbps=0.5", Timing::BitRate(500_000)),
        ] {
            let mode = Mode::Read(ReadConfig { timing, ..ReadConfig::default() });
            assert_eq!(config(&format!("pcap:a?{text}"), Role::Ingress).unwrap().mode, mode);
        }

        let text = "pcap:a?compress=zstd,format=pcapng,link=ip,snaplen=96,rotate-size=1M,rotate-time=5s,files=3,flush=1s,interface=x";
        let write = WriteConfig {
            format: Some(Format::Pcapng),
            compress: Some(Compress::Zstd),
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
            ("pcap:a?timing=original,speed=0", Role::Ingress, "speed=0: must be a number above 0"),
            ("pcap:a?timing=fast,speed=2", Role::Ingress, "speed=2: excludes timing: give one of"),
            ("pcap:a?pps=5,mbps=2", Role::Ingress, "mbps=2: excludes pps: give one of"),
            ("pcap:a?timing=original,pps=5", Role::Ingress, "pps=5: excludes timing"),
            ("pcap:a?mbps=0", Role::Ingress, "mbps=0: must be a number of Mbit/s"),
            ("pcap:a?vlan=4095", Role::Ingress, "vlan=4095: must be strip, or an ID"),
            ("pcap:a?smac=1:2", Role::Ingress, "smac=1:2: must be six bytes"),
            ("pcap:a?src=10.0.0.0/33:1.1.1.1", Role::Ingress, "must be OLD/LEN:NEW"),
            ("pcap:a?dst=10.0.0.0/8:fd00::", Role::Ingress, "two addresses of one version"),
            ("pcap:a?dport=80", Role::Ingress, "dport=80: must be OLD:NEW"),
            ("pcap:a?link=ip,vlan=5", Role::Ingress, "needs an Ethernet header"),
            ("pcap:-?rotate-size=1M", Role::Egress, "standard output has no next one"),
            ("pcap:a?loop=-1", Role::Ingress, "loop=-1"),
            ("pcap:a?snaplen=10", Role::Ingress, "snaplen=10: no such option; there are: dmac, dport"),
            ("pcap:a?snaplen=0", Role::Egress, "snaplen=0: must be a whole number from 1 to 262144"),
            ("pcap:a?files=3", Role::Egress, "files=3: needs rotate-size or rotate-time"),
            ("pcap:a?format=snoop", Role::Egress, "must be one of pcap, pcapng"),
        ] {
            let error = config(text, role).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

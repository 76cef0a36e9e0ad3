//! The configuration of the port, and its URI.

use super::limits::{Claim, Limits};
use super::source::Source;
use crate::kind::{GID, Kind, MODE, PortOption, UID};
use crate::uri::{Options, Uri};
use std::path::PathBuf;
use towpath_packet::port::PortError;

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "sock",
    example: "sock:/run/towpath.sock",
    what: "applications, by rings in memory that they share",
    options: &[
        MODE,
        UID,
        GID,
        PortOption::new("sessions", "1–1024", "64", "sessions at a time", "sessions=8"),
        PortOption::new(
            "user-sessions",
            "1–sessions",
            "half; all if mode admits one user",
            "sessions of one user",
            "user-sessions=4",
        ),
        PortOption::new("umem", "BYTES, 4096–16Gi", "64 MiB", "memory that one application may share", "umem=256M"),
        PortOption::new(
            "memory",
            "BYTES, 4096–1Ti",
            "a quarter of what there is, at most 4 GiB",
            "memory that all applications together may share",
            "memory=1G",
        ),
        PortOption::new(
            "user-memory",
            "BYTES, 4096–memory",
            "half; all if mode admits one user",
            "memory that the applications of one user may share",
            "user-memory=256M",
        ),
        PortOption::new(
            "metadata",
            "BYTES, 4096–1Ti",
            "an eighth of what there is, at most 128 MiB",
            "memory that the port allocates for all sessions",
            "metadata=64M",
        ),
        PortOption::new(
            "user-metadata",
            "BYTES, 4096–metadata",
            "half; all if mode admits one user",
            "memory that the port allocates for sessions of one user",
            "user-metadata=16M",
        ),
        PortOption::new(
            "budget",
            "BYTES, 4096–1Gi",
            "4 MiB",
            "bytes that an application may have in flight",
            "budget=1M",
        ),
        PortOption::new("queues", "1–64", "8", "queues at most", "queues=4"),
        PortOption::new("rules", "1–1024", "64", "rules of one application", "rules=16"),
        PortOption::new("all-rules", "1–16384", "512", "rules of all applications together", "all-rules=1024"),
        PortOption::new(
            "user-rules",
            "1–all-rules",
            "half; all if mode admits one user",
            "rules of the applications of one user",
            "user-rules=64",
        ),
        PortOption::new(
            "allow",
            "USER:MATCH, several with +",
            "anything",
            "packets that a user's applications may ask for",
            "allow=1000:udp dport 5000-5999",
        ),
        PortOption::new(
            "source",
            "USER:MAC ADDRESS…, several with +",
            "any",
            "source addresses that a user's applications may send from",
            "source=1000:02:00:00:00:00:01 10.0.0.2",
        ),
        PortOption::new("mtu", "BYTES, 68–65000", "1500", "longest packet without its Ethernet header", "mtu=9000"),
        PortOption::new(
            "tx",
            "auto|page|copy",
            "auto",
            "how frames become packets: as the egress needs them, without a copy, or copied",
            "tx=copy",
        ),
    ],
};

/// How frames of applications become packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transmit {
    /// As the egress needs them: pages if it takes fragments.
    #[default]
    Auto,
    /// Pages; an egress that needs linear bytes copies them itself.
    Page,
    /// Copies.
    Copy,
}

/// The configuration of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The path of the listening socket.
    pub path: PathBuf,
    /// Permissions of the socket's file.
    pub mode: u32,
    /// User of the file; `None` for the user of this process.
    pub uid: Option<u32>,
    /// Group of the file; `None` for the group of this process.
    pub gid: Option<u32>,
    /// Sessions at a time, 1 to 1024.
    pub sessions: u16,
    /// Sessions of one user; `None` for half of all, or for all if the file's permissions admit its
    /// owner alone. The limits of a user below have the same default.
    pub user_sessions: Option<u16>,
    /// Maximum bytes of memory that an application may share.
    pub umem: u64,
    /// Bytes of memory that all applications together may share; `None` for a quarter of what this
    /// process may use, at most 4 GiB.
    pub memory: Option<u64>,
    /// Bytes of memory that the applications of one user may share.
    pub user_memory: Option<u64>,
    /// Bytes that the port allocates for sessions and their rings, all together; `None` for an
    /// eighth of what this process may use, at most 128 MiB.
    pub metadata: Option<u64>,
    /// Bytes that the port allocates for sessions of one user.
    pub user_metadata: Option<u64>,
    /// Maximum bytes of chunks that an application may have in flight.
    pub budget: u64,
    /// Maximum number of queues, 1 to 64.
    pub queues: u16,
    /// Rules that an application may have, 1 to 1024. Every packet is compared with the rules of
    /// all applications.
    pub rules: u16,
    /// Rules that all applications together may have, 1 to 16384.
    pub all_rules: u16,
    /// Rules that the applications of one user may have.
    pub user_rules: Option<u16>,
    /// The packets that users may ask for; `None` for any.
    pub allow: Option<Vec<Claim>>,
    /// The source addresses that users may send from; `None` for any.
    pub source: Option<Vec<Source>>,
    /// Longest packet without its Ethernet header.
    pub mtu: u32,
    /// How frames of applications become packets.
    pub transmit: Transmit,
}

impl Default for Config {
    /// 64 sessions of the same user, 64 MiB each, 4 MiB in flight; 64 rules each, 512 in all; up to
    /// 8 queues. What all may share, and what the port allocates for them, depends on the memory
    /// that this process may use.
    fn default() -> Config {
        Config {
            path: PathBuf::new(),
            mode: 0o600,
            uid: None,
            gid: None,
            sessions: 64,
            user_sessions: None,
            umem: 64 << 20,
            memory: None,
            user_memory: None,
            metadata: None,
            user_metadata: None,
            budget: 4 << 20,
            queues: 8,
            rules: 64,
            all_rules: 512,
            user_rules: None,
            allow: None,
            source: None,
            mtu: 1500,
            transmit: Transmit::Auto,
        }
    }
}

impl Config {
    /// The default configuration of a port at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Config {
        Config { path: path.into(), ..Config::default() }
    }

    /// Reads `sock:PATH?…`.
    ///
    /// # Errors
    /// [`PortError::Option`] for a value that breaks its rule, or an unknown option;
    /// [`PortError::Input`] without a path.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        if uri.target().is_empty() {
            return Err(uri.error("a path is needed: sock:/run/towpath.sock"));
        }
        let (mut options, default) = (uri.options(KIND.options), Config::default());
        let mode = match options.text("mode") {
            None => default.mode,
            Some(text) => u32::from_str_radix(&text, 8)
                .ok()
                .filter(|mode| *mode <= 0o777)
                .ok_or_else(|| options.error("mode", &text, "must be permissions in octal, such as 660"))?,
        };
        let id = 0..=u64::from(u32::MAX - 1);
        let uid = options.number("uid", id.clone())?.map(|id| id as u32);
        let gid = options.number("gid", id)?.map(|id| id as u32);
        let sessions = options.number("sessions", 1..=1024)?.map_or(default.sessions, |n| n as u16);
        let umem = options.number("umem", 4096..=1 << 34)?.unwrap_or(default.umem);
        let budget = options.number("budget", 4096..=1 << 30)?.unwrap_or(default.budget);
        let queues = options.number("queues", 1..=64)?.map_or(default.queues, |n| n as u16);
        let rules = options.number("rules", 1..=1024)?.map_or(default.rules, |n| n as u16);
        let all_rules = options.number("all-rules", 1..=16384)?.map_or(default.all_rules, |n| n as u16);
        let mtu = options.number("mtu", 68..=65_000)?.map_or(default.mtu, |n| n as u32);
        let one = 1..=u64::from(sessions);
        let user_sessions = options.number("user-sessions", one)?.map(|n| n as u16);
        let user_rules = options.number("user-rules", 1..=u64::from(all_rules))?.map(|n| n as u16);
        let [memory, user_memory] = bytes(&mut options, ["memory", "user-memory"])?;
        let [metadata, user_metadata] = bytes(&mut options, ["metadata", "user-metadata"])?;
        let (allow, source) = (Claim::from_options(&mut options)?, Source::from_options(&mut options)?);
        let ways = [("auto", Transmit::Auto), ("page", Transmit::Page), ("copy", Transmit::Copy)];
        let transmit = options.choice("tx", &ways)?.unwrap_or_default();
        options.finish()?;
        let path = uri.target().into();
        Ok(Config {
            path,
            mode,
            uid,
            gid,
            sessions,
            user_sessions,
            umem,
            memory,
            user_memory,
            metadata,
            user_metadata,
            budget,
            queues,
            rules,
            all_rules,
            user_rules,
            allow,
            source,
            mtu,
            transmit,
        })
    }

    /// The limits, with their defaults for this process.
    pub(super) fn limits(&self) -> Limits {
        Limits::of(self)
    }

    /// Whether the file's permissions admit its owner alone.
    pub(super) fn admits_owner_alone(&self) -> bool {
        self.mode & 0o077 == 0
    }

    /// The port's name.
    pub(super) fn port(&self) -> String {
        format!("sock:{}", self.path.display())
    }
}

/// A limit in bytes for all, and one for a user, which is not larger.
fn bytes(options: &mut Options, [all, user]: [&'static str; 2]) -> Result<[Option<u64>; 2], PortError> {
    let most = options.number(all, 4096..=1 << 40)?;
    Ok([most, options.number(user, 4096..=most.unwrap_or(1 << 40))?])
}

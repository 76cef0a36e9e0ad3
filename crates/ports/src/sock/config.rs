//! The configuration of the port, and its URI.

use crate::uri::Uri;
use std::path::PathBuf;
use towpath_packet::port::PortError;

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
    /// Maximum bytes of memory that an application may share.
    pub umem: u64,
    /// Maximum bytes of chunks that an application may have in flight.
    pub budget: u64,
    /// Maximum number of queues, 1 to 64.
    pub queues: u16,
    /// Rules that an application may have, 1 to 1024. Every packet is compared with the rules of
    /// all applications.
    pub rules: u16,
    /// Rules that all applications together may have, 1 to 16384.
    pub all_rules: u16,
    /// Longest packet without its Ethernet header.
    pub mtu: u32,
    /// How frames of applications become packets.
    pub transmit: Transmit,
}

impl Default for Config {
    /// 64 sessions of the same user, 64 MiB each, 4 MiB in flight; 64 rules each, 512 in all; up to
    /// 8 queues.
    fn default() -> Config {
        Config {
            path: PathBuf::new(),
            mode: 0o600,
            uid: None,
            gid: None,
            sessions: 64,
            umem: 64 << 20,
            budget: 4 << 20,
            queues: 8,
            rules: 64,
            all_rules: 512,
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
        let (mut options, default) = (uri.options(), Config::default());
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
        let ways = [("auto", Transmit::Auto), ("page", Transmit::Page), ("copy", Transmit::Copy)];
        let transmit = options.choice("tx", &ways)?.unwrap_or_default();
        options.finish()?;
        let path = uri.target().into();
        Ok(Config { path, mode, uid, gid, sessions, umem, budget, queues, rules, all_rules, mtu, transmit })
    }

    /// The port's name.
    pub(super) fn port(&self) -> String {
        format!("sock:{}", self.path.display())
    }
}

//! The configuration of the port, and its URI.

use crate::kind::{GID, Kind, MODE, PortOption, SWITCH, UID};
use crate::uri::Uri;
use std::path::PathBuf;
use towpath_packet::port::PortError;

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "vhost",
    example: "vhost:/run/towpath/vm0.sock",
    what: "the network device of a virtual machine, by vhost-user",
    options: &[
        PortOption::new(
            "server",
            SWITCH,
            "on",
            "listen; off: the front end listens, and the port connects",
            "server=off",
        ),
        MODE,
        UID,
        GID,
        PortOption::new("queues", "1–8", "1", "queue pairs at most", "queues=4"),
        PortOption::new("queue-size", "64–4096", "1024", "descriptors of a ring at most", "queue-size=512"),
        PortOption::new("mtu", "BYTES, 68–65535", "the guest's choice", "MTU that the guest is given", "mtu=9000"),
        PortOption::new("csum", SWITCH, "on", "offer partial checksums", "csum=off"),
        PortOption::new("tso", SWITCH, "on", "offer TCP super-packets; needs csum", "tso=off"),
        PortOption::new("uso", SWITCH, "on", "offer UDP super-packets; needs csum", "uso=off"),
        PortOption::new("mergeable", SWITCH, "on", "received packets may fill several buffers", "mergeable=off"),
        PortOption::new("packed", SWITCH, "on", "offer packed rings", "packed=off"),
        PortOption::new(
            "in-order",
            SWITCH,
            "on",
            "use buffers in the order in which they were made available",
            "in-order=off",
        ),
        PortOption::new("event-idx", SWITCH, "on", "request notifications by position", "event-idx=off"),
        PortOption::new("indirect", SWITCH, "on", "offer tables of descriptors", "indirect=off"),
    ],
};

/// Most queue pairs of a device.
const MAX_QUEUES: u64 = 8;
/// Most descriptors of a ring that the port accepts at all.
const MAX_QUEUE_SIZE: u64 = 4096;

/// The configuration of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The path of the socket.
    pub path: PathBuf,
    /// The port listens, and the front end connects; else the other way round.
    pub server: bool,
    /// Permissions of the listening socket's file.
    pub mode: u32,
    /// User of the file; `None` for the user of this process.
    pub uid: Option<u32>,
    /// Group of the file; `None` for the group of this process.
    pub gid: Option<u32>,
    /// Maximum number of queue pairs, 1 to 8.
    pub queues: u16,
    /// Maximum number of descriptors of a ring, 64 to 4096.
    pub queue_size: u16,
    /// The MTU that the guest is given, 68 to 65535; `None` to leave it to the guest.
    pub mtu: Option<u16>,
    /// Partial checksums, in both directions.
    pub csum: bool,
    /// TCP super-packets, in both directions. Needs `csum`.
    pub tso: bool,
    /// UDP super-packets, in both directions. Needs `csum`.
    pub uso: bool,
    /// Received packets may fill several buffers of the guest.
    pub mergeable: bool,
    /// Packed rings.
    pub packed: bool,
    /// Buffers are used in the order in which they were made available.
    pub in_order: bool,
    /// Notifications are requested by position.
    pub event_idx: bool,
    /// Tables of descriptors.
    pub indirect: bool,
}

impl Default for Config {
    /// The port listens, for its own user alone. One queue pair of up to 1024 descriptors; all
    /// features are offered.
    fn default() -> Config {
        Config {
            path: PathBuf::new(),
            server: true,
            mode: 0o600,
            uid: None,
            gid: None,
            queues: 1,
            queue_size: 1024,
            mtu: None,
            csum: true,
            tso: true,
            uso: true,
            mergeable: true,
            packed: true,
            in_order: true,
            event_idx: true,
            indirect: true,
        }
    }
}

impl Config {
    /// The default configuration of a port at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Config {
        Config { path: path.into(), ..Config::default() }
    }

    /// Reads `vhost:PATH?…`.
    ///
    /// # Errors
    /// [`PortError::Option`] for a value that breaks its rule, or an unknown option;
    /// [`PortError::Input`] without a path.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        if uri.target().is_empty() {
            return Err(uri.error("a path is needed: vhost:/run/towpath/vm0.sock"));
        }
        let (mut options, default) = (uri.options(KIND.options), Config::new(uri.target()));
        let server = options.switch("server")?.unwrap_or(default.server);
        // A socket that the front end listens at has the front end's permissions.
        let (no_mode, listens) = (["mode", "uid", "gid"], "must be left out with server=off: the front end listens");
        let mut permission = |name: &'static str| match options.text(name) {
            Some(text) if !server => Err(options.error(name, text, listens)),
            text => Ok(text),
        };
        let [mode, uid, gid] = no_mode.map(&mut permission);
        let mode = mode?.map_or(Ok(default.mode), |text| {
            let mode = u32::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o777);
            mode.ok_or_else(|| options.error("mode", &text, "must be permissions in octal, such as 660"))
        })?;
        let id = |name, text: Result<Option<String>, PortError>| {
            let Some(text) = text? else { return Ok(None) };
            let id = text.parse().ok().filter(|id| *id < u32::MAX);
            id.map(Some).ok_or_else(|| options.error(name, text, "must be a number from 0 to 4294967294"))
        };
        let (uid, gid) = (id("uid", uid)?, id("gid", gid)?);
        let queues = options.number("queues", 1..=MAX_QUEUES)?.map_or(default.queues, |n| n as u16);
        let sizes = 64..=MAX_QUEUE_SIZE;
        let queue_size = options.number("queue-size", sizes)?.map_or(default.queue_size, |n| n as u16);
        let mtu = options.number("mtu", 68..=65_535)?.map(|n| n as u16);
        let mut switch = |name, default| options.switch(name).map(|on| on.unwrap_or(default));
        let config = Config {
            server,
            mode,
            uid,
            gid,
            queues,
            queue_size,
            mtu,
            csum: switch("csum", default.csum)?,
            tso: switch("tso", default.tso)?,
            uso: switch("uso", default.uso)?,
            mergeable: switch("mergeable", default.mergeable)?,
            packed: switch("packed", default.packed)?,
            in_order: switch("in-order", default.in_order)?,
            event_idx: switch("event-idx", default.event_idx)?,
            indirect: switch("indirect", default.indirect)?,
            path: default.path,
        };
        options.finish()?;
        Ok(config)
    }

    /// Whether front ends are processes of one user.
    pub(super) fn admits_owner_alone(&self) -> bool {
        self.server && self.mode & 0o077 == 0
    }

    /// The port's name.
    pub(super) fn port(&self) -> String {
        format!("vhost:{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, PortError> {
        Config::from_uri(&text.parse().unwrap())
    }

    #[test]
    fn every_option_reaches_its_field() {
        let text = "vhost:/run/a?mode=660,uid=7,gid=8,queues=2,queue-size=256,mtu=9000,csum=off,tso=off,uso=off,\
                    mergeable=off,packed=off,in-order=off,event-idx=off,indirect=off";
        let expected = Config {
            path: "/run/a".into(),
            server: true,
            mode: 0o660,
            uid: Some(7),
            gid: Some(8),
            queues: 2,
            queue_size: 256,
            mtu: Some(9000),
            csum: false,
            tso: false,
            uso: false,
            mergeable: false,
            packed: false,
            in_order: false,
            event_idx: false,
            indirect: false,
        };
        assert_eq!(config(text).unwrap(), expected);
        assert_eq!(config("vhost:/run/a").unwrap(), Config::new("/run/a"));
        assert!(!config("vhost:/run/a?server=off").unwrap().server);
    }

    #[test]
    fn an_invalid_value_is_named_with_its_rule() {
        let cases = [
            ("vhost:", "a path is needed"),
            ("vhost:a?queues=0", "from 1 to 8"),
            ("vhost:a?queues=9", "from 1 to 8"),
            ("vhost:a?queue-size=8192", "from 64 to 4096"),
            ("vhost:a?mtu=67", "from 68 to 65535"),
            ("vhost:a?mode=999", "octal"),
            ("vhost:a?uid=x", "a number from 0"),
            ("vhost:a?server=off,mode=600", "the front end listens"),
            ("vhost:a?packed=maybe", "on or off"),
            ("vhost:a?queus=2", "no such option"),
        ];
        for (text, part) in cases {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

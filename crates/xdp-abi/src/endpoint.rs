//! The socket of a datapath that stands for an interface and a queue, from `TOWPATH_XDP`.
//!
//! * A directory, by default `/run/towpath`: queue 3 of `eth0` is `DIR/eth0:3` if there is such a
//!   file, else `DIR/eth0`.
//! * `eth0=/run/a.sock,eth1:2=/run/b.sock`: that socket for all queues of the interface, or for the
//!   queue behind the colon, which has precedence.
//! * `eth0=/run/a.sock?match=udp dport 53+tcp dport 80`: the packets that the program wants, as
//!   matches of towpath's rules. Without them `default`: the packets that no other application
//!   wants.
//!
//! The interface need not exist. A program with more rights than its caller ignores the caller's
//! environment and uses `/run/towpath`.

use crate::failure::{Failure, failure};
use std::ffi::{CStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The directory without `TOWPATH_XDP`.
const DIRECTORY: &str = "/run/towpath";

/// The socket of a datapath, and the packets that the program wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) path: PathBuf,
    /// Matches, one a line.
    pub(crate) rules: String,
}

/// A variable of the environment; `None` for a program with more rights than its caller.
pub(crate) fn setting(name: &str) -> Option<OsString> {
    // SAFETY: no pointers.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure { None } else { std::env::var_os(name) }
}

impl Endpoint {
    /// The endpoint of an interface's queue.
    pub(crate) fn find(interface: &CStr, queue: u32) -> Result<Endpoint, Failure> {
        let setting = setting("TOWPATH_XDP").unwrap_or_else(|| DIRECTORY.into());
        choose(setting.as_bytes(), interface.to_bytes(), queue)
    }

    /// Whether there is an endpoint for any queue of an interface.
    pub(crate) fn stands_for(interface: &CStr) -> bool {
        let setting = setting("TOWPATH_XDP").unwrap_or_else(|| DIRECTORY.into());
        is_named(setting.as_bytes(), interface.to_bytes())
    }
}

/// Whether a value of `TOWPATH_XDP` names the interface, with or without a queue.
fn is_named(setting: &[u8], interface: &[u8]) -> bool {
    let is = |name: &[u8]| name.strip_prefix(interface).is_some_and(|rest| rest.is_empty() || rest.starts_with(b":"));
    if setting.contains(&b'=') {
        return setting.split(|byte| *byte == b',').filter_map(entry).any(|(name, ..)| is(name));
    }
    let files = std::fs::read_dir(std::ffi::OsStr::from_bytes(setting));
    files.into_iter().flatten().flatten().any(|file| is(file.file_name().as_bytes()))
}

/// The endpoint by the value of `TOWPATH_XDP`.
fn choose(setting: &[u8], interface: &[u8], queue: u32) -> Result<Endpoint, Failure> {
    let name = String::from_utf8_lossy(interface).into_owned();
    if interface.is_empty() || interface.len() >= crate::abi::NAME_SIZE || interface.contains(&b'/') {
        return Err(failure(libc::EINVAL, format!("{name:?} is no name of an interface")));
    }
    let own = format!("{name}:{queue}").into_bytes();
    if !setting.contains(&b'=') {
        let directory = Path::new(std::ffi::OsStr::from_bytes(setting));
        let path = |name: &[u8]| directory.join(std::ffi::OsStr::from_bytes(name));
        let path = if path(&own).exists() { path(&own) } else { path(interface) };
        return Ok(Endpoint { path, rules: "default".to_owned() });
    }
    let entries = || setting.split(|byte| *byte == b',').filter_map(entry);
    let found = entries().find(|(of, ..)| *of == own).or_else(|| entries().find(|(of, ..)| *of == interface));
    let (_, path, rules) = found
        .ok_or_else(|| failure(libc::ENODEV, format!("TOWPATH_XDP names no socket for queue {queue} of {name}")))?;
    let rules = std::str::from_utf8(rules).map_err(|_| failure(libc::EINVAL, "TOWPATH_XDP: rules that are no text"))?;
    Ok(Endpoint { path: PathBuf::from(OsString::from_vec(path.to_vec())), rules: rules.replace('+', "\n") })
}

/// The parts of `NAME=PATH` or `NAME=PATH?match=RULES`.
fn entry(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    const MATCH: &[u8] = b"?match=";
    let at = text.iter().position(|byte| *byte == b'=')?;
    let (name, rest) = (text.get(..at)?, text.get(at + 1..)?);
    let end = rest.windows(MATCH.len()).position(|window| window == MATCH);
    let rules = end.and_then(|end| rest.get(end + MATCH.len()..)).unwrap_or(b"default");
    Some((name.trim_ascii(), rest.get(..end.unwrap_or(rest.len()))?, rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(setting: &str, interface: &str, queue: u32) -> Result<(String, String), i32> {
        let place = choose(setting.as_bytes(), interface.as_bytes(), queue).map_err(|failure| failure.errno)?;
        Ok((place.path.to_str().unwrap().to_owned(), place.rules))
    }

    fn is(path: &str, rules: &str) -> Result<(String, String), i32> {
        Ok((path.to_owned(), rules.to_owned()))
    }

    #[test]
    fn a_list_names_sockets_of_interfaces_and_of_queues() {
        let list = "eth0=/a, eth0:1=/b?match=udp dport 53+tcp dport 80,v=/c?d?match=vlan 1";
        assert_eq!(of(list, "eth0", 0), is("/a", "default"));
        assert_eq!(of(list, "eth0", 1), is("/b", "udp dport 53\ntcp dport 80"));
        assert_eq!(of(list, "eth0", 11), is("/a", "default"));
        assert_eq!(of(list, "v", 0), is("/c?d", "vlan 1"));
        assert_eq!(of(list, "eth1", 0), Err(libc::ENODEV));
    }

    #[test]
    fn a_directory_has_a_socket_for_each_interface() {
        assert_eq!(of("/nowhere", "eth0", 0), is("/nowhere/eth0", "default"));
        assert_eq!(of("/nowhere", "eth0", 2), is("/nowhere/eth0", "default"));
        assert_eq!(of("/", "dev", 0), is("/dev", "default"));
    }

    #[test]
    fn an_interface_is_named_if_one_of_its_queues_is() {
        for (setting, interface, named) in [
            ("eth0=/a,eth1:2=/b", "eth0", true),
            ("eth0=/a,eth1:2=/b", "eth1", true),
            ("eth0=/a,eth1:2=/b", "eth", false),
            ("eth10=/a", "eth1", false),
            ("/", "dev", true),
            ("/", "de", false),
            ("/nowhere", "dev", false),
        ] {
            assert_eq!(is_named(setting.as_bytes(), interface.as_bytes()), named, "{setting} {interface}");
        }
    }

    #[test]
    fn an_invalid_interface_name_is_refused() {
        for name in ["", "a/b", "../x", "sixteen-letters-"] {
            assert_eq!(of("/run", name, 0), Err(libc::EINVAL), "{name}");
        }
    }
}

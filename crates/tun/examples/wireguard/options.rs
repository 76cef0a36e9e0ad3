//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

pub(crate) const USAGE: &str = "\
usage: wireguard --key HEX [--listen ADDRESS:PORT] [--peer ADDRESS:PORT] [--tun NAME | --tun-fd N]
                 [--address ADDRESS/PREFIX] [--mtu N] [--offload none|tun|udp|both] [--cipher on|off] [--until-eof]
--key: 64 hexadecimal digits, the same on both sides; or --cipher off: nothing is encrypted, to see what that costs
--peer: where the other side listens; without it, wherever its first valid message comes from
--tun-fd: the number of an open descriptor of a TUN device, in place of a device that is made
--offload: of the TUN device, of UDP, of both, or none: one call for each packet, and one for each datagram
--until-eof: it ends when its standard input does, and prints its counters as a line of JSON
It is an example, not WireGuard: it has no handshake, and its key serves for good.";

pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) peer: Option<SocketAddr>,
    /// `None`: nothing is encrypted.
    pub(crate) key: Option<[u8; 32]>,
    pub(crate) name: String,
    pub(crate) tun_fd: Option<OwnedFd>,
    pub(crate) address: Option<(IpAddr, u8)>,
    pub(crate) mtu: u32,
    pub(crate) offload_tun: bool,
    pub(crate) offload_udp: bool,
    pub(crate) until_eof: bool,
}

impl Options {
    /// `None`: help is wanted.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
        let mut options = Options {
            listen: SocketAddr::from(([0, 0, 0, 0], 51820)),
            peer: None,
            key: None,
            name: "wg%d".to_owned(),
            tun_fd: None,
            address: None,
            mtu: 1420,
            offload_tun: true,
            offload_udp: true,
            until_eof: false,
        };
        let mut cipher = true;
        while let Some(option) = arguments.next() {
            match option.as_str() {
                "-h" | "--help" => return Ok(None),
                "--until-eof" => {
                    options.until_eof = true;
                    continue;
                }
                _ => {}
            }
            let value = arguments.next().ok_or_else(|| format!("{option}: a value is missing\n{USAGE}"))?;
            let wrong = |rule: &str| format!("{option} '{value}': {rule}");
            let socket = || value.parse().map_err(|_| wrong("must be ADDRESS:PORT"));
            match option.as_str() {
                "--listen" => options.listen = socket()?,
                "--peer" => options.peer = Some(socket()?),
                "--key" => options.key = Some(key(&value).ok_or("--key: must be 64 hexadecimal digits")?),
                "--tun" => options.name = value,
                "--tun-fd" => options.tun_fd = Some(inherited(&value).map_err(|rule| wrong(&rule))?),
                "--address" => {
                    let parts = value.split_once('/').and_then(|(ip, len)| Some((ip.parse().ok()?, len.parse().ok()?)));
                    options.address = Some(parts.ok_or_else(|| wrong("must be ADDRESS/PREFIX"))?);
                }
                "--mtu" => options.mtu = value.parse().map_err(|_| wrong("must be a number of bytes"))?,
                "--offload" => {
                    (options.offload_tun, options.offload_udp) = match value.as_str() {
                        "none" => (false, false),
                        "tun" => (true, false),
                        "udp" => (false, true),
                        "both" => (true, true),
                        _ => return Err(wrong("must be none, tun, udp or both")),
                    }
                }
                "--cipher" => match value.as_str() {
                    "on" => cipher = true,
                    "off" => cipher = false,
                    _ => return Err(wrong("must be on or off")),
                },
                _ => return Err(format!("{option}: no such option\n{USAGE}")),
            }
        }
        if cipher != options.key.is_some() {
            return Err(format!("--key and --cipher off: one of them is needed, and no more\n{USAGE}"));
        }
        Ok(Some(options))
    }
}

fn key(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    bytes.try_into().ok().filter(|_| digits.len() == 64)
}

/// A descriptor that the process was started with.
fn inherited(number: &str) -> Result<OwnedFd, String> {
    let number = number.parse::<u32>().ok().and_then(|number| i32::try_from(number).ok());
    let number = number.ok_or("must be the number of an open descriptor")?;
    // SAFETY: the descriptor is only duplicated, which fails if it is not open.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().map_err(|error| error.to_string())
}

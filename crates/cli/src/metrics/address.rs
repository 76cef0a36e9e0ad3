//! The address of the metrics, and the server there.

use super::http::Http;
use crate::control::Service;
use crate::server::{Server, Socket};
use std::error::Error;
use std::fmt::{self, Display};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;
use towpath::packet::port::{Calls, Needs, PathUse};
use towpath_sys::unix_socket::{self, Access, Kind};

/// The address of `--metrics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Address, &'static str> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("unix: takes a path: unix:/run/towpath-metrics.sock")
            } else {
                Ok(Address::Unix(path.into()))
            };
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Address::Tcp((Ipv4Addr::LOCALHOST, port).into()));
        }
        text.parse().map(Address::Tcp).map_err(|_| {
            "must be a port of the loopback (9900), an address and a port (192.0.2.1:9900, [::1]:9900), or unix:PATH"
        })
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// What serving it needs of the kernel after the socket was made.
    pub(crate) fn needs(&self, needs: Needs) -> Needs {
        let needs = needs.calls([Calls::Sockets, Calls::Accept]);
        match self {
            Address::Tcp(_) => needs,
            Address::Unix(path) => needs.directory_of(path, PathUse::Remove),
        }
    }

    /// Serves what runs, until the result is dropped.
    pub(crate) fn serve(&self, service: Service) -> Result<Metrics, Box<dyn Error>> {
        let about = |error: &dyn Display| format!("--metrics {self}: {error}");
        let (socket, at) = match self {
            Address::Tcp(address) => {
                let socket = TcpListener::bind(address).and_then(|socket| {
                    socket.set_nonblocking(true)?;
                    Ok((socket.local_addr()?, socket))
                });
                let (bound, socket) = socket.map_err(|error| about(&error))?;
                (Socket::Tcp(socket), Address::Tcp(bound))
            }
            Address::Unix(path) => {
                let access = Access { mode: 0o600, uid: None, gid: None };
                let socket = unix_socket::Listener::new(path, Kind::Stream, access).map_err(|error| about(&error))?;
                (Socket::Unix(socket), self.clone())
            }
        };
        let http = Http::new(service, at.is_loopback());
        let server = Server::start("towpath-metrics", socket, http).map_err(|error| about(&error))?;
        Ok(Metrics { at, configured: self.clone(), _server: server })
    }

    fn is_loopback(&self) -> bool {
        matches!(self, Address::Tcp(address) if address.ip().to_canonical().is_loopback())
    }
}

/// Metrics that are served until this is dropped.
pub(crate) struct Metrics {
    at: Address,
    configured: Address,
    _server: Server,
}

impl Metrics {
    /// What the user should know.
    pub(crate) fn notes(&self) -> Vec<String> {
        let chosen = (self.at != self.configured).then(|| format!("metrics: http://{}/", self.at));
        let open = matches!(self.at, Address::Tcp(_)) && !self.at.is_loopback();
        let open = open.then(|| {
            format!("metrics: all that reaches {} can read them: names of ports, addresses of flows, users", self.at)
        });
        chosen.into_iter().chain(open).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_port_alone_is_one_of_the_loopback() {
        let of = |text: &str| text.parse::<Address>();
        assert_eq!(of("9900").unwrap().to_string(), "127.0.0.1:9900");
        assert_eq!(of("0.0.0.0:9900").unwrap().to_string(), "0.0.0.0:9900");
        assert_eq!(of("[::1]:0").unwrap().to_string(), "[::1]:0");
        assert_eq!(of("unix:/run/m.sock"), Ok(Address::Unix("/run/m.sock".into())));
        for bad in ["", "70000", ":9900", "localhost:9900", "::1", "10.0.0.1", "unix:", "http://127.0.0.1:1/"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_that_others_reach_is_noted_and_so_is_a_port_that_was_chosen() {
        let notes = |text: &str| {
            let address = text.parse::<Address>().unwrap();
            address.serve(Service { observers: Arc::new(Vec::new), reload: None }).unwrap().notes()
        };
        let [chosen] = &notes("0")[..] else { panic!("one note") };
        assert!(chosen.starts_with("metrics: http://127.0.0.1:") && !chosen.ends_with(":0/"), "{chosen}");
        assert!(notes("0.0.0.0:0")[1].contains("can read them"));
    }
}

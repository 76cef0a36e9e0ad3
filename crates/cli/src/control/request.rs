//! A request of the control socket, and its answer.

use super::Service;
use super::fdb::{Addresses, Fdb, addresses};
use super::settings::{Change, Line, set};
use super::tables::{Neighbours, Query, Routes, neighbours, routes};
use crate::state::State;
use serde::{Deserialize, Serialize};

/// Longest request in bytes.
pub(crate) const LONGEST: u64 = 1 << 16;
/// Longest answer in bytes that a client reads: the state of many ports, a large table.
pub(crate) const LONGEST_ANSWER: u64 = 1 << 26;

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Settings of ports, and changes of them.
    Settings(Change),
    /// Addresses of bridges, and changes of them.
    Fdb(Fdb),
    /// Routes of routers.
    Routes(Query),
    /// Neighbours of routers.
    Neighbours(Query),
    /// The state of all that runs.
    State,
    /// The names of the ports.
    Ports,
    /// A tee: blocks of pcapng follow the answer.
    Tee(TeeRequest),
    /// To read the file of `run` again.
    Reload,
}

/// What a tee copies.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TeeRequest {
    /// The ports; all if there is none.
    #[serde(default)]
    pub(crate) ports: Vec<String>,
    /// As [`TeeOptions`](towpath::tee::TeeOptions) reads them.
    #[serde(default)]
    pub(crate) options: String,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The settings as they are now.
    Settings(Vec<Line>),
    /// Addresses as they are now.
    Fdb(Addresses),
    /// Routes as they are now.
    Routes(Routes),
    /// Neighbours as they are now.
    Neighbours(Neighbours),
    /// The state as it is now.
    State(Box<State>),
    /// The names of the ports.
    Ports(Vec<String>),
    /// The ports of the tee, whose blocks follow.
    Tee(Vec<String>),
    /// What a reload changed, and what it could not.
    Reloaded { changes: Vec<String>, failures: Vec<String> },
    /// Why nothing was done.
    Error(String),
}

/// Reads a request: the first line of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Result<Request, String> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.len() as u64 == LONGEST {
        return Err(format!("a request of {LONGEST} bytes or more"));
    }
    serde_json::from_slice(line).map_err(|error| format!("not a request: {error}"))
}

/// The line that answers a request: the first line of `request`.
pub(crate) fn answer(request: &[u8], service: &Service) -> serde_json::Result<Vec<u8>> {
    let answer = parse(request).and_then(|request| match request {
        Request::Settings(change) => {
            let controls: Vec<_> = service.controls().iter().collect();
            let ports: Vec<_> = controls.iter().map(|(name, control)| (name.as_str(), &**control)).collect();
            set(&change, &ports).map(Answer::Settings)
        }
        Request::Fdb(request) => addresses(&request, service).map(Answer::Fdb),
        Request::Routes(query) => routes(&query, service).map(Answer::Routes),
        Request::Neighbours(query) => neighbours(&query, service).map(Answer::Neighbours),
        Request::State => Ok(Answer::State(Box::new(service.state(true)))),
        Request::Ports => Ok(Answer::Ports(service.port_names())),
        // The connection becomes its stream; see `control::tees`.
        Request::Tee(_) => Err("a tee takes the whole connection".to_owned()),
        Request::Reload => Err("nothing can be read again: it was started without a file (towpath run)".to_owned()),
    });
    line(&answer.unwrap_or_else(Answer::Error))
}

/// An answer as a line.
pub(crate) fn line(answer: &Answer) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    Ok(line)
}

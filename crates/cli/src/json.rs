//! The records of `--json` that are no measurements: the start of a run, and an error.
//!
//! `docs/json.md` describes all records.

use crate::output;
use serde::Serialize;
use std::io::{self, Write};
use std::process;
use std::time::SystemTime;
use towpath::Observer;
use towpath::packet::port::{Info, Layer};

/// The version of all records: it grows when a key is renamed or changes its meaning.
const SCHEMA: u32 = 1;

/// One line of JSON.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Record<'a> {
    /// The ports are open, and the first packet may move.
    Start {
        schema: u32,
        version: &'static str,
        time: f64,
        pid: u32,
        /// Of several that `run` has.
        #[serde(skip_serializing_if = "Option::is_none")]
        unit: Option<&'a str>,
        ports: Vec<Port<'a>>,
        notes: &'a [String],
        /// Parts of the sandbox that are not in force.
        missing: Vec<String>,
    },
    /// The command ends with an exit code that is not 0.
    Error { schema: u32, version: &'static str, time: f64, error: &'a str, exit_code: u8 },
}

/// A port as it was opened.
#[derive(Serialize)]
struct Port<'a> {
    name: &'a str,
    /// Its kind: the scheme of its URI.
    kind: &'a str,
    layer: &'static str,
    mtu: u32,
    queues: u16,
    interface: Option<&'a str>,
    netns: Option<&'a str>,
}

impl<'a> Port<'a> {
    fn new(info: &'a Info) -> Port<'a> {
        let layer = match info.layer {
            Layer::Ethernet => "ethernet",
            Layer::Ip => "ip",
            Layer::Any => "any",
        };
        Port {
            name: &info.name,
            kind: info.name.split(':').next().unwrap_or_default(),
            layer,
            mtu: info.mtu,
            queues: info.max_queues,
            interface: info.interface.as_ref().map(|interface| interface.name.as_str()),
            netns: info.netns.as_deref(),
        }
    }
}

/// Seconds since 1970, in UTC.
pub(crate) fn time() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

/// Writes a line.
fn write(record: &Record<'_>) -> io::Result<()> {
    let mut out = output::lock();
    serde_json::to_writer(&mut out, record)?;
    writeln!(out)?;
    out.flush()
}

/// The first line of a run, or of a unit of one.
pub(crate) fn start(unit: Option<&str>, observer: &Observer, missing: Vec<String>) -> io::Result<()> {
    write(&Record::Start {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        time: time(),
        pid: process::id(),
        unit,
        ports: observer.infos().iter().map(Port::new).collect(),
        notes: observer.notes(),
        missing,
    })
}

/// The last line of a command that failed.
pub(crate) fn error(error: &str, exit_code: u8) -> io::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    write(&Record::Error { schema: SCHEMA, version, time: time(), error, exit_code })
}

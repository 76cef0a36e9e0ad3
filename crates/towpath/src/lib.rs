//! A user-space network datapath for Linux.
//!
//! ```no_run
//! use towpath::{Forward, Opener, Role};
//!
//! let mut opener = Opener::new();
//! let a = opener.open(&"tap:tp0".parse()?, Role::Both)?;
//! let b = opener.open(&"packet:eth1".parse()?, Role::Both)?;
//! let running = Forward::default().start(a, b)?;
//! std::thread::sleep(std::time::Duration::from_secs(10));
//! let summary = running.stop();
//! assert_eq!(summary.reading.balance().in_flight(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layers, each a crate of its own, are re-exported: [`wire`] (headers, checksums), [`gro`] (coalescing and splitting),
//! [`packet`] (buffers, pools, rings, port traits), [`bus`]
//! (registers, DMA, devices through VFIO), [`drivers`] (network devices), [`model`] (devices in software), [`datapath`] (ports, workers). This crate joins them: a port of any kind
//! by its address ([`Opener`], [`AnyPort`]), and two ports moved to and fro by workers ([`Forward`], [`Running`]).

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod any;
mod cpsw;
mod forward;
mod nic;
mod port_wire;

pub use any::{AnyPort, AnyRx, AnyTx, Opener, Role, SCHEMES, Scheme};
pub use forward::{Directions, Forward, Gso, Running, StartError, Summary, Tuners, Verdicts};
pub use towpath_bus as bus;
pub use towpath_engine as engine;
pub use towpath_gro as gro;
pub use towpath_model as model;
pub use towpath_nic as drivers;
pub use towpath_packet as packet;
pub use towpath_ports as ports;
pub use towpath_ports::uri::Uri;
pub use towpath_wire as wire;

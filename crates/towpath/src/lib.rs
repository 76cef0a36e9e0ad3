#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | item | content |
//! |---|---|
//! | `any`: [`Opener`], [`AnyPort`] | a port of any kind by its URI |
//! | [`e1000e`], [`virtio`], [`cpsw`] | configurations of the drivers from URIs |
//! | `pci`, `port_wire`, `port_check` | URIs of PCI functions; of wires of models; checks of a URI |
//! | `forward`: [`Forward`], [`Ready`], [`Running`], [`Summary`] | two ports joined by workers |
//! | [`Bridge`], [`BridgePort`], [`BridgeControl`] | several ports joined by a learning bridge |
//! | [`Router`], [`RouterInterface`], [`RouterControl`] | several ports joined by an IP router |
//! | [`Observer`] | their counters, settings and rules, from any thread |
//! | [`tee`] | what passes them, copied to a file, a port or a stream |
//! | [`engine`] | workers, routes, lanes, rules, GRO stage, software offload |
//! | [`ports`] | kernel-backed ports, application sockets, captures, generators |
//! | [`sandbox`] | what a started datapath may still ask of the kernel |
//! | [`packet`] | buffers, pools, rings, port traits |
//! | [`nic`], [`bus`], [`model`] | drivers; registers, DMA and VFIO; devices in software |
//! | [`gro`], [`wire`] | coalescing and segmentation; headers, checksums and hashes |

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod any;
pub mod cpsw;
pub mod e1000e;
mod forward;
mod pci;
mod port_check;
mod port_wire;
mod tap;
pub mod tee;
pub mod virtio;

pub use any::{AnyPort, AnyRx, AnyTx, KINDS, Opener, Role};
pub use forward::{
    Bridge, BridgeControl, BridgePort, BridgePortReading, Directions, Failure, FdbEntry, Forward, Gso, Neighbour,
    Observer, PortControls, Ready, RouteSource, Router, RouterControl, RouterInterface, RouterPortReading, RouterPorts,
    RouterRoute, Running, StartError, Summary, Verdicts,
};
pub use towpath_bus as bus;
pub use towpath_engine as engine;
pub use towpath_gro as gro;
pub use towpath_model as model;
pub use towpath_nic as nic;
pub use towpath_packet as packet;
pub use towpath_ports as ports;
pub use towpath_ports::uri::Uri;
pub use towpath_sandbox as sandbox;
pub use towpath_wire as wire;

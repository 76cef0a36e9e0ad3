#![doc = include_str!("../README.md")]
//! # How it works
//!
//! ```text
//!   kernel ── notifications ──► watcher thread ── dump ──► Contents ── build ──► Arc<Table>
//!             links, addresses, routes: read all of it again               generation + 1
//!             neighbours: one entry changed                                       ▼
//!             ENOBUFS: read all of it again           Reader::refresh: one load per burst
//! ```
//!
//! Routes that vanish with their interface are not announced by the kernel one by one. So a change
//! of a link, an address or a route makes the watcher read everything again, some milliseconds
//! later, and together with what else changed meanwhile.
//!
//! | file | |
//! |---|---|
//! | `watch.rs` | the thread, its readers, resolution of neighbours |
//! | `table.rs` | the snapshot: lookup, tunnels, VLANs |
//! | `prefix.rs` | prefixes as ranges |
//! | `source.rs` | the source address that the kernel would choose |
//! | `kernel.rs` | messages of the kernel, bounded and parsed |
//! | `listing.rs` | all of it, for what mirrors the kernel |
//! | `contents.rs` | their contents: devices, addresses, routes, neighbours |

#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

mod contents;
mod kernel;
mod listing;
mod prefix;
mod source;
mod table;
mod watch;

pub use contents::{LimitExceeded, Limits};
pub use listing::{ListedDevice, ListedHop, ListedKind, ListedRoute};
pub use table::{NextHop, Path, Table, Unreachable};
pub use watch::{NextHops, Reader};

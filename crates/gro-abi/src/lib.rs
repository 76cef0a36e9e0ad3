#![doc = include_str!("../README.md")]
//!
//! | module | |
//! |---|---|
//! | [`engine`] | `towpath_gro_*`: an engine, what it takes and what leaves it |
//! | [`split`] | `towpath_gro_split` |
//! | [`abi`] | the header's structures |
//! | `buffer` | buffers of the program in the engine |
//!
//! # Rules of this crate
//!
//! Arguments from C are checked as far as possible: null pointers, lengths, numbers and offloads
//! give a negative errno, and nothing has changed. What cannot be checked is in each function's
//! `# Safety`. A panic, which would be a defect, ends the process at the boundary.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![warn(missing_docs)]

pub mod abi;
mod buffer;
pub mod engine;
pub mod split;

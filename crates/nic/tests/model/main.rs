//! The e1000e driver over a model of its device. The model is strict: it reports the first rule
//! that the driver breaks.
//!
//! The test steps the device, so that a failure is reproduced by its seed.

mod errata;
mod faults;
mod filter;
mod interrupts;
mod late;
mod link;
mod offloads;
mod pages;
mod removal;
mod rig;
mod saving;
mod storm;
mod threads;
mod traffic;
mod tx_copybreak;

//! The e1000e driver over a model of its device, which is strict: it keeps the first rule that the driver breaks.
//!
//! The device is stepped by the test, so that a failure comes back with its seed.

mod faults;
mod offloads;
mod pages;
mod rig;
mod saving;
mod storm;
mod threads;
mod traffic;

//! Shared by the benches of all engines: the packet mix, and the measurement.

pub mod measure;
pub mod mix;

//! What the benches of all engines share: the packet mix, and how it is measured.

pub mod measure;
pub mod mix;

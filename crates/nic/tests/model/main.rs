//! The e1000e driver over a model of its device. The model is strict: it reports the first rule
//! that the driver breaks.
//!
//! The test steps the device, so that a failure is reproduced by its seed.
//!
//! | module | what |
//! |---|---|
//! | `traffic`, `offloads` | frames byte for byte; checksums, segments, tags, hashes |
//! | `pages`, `tx_copybreak` | pages of applications; frames that are copied to be sent |
//! | `link`, `interrupts`, `filter` | PHY and link; MSI-X, MSI, INTx; addresses, groups, VLANs |
//! | `faults`, `errata` | a device with faults; errata of the chip |
//! | `late`, `removal` | DMA that goes on after the end of a mapping; a device that goes away |
//! | `storm`, `threads` | actions in any order; queues and the device on threads |
//! | `second_source` | what driver and model share, compared with plain loops |
//! | `saving` | what copybreak saves, counted per buffer |
//! | `rig` | a driver, its device, and the far end of the cable |

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
mod second_source;
mod storm;
mod threads;
mod traffic;
mod tx_copybreak;

//! The crate against the kernel of this machine, in network namespaces of its own.
//!
//! | module | what |
//! |---|---|
//! | `open` | devices that are made, inherited, probed, changed |
//! | `bridge` | two devices, joined packet by packet |
//! | `examples` | the examples as the two ends of a tunnel |

mod bridge;
mod examples;
mod open;

use towpath_testing::{Counting, Namespace, Need};

/// The tests need their own namespaces and devices.
const NEEDS: &[Need] = &[Need::Root, Need::Tun];

/// Of the tests that count allocations.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A namespace, if this machine can make one.
fn namespace(test: &str) -> Option<Namespace> {
    towpath_testing::needs(test, NEEDS).then(|| Namespace::new("tun"))
}

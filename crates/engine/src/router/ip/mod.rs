//! Validation of IP packets: what a router requires before it forwards
//! ([RFC 1812](https://www.rfc-editor.org/rfc/rfc1812) section 5,
//! [RFC 8200](https://www.rfc-editor.org/rfc/rfc8200)), in the order and with the answers of Linux.
//!
//! The functions see the bytes of the IP packet, as far as they are contiguous, and its length in
//! the frame. They read; [`decrease4`] and [`decrease6`] write.
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Refusal`]; groups |
//! | `v4` | [`check4`], options, time to live, the checksum |
//! | `v6` | [`check6`], hop-by-hop options, hop limit, extension headers |

mod v4;
mod v6;

pub use v4::{Options, V4, check4};
pub(super) use v4::{decrease4, fill_checksum, record_route};
pub use v6::{V6, check6};
pub(super) use v6::{decrease6, upper6};

use super::icmp::Problem;
use std::net::IpAddr;
use towpath_packet::DropReason;

/// Why a packet goes no further: the drop's name, and what its sender is informed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Counted as.
    pub reason: DropReason,
    /// The error for the sender, if it gets one.
    pub problem: Option<Problem>,
}

impl From<DropReason> for Refusal {
    fn from(reason: DropReason) -> Refusal {
        Refusal { reason, problem: None }
    }
}

impl Refusal {
    pub(super) fn with(reason: DropReason, problem: Problem) -> Refusal {
        Refusal { reason, problem: Some(problem) }
    }
}

/// Whether a packet to this destination is for the router itself without a route: a group.
#[inline]
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_checked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), longer in 0usize..2000) {
            let _ = check4(&bytes, bytes.len() + longer);
            let _ = check6(&bytes, bytes.len() + longer);
            let _ = upper6(&bytes);
        }
    }
}

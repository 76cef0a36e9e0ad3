//! The configuration of the engine.

use towpath_wire::offload::LinkKind;

/// The largest IP packet: what its length field can say.
pub(crate) const MAX_IP: u32 = 65_535;
/// The largest aggregate that the kernel takes from itself (`GRO_MAX_SIZE`).
pub(crate) const MAX_BIG_TCP: u32 = 8 * 65_535;

macro_rules! config {
    ($($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr;)*) => {
        /// How an engine works. Each field has a setter of its name.
        ///
        /// ```
        /// use towpath_gro::{GroConfig, LinkKind};
        /// let config = GroConfig::default().link(LinkKind::Ip).tunnels(false);
        /// assert!(config.udp && !config.tunnels);
        /// ```
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct GroConfig {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl Default for GroConfig {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl GroConfig {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(self, $field: $ty) -> Self {
                    Self { $field, ..self }
                }
            )*
        }
    };
}

config! {
    /// The header that packets begin with.
    link: LinkKind = LinkKind::Ethernet;
    /// Flows that can be held at a time, rounded up to a power of two, at most 32768.
    flows: usize = 2048;
    /// Largest aggregate, as its (outer) IP header says: up to 65535. Above that, up to 524280, for
    /// TCP outside of tunnels only, the length field of aggregates longer than 65535 is 0 ("BIG
    /// TCP"): only for an egress that takes them, as [`crate::Split`] does.
    max_size: u32 = MAX_IP;
    /// Most packets in an aggregate. UDP never has more than 64.
    max_packets: u16 = 128;
    /// Coalesce UDP.
    udp: bool = true;
    /// Look into VXLAN, GENEVE, GRE and IP in IP. Otherwise the payload of UDP is data, and the
    /// other tunnels pass.
    tunnels: bool = true;
    /// Bypass the engine while nothing merges, see [`Auto`](crate::Auto).
    auto: bool = false;
    /// Makes flow hashes unpredictable. The default is random; without the feature `std` it is a
    /// constant, and the caller sets a random number of its own.
    seed: u64 = random_seed();
}

#[cfg(feature = "std")]
fn random_seed() -> u64 {
    use core::hash::BuildHasher;
    std::collections::hash_map::RandomState::new().hash_one(0)
}

#[cfg(not(feature = "std"))]
fn random_seed() -> u64 {
    0x243f_6a88_85a3_08d3
}

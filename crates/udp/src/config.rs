//! The configuration of a socket, and what the kernel granted.

macro_rules! config {
    ($($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr;)*) => {
        /// How a socket works. Each field has a setter of its name.
        ///
        /// ```
        /// use towpath_udp::UdpConfig;
        /// let config = UdpConfig::default().gro(false).receive_buffer(1 << 20);
        /// assert!(config.segmentation && !config.gro);
        /// ```
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub struct UdpConfig {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl Default for UdpConfig {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl UdpConfig {
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
    /// Datagrams of equal size to the same destination leave as one message (`UDP_SEGMENT`).
    segmentation: bool = true;
    /// Datagrams of equal size from the same source arrive as one message (`UDP_GRO`).
    gro: bool = true;
    /// Bytes of datagrams that may wait in the kernel to be received. A message of 64 KiB is a
    /// burst of 45 datagrams for the receiver: with the kernel's default of 208 KiB most of the
    /// second burst is lost.
    receive_buffer: usize = 7 << 20;
    /// Bytes of datagrams that may wait in the kernel to be sent.
    send_buffer: usize = 2 << 20;
    /// Messages that one call receives, 1 to 64. Each has a buffer of 64 KiB, of which the pages
    /// that are never used take no memory.
    receive_messages: usize = 32;
    /// Datagrams that may wait in the process to be sent, 1 to 65535.
    queue_datagrams: usize = 1024;
    /// Bytes of datagrams that may wait in the process to be sent, at least 65535.
    queue_bytes: usize = 512 << 10;
}

/// What the kernel granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpInfo {
    /// Messages of several datagrams are sent (`UDP_SEGMENT`), where the path takes them.
    pub segmentation: bool,
    /// Datagrams are coalesced (`UDP_GRO`).
    pub gro: bool,
    /// Bytes of datagrams that may wait in the kernel to be received. Fewer than configured:
    /// `net.core.rmem_max` limits them, or `CAP_NET_ADMIN` is missing.
    pub receive_buffer: usize,
    /// Bytes of datagrams that may wait in the kernel to be sent; limited by `net.core.wmem_max`.
    pub send_buffer: usize,
    /// The socket carries IPv6.
    pub v6: bool,
    /// The socket carries IPv4.
    pub v4: bool,
}

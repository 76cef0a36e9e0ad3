//! Feature bits of a network device
//! ([virtio 1.2 §5.1.3, §6](https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html)):
//! what driver and device agree on before a packet passes.

/// The device completes partial checksums (`VIRTIO_NET_F_CSUM`).
pub const CSUM: u64 = 1;
/// The driver takes partial checksums.
pub const GUEST_CSUM: u64 = 1 << 1;
/// The MTU is in the configuration space.
pub const MTU: u64 = 1 << 3;
/// The MAC address is in the configuration space.
pub const MAC: u64 = 1 << 5;
/// The driver takes super-packets of TCP over IPv4.
pub const GUEST_TSO4: u64 = 1 << 7;
/// The driver takes super-packets of TCP over IPv6.
pub const GUEST_TSO6: u64 = 1 << 8;
/// The driver takes super-packets with CWR in the first segment only.
pub const GUEST_ECN: u64 = 1 << 9;
/// The device takes super-packets of TCP over IPv4.
pub const HOST_TSO4: u64 = 1 << 11;
/// The device takes super-packets of TCP over IPv6.
pub const HOST_TSO6: u64 = 1 << 12;
/// The device takes super-packets with CWR in the first segment only.
pub const HOST_ECN: u64 = 1 << 13;
/// A packet may come in several receive buffers.
pub const MRG_RXBUF: u64 = 1 << 15;
/// The state of the link is in the configuration space.
pub const STATUS: u64 = 1 << 16;
/// There is a control queue.
pub const CTRL_VQ: u64 = 1 << 17;
/// The control queue sets which addresses are received.
pub const CTRL_RX: u64 = 1 << 18;
/// The control queue sets which VLANs are received.
pub const CTRL_VLAN: u64 = 1 << 19;
/// The driver announces itself after a migration.
pub const GUEST_ANNOUNCE: u64 = 1 << 21;
/// There are several pairs of queues.
pub const MQ: u64 = 1 << 22;
/// The control queue sets the MAC address.
pub const CTRL_MAC_ADDR: u64 = 1 << 23;
/// A chain may be in a table of its own (`VIRTIO_F_INDIRECT_DESC`).
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Each side names the entry of which it requests a notification.
pub const EVENT_IDX: u64 = 1 << 29;
/// Modern: little-endian, headers of 12 bytes (`VIRTIO_F_VERSION_1`).
pub const VERSION_1: u64 = 1 << 32;
/// Addresses go through an IOMMU.
pub const ACCESS_PLATFORM: u64 = 1 << 33;
/// Rings are packed.
pub const RING_PACKED: u64 = 1 << 34;
/// Buffers are used in the order in which they were made available.
pub const IN_ORDER: u64 = 1 << 35;
/// Memory is ordered as the platform orders it for a device.
pub const ORDER_PLATFORM: u64 = 1 << 36;
/// The driver takes super-packets of UDP over IPv4.
pub const GUEST_USO4: u64 = 1 << 54;
/// The driver takes super-packets of UDP over IPv6.
pub const GUEST_USO6: u64 = 1 << 55;
/// The device takes super-packets of UDP.
pub const HOST_USO: u64 = 1 << 56;
/// Each received header has the hash of its packet.
pub const HASH_REPORT: u64 = 1 << 57;
/// The hash of a packet chooses its receive queue.
pub const RSS: u64 = 1 << 60;

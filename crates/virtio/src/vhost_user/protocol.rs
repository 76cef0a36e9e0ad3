//! The protocol's own features (`VHOST_USER_PROTOCOL_F_…`), negotiated beside those of the device.

/// Several queues; `GET_QUEUE_NUM`.
pub const MQ: u64 = 1 << 0;
/// The log of written pages is a shared file.
pub const LOG_SHMFD: u64 = 1 << 1;
/// `SEND_RARP`.
pub const RARP: u64 = 1 << 2;
/// A request that requires an acknowledgement gets one.
pub const REPLY_ACK: u64 = 1 << 3;
/// `NET_SET_MTU`.
pub const NET_MTU: u64 = 1 << 4;
/// A second socket, for requests of the back end.
pub const BACKEND_REQ: u64 = 1 << 5;
/// `GET_CONFIG`, `SET_CONFIG`.
pub const CONFIG: u64 = 1 << 9;
/// `GET_INFLIGHT_FD`, `SET_INFLIGHT_FD`.
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
/// `RESET_DEVICE`.
pub const RESET_DEVICE: u64 = 1 << 13;
/// `ADD_MEM_REG`, `REM_MEM_REG`, `GET_MAX_MEM_SLOTS`.
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
/// `GET_STATUS`, `SET_STATUS`.
pub const STATUS: u64 = 1 << 16;

/// The bit of the device's features that makes the protocol have features
/// (`VHOST_USER_F_PROTOCOL_FEATURES`).
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The bit of the device's features that makes a back end log the pages that it writes
/// (`VHOST_F_LOG_ALL`).
pub const LOG_ALL: u64 = 1 << 26;

/// The names of the features among `bits`, as the specification has them.
pub fn names(bits: u64) -> impl Iterator<Item = &'static str> {
    const NAMES: [(u64, &str); 11] = [
        (MQ, "MQ"),
        (LOG_SHMFD, "LOG_SHMFD"),
        (RARP, "RARP"),
        (REPLY_ACK, "REPLY_ACK"),
        (NET_MTU, "NET_MTU"),
        (BACKEND_REQ, "BACKEND_REQ"),
        (CONFIG, "CONFIG"),
        (INFLIGHT_SHMFD, "INFLIGHT_SHMFD"),
        (RESET_DEVICE, "RESET_DEVICE"),
        (CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS"),
        (STATUS, "STATUS"),
    ];
    NAMES.into_iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, name)| name)
}

//! The counters of a queue, the reasons for which packets are dropped, and the places where they
//! are lost before a queue has them or after it sent them.
//!
//! One writer (the thread that runs the queue), any number of readers (the live display, the
//! summary). An addition is a plain load and store, without a locked instruction. A reader may see
//! a batch late, never twice.

use crate::packet::Packet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a packet that was received or generated did not leave again.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[DropReason] = &[$(DropReason::$variant,)*];

            /// Name as it is printed.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// No buffer for a copy, a header or a segment.
    NoBuffer = "no-buffer",
    /// The egress was full for longer than the datapath waits.
    EgressFull = "egress-full",
    /// Longer than the egress can send.
    TooLong = "too-long",
    /// The packet contradicts itself or its metadata: truncated, lengths beyond its end, an illegal
    /// virtio-net header.
    Malformed = "malformed",
    /// The packet requests work (segmentation, a checksum, a tag) that neither the egress nor
    /// software can do.
    Offload = "offload",
    /// The egress has no link, or is not up.
    LinkDown = "link-down",
    /// The kernel or the device refused the packet.
    Refused = "refused",
    /// The port is gone: its interface was deleted, its peer has closed.
    PortGone = "port-gone",
    /// A rule drops it.
    Filtered = "filtered",
    /// No rule of an application takes it.
    Unclaimed = "unclaimed",
    /// The lane of its flow had no room.
    LaneFull = "lane-full",
    /// Still held when the time for draining ended.
    Stopped = "stopped",
    /// A requested fault, see the `fault` port.
    Fault = "fault",
    /// Flooded faster than the limit of its ingress allows.
    Storm = "storm",
    /// Addressed to a group that no bridge forwards: link aggregation, pause, port access.
    Reserved = "reserved",
    /// Its destination is behind the port that it came from.
    SamePort = "same-port",
    /// No other port may have it.
    NoEgress = "no-egress",
    /// The ingress or the egress is no member of its VLAN.
    Vlan = "vlan",
    /// In a frame that is for another station.
    Foreign = "foreign",
    /// Of a protocol that the router does not route.
    UnknownProtocol = "unknown-protocol",
    /// For the router itself, which has acted on it or has no use for it.
    ForRouter = "for-router",
    /// From or to an address that no packet on a link may have.
    Martian = "martian",
    /// Its options choose its route.
    SourceRoute = "source-route",
    /// Its time to live is used up.
    TtlExpired = "ttl-expired",
    /// No route leads to its destination.
    NoRoute = "no-route",
    /// The route to its destination refuses it: blackhole, unreachable, prohibit.
    Unreachable = "unreachable",
    /// Longer than the next link takes, and may not be fragmented.
    NotFragmented = "not-fragmented",
    /// The address of the next hop was not found.
    NoNeighbour = "no-neighbour",
}

const REASONS: usize = DropReason::ALL.len();

macro_rules! places {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $remedy:literal;)*) => {
        /// Where the kernel or a device lost packets, outside of the port's queues: before a
        /// receive queue had them, or after a transmit queue sent them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Missed { $($(#[$doc])* $variant,)* }

        impl Missed {
            /// All places, in the order of their numbers.
            pub const ALL: &[Missed] = &[$(Missed::$variant,)*];

            /// Name as it is printed.
            pub const fn name(self) -> &'static str {
                match self { $(Missed::$variant => $name,)* }
            }

            /// What prevents the loss: an option of the port, or a setting of the system.
            pub const fn remedy(self) -> &'static str {
                match self { $(Missed::$variant => $remedy,)* }
            }
        }
    };
}

places! {
    /// The queue of a tun or tap interface to this process was full.
    TunQueue = "tun-queue", "raise the port's txqueuelen=";
    /// The queueing discipline of the interface dropped the packet.
    Qdisc = "qdisc", "tc -s qdisc show dev IF: raise its limit or its rate";
    /// The ring of an AF_PACKET socket was full.
    SocketRing = "socket-ring", "raise the port's ring=";
    /// The buffer of an AF_PACKET socket was full: it holds packets that are longer than a frame of
    /// the ring.
    SocketBuffer = "socket-buffer", "raise the port's rcvbuf=";
    /// The RX ring of an AF_XDP socket was full.
    XskRx = "xsk-rx-ring", "raise the port's ring=";
    /// The FILL ring of an AF_XDP socket was empty.
    XskFill = "xsk-fill-ring", "raise the port's ring=, and --buffers";
    /// The frame was longer than a buffer of an AF_XDP socket.
    XskTooLong = "xsk-too-long", "allow frags=prefer, or lower the sender's MTU; on a veth: ethtool -K PEER tso off";
    /// The other end of the veth pair could not hand the packet over.
    VethPeer = "veth-peer", "raise net.core.netdev_max_backlog; with XDP, give PEER a qdisc: tc qdisc add dev PEER root pfifo";
    /// The interface dropped a received packet, mostly because the backlog of a processor was full.
    Interface = "interface", "raise net.core.netdev_max_backlog";
    /// The driver dropped a packet that it had accepted for transmission.
    Driver = "driver", "ethtool -S IF shows why";
    /// The host's stack dropped the packet behind the interface.
    Host = "host", "no protocol of the host takes it, or net.core.netdev_max_backlog is too small";
    /// The device had no buffer for the packet.
    Device = "device", "raise the receive ring: rx= of the port, or ethtool -G IF rx N";
    /// The link was lost while the packet lay in the device.
    Link = "link", "none: the cable was pulled, or the partner went down";
    /// The packet or its description could not be understood.
    Unreadable = "unreadable", "none: the sender, the file or the driver is at fault";
    /// The frame has no form that the egress takes: a beacon of 802.11, ARP for IP packets.
    NoForm = "no-form", "none: the egress takes no such frames; the port's events name them";
}

const PLACES: usize = Missed::ALL.len();

/// Sees the packets that are dropped, before they are freed.
pub trait DropWatch: Send + Sync + std::fmt::Debug {
    /// `packet` is dropped for `reason`. Called on the thread that drops it, which it must not
    /// delay.
    fn dropped(&self, reason: DropReason, packet: &Packet);
}

/// Counters of one direction of one queue.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    calls: AtomicU64,
    retries: AtomicU64,
    errors: AtomicU64,
    split: AtomicU64,
    merged: AtomicU64,
    flooded: AtomicU64,
    originated: AtomicU64,
    copied: AtomicU64,
    copied_bytes: AtomicU64,
    drops: [AtomicU64; REASONS],
    missed: [AtomicU64; PLACES],
    watch: OnceLock<Arc<dyn DropWatch>>,
}

#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl Counters {
    /// `packets` with `bytes` together were received or sent.
    #[inline]
    pub fn moved(&self, packets: u64, bytes: u64) {
        add(&self.packets, packets);
        add(&self.bytes, bytes);
    }

    /// `n` system calls, or doorbells.
    #[inline]
    pub fn called(&self, n: u64) {
        add(&self.calls, n);
    }

    /// `n` retries, because the other side was busy.
    #[inline]
    pub fn retried(&self, n: u64) {
        add(&self.retries, n);
    }

    /// `n` errors of the port itself (not of one packet): link lost, a call refused.
    #[inline]
    pub fn failed(&self, n: u64) {
        add(&self.errors, n);
    }

    /// `n` packets were lost outside of the queue, as the kernel or the device reports. Unlike the
    /// other counters, from any thread: what loses them need not be the queue's.
    #[inline]
    pub fn missed(&self, place: Missed, n: u64) {
        self.missed[place as usize].fetch_add(n, Relaxed);
    }

    /// A packet was cut into `segments`.
    #[inline]
    pub fn split(&self, segments: u64) {
        add(&self.split, segments.saturating_sub(1));
    }

    /// `n` packets were merged into others.
    #[inline]
    pub fn merged(&self, n: u64) {
        add(&self.merged, n);
    }

    /// `n` copies were made, for further egresses.
    #[inline]
    pub fn flooded(&self, n: u64) {
        add(&self.flooded, n);
    }

    /// `n` packets were made by the datapath itself.
    #[inline]
    pub fn originated(&self, n: u64) {
        add(&self.originated, n);
    }

    /// `packets` were copied because they could not be passed on in place, `bytes` of them.
    #[inline]
    pub fn copied(&self, packets: u64, bytes: u64) {
        add(&self.copied, packets);
        add(&self.copied_bytes, bytes);
    }

    /// `n` packets were dropped.
    #[inline]
    pub fn dropped(&self, reason: DropReason, n: u64) {
        add(&self.drops[reason as usize], n);
    }

    /// A packet, which the caller still has, is dropped. The [watch](Counters::watch_drops) sees
    /// it.
    #[cold]
    pub fn dropped_packet(&self, reason: DropReason, packet: &Packet) {
        self.dropped(reason, 1);
        self.show_dropped(reason, packet);
    }

    /// Shows the watch a packet that is counted by [`dropped`](Counters::dropped), with others.
    #[inline]
    pub fn show_dropped(&self, reason: DropReason, packet: &Packet) {
        if let Some(watch) = self.watch.get() {
            watch.dropped(reason, packet);
        }
    }

    /// Sets what sees the dropped packets, for good. Counters that have a watch keep it.
    pub fn watch_drops(&self, watch: Arc<dyn DropWatch>) {
        let _ = self.watch.set(watch);
    }

    /// The values now.
    pub fn snapshot(&self) -> Snapshot {
        let get = |c: &AtomicU64| c.load(Relaxed);
        Snapshot {
            packets: get(&self.packets),
            bytes: get(&self.bytes),
            calls: get(&self.calls),
            retries: get(&self.retries),
            errors: get(&self.errors),
            split: get(&self.split),
            merged: get(&self.merged),
            flooded: get(&self.flooded),
            originated: get(&self.originated),
            copied: get(&self.copied),
            copied_bytes: get(&self.copied_bytes),
            drops: std::array::from_fn(|i| get(&self.drops[i])),
            missed: std::array::from_fn(|i| get(&self.missed[i])),
        }
    }
}

/// Values of [`Counters`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Packets that came in or went out.
    pub packets: u64,
    /// Their bytes, without the preamble and check sequence of a wire.
    pub bytes: u64,
    /// System calls or doorbells.
    pub calls: u64,
    /// Times the other side was busy.
    pub retries: u64,
    /// Errors of the port.
    pub errors: u64,
    /// Packets that segmentation added: segments − 1 for each packet that was cut.
    pub split: u64,
    /// Packets that became part of others.
    pub merged: u64,
    /// Packets that copying for several egresses added: copies − 1 for each packet.
    pub flooded: u64,
    /// Packets that the datapath made itself: a router's solicitations, answers and errors.
    pub originated: u64,
    /// Packets that could not be handed on as they lay.
    pub copied: u64,
    /// Bytes of them that were copied.
    pub copied_bytes: u64,
    drops: [u64; REASONS],
    missed: [u64; PLACES],
}

impl Snapshot {
    /// Packets dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn all_drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// The reasons for which packets were dropped, with their numbers.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.iter().copied().zip(self.drops).filter(|&(_, n)| n > 0)
    }

    /// Packets lost at `place`.
    pub fn missed_at(&self, place: Missed) -> u64 {
        self.missed[place as usize]
    }

    /// Packets lost outside of the queue, at any place.
    pub fn all_missed(&self) -> u64 {
        self.missed.iter().sum()
    }

    /// The places where packets were lost outside of the queue, with their numbers.
    pub fn missed(&self) -> impl Iterator<Item = (Missed, u64)> {
        Missed::ALL.iter().copied().zip(self.missed).filter(|&(_, n)| n > 0)
    }

    /// Sums, member by member.
    #[must_use]
    pub fn plus(&self, other: &Snapshot) -> Snapshot {
        self.zip(other, u64::wrapping_add)
    }

    /// Differences since `earlier`, member by member.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        self.zip(earlier, u64::wrapping_sub)
    }

    fn zip(&self, other: &Snapshot, f: fn(u64, u64) -> u64) -> Snapshot {
        Snapshot {
            packets: f(self.packets, other.packets),
            bytes: f(self.bytes, other.bytes),
            calls: f(self.calls, other.calls),
            retries: f(self.retries, other.retries),
            errors: f(self.errors, other.errors),
            split: f(self.split, other.split),
            merged: f(self.merged, other.merged),
            flooded: f(self.flooded, other.flooded),
            originated: f(self.originated, other.originated),
            copied: f(self.copied, other.copied),
            copied_bytes: f(self.copied_bytes, other.copied_bytes),
            drops: std::array::from_fn(|i| f(self.drops[i], other.drops[i])),
            missed: std::array::from_fn(|i| f(self.missed[i], other.missed[i])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_told_apart_by_reason() {
        let c = Counters::default();
        c.dropped(DropReason::TooLong, 2);
        c.dropped(DropReason::NoBuffer, 1);
        let s = c.snapshot();
        assert_eq!(s.drops().collect::<Vec<_>>(), [(DropReason::NoBuffer, 1), (DropReason::TooLong, 2)]);
        assert_eq!(s.all_drops(), 3);
        assert_eq!(s.plus(&s).since(&s), s);
    }

    #[test]
    fn missed_packets_are_counted_by_place() {
        let c = Counters::default();
        c.missed(Missed::SocketBuffer, 2);
        c.missed(Missed::TunQueue, 1);
        c.missed(Missed::SocketBuffer, 3);
        let s = c.snapshot();
        assert_eq!(s.missed().collect::<Vec<_>>(), [(Missed::TunQueue, 1), (Missed::SocketBuffer, 5)]);
        assert_eq!((s.all_missed(), s.all_drops(), s.plus(&s).since(&s)), (6, 0, s));
    }
}

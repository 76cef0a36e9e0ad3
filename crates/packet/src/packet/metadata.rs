//! The metadata of a packet: requested offloads, VLAN tag, flow hash, time of arrival, ingress and
//! lane.

use super::{NoRoom, Packet};
use crate::meta::{Stamp, flag};
use crate::offload::{Checksum, Gso, GsoKind, Vlan};
use towpath_wire::ethernet::ethertype;
use towpath_wire::vlan::HEADER_LEN as TAG_LEN;

/// The two addresses of an Ethernet frame: a tag stands behind them (IEEE 802.1Q section 9.4).
const ADDRESSES_LEN: usize = 12;

impl Packet {
    /// Copies the metadata of another packet: offloads, VLAN tag, flow hash, time of arrival,
    /// ingress and lane. The headers in front of the transport header must have the same length in
    /// both packets.
    #[inline]
    pub fn copy_metadata_from(&mut self, other: &Packet) {
        let (from, to) = (other.as_meta(), self.meta_mut());
        to.stamp = from.stamp;
        (to.hash, to.csum_start, to.csum_offset) = (from.hash, from.csum_start, from.csum_offset);
        (to.gso_kind, to.gso_size, to.gso_segs, to.hdr_len) =
            (from.gso_kind, from.gso_size, from.gso_segs, from.hdr_len);
        (to.vlan_tci, to.port, to.rx_queue, to.lane) = (from.vlan_tci, from.port, from.rx_queue, from.lane);
        to.flags = to.flags & flag::EXTERNAL | from.flags & !flag::EXTERNAL;
    }

    /// The state of the transport checksum.
    #[inline]
    pub fn csum(&self) -> Checksum {
        let meta = self.meta();
        if meta.flags & flag::CSUM_PARTIAL != 0 {
            Checksum::Partial { start: meta.csum_start, offset: meta.csum_offset }
        } else if meta.flags & flag::CSUM_VERIFIED != 0 {
            Checksum::Verified
        } else {
            Checksum::Unknown
        }
    }

    /// Sets the state of the transport checksum.
    #[inline]
    pub fn set_csum(&mut self, csum: Checksum) {
        let meta = self.meta_mut();
        meta.flags &= !(flag::CSUM_PARTIAL | flag::CSUM_VERIFIED);
        match csum {
            Checksum::Unknown => {}
            Checksum::Verified => meta.flags |= flag::CSUM_VERIFIED,
            Checksum::Partial { start, offset } => {
                meta.flags |= flag::CSUM_PARTIAL;
                meta.csum_start = start;
                meta.csum_offset = offset;
            }
        }
    }

    /// The segmentation that a super-packet requests.
    #[inline]
    pub fn gso(&self) -> Option<Gso> {
        let meta = self.meta();
        if meta.flags & flag::GSO == 0 {
            return None;
        }
        let kind = match meta.gso_kind {
            1 => GsoKind::Tcp4,
            4 => GsoKind::Tcp6,
            _ => GsoKind::Udp,
        };
        let ecn = meta.flags & flag::GSO_ECN != 0;
        Some(Gso { kind, ecn, size: meta.gso_size, segs: meta.gso_segs, hdr_len: meta.hdr_len })
    }

    /// Makes the packet a super-packet, or an ordinary one.
    #[inline]
    pub fn set_gso(&mut self, gso: Option<Gso>) {
        let meta = self.meta_mut();
        meta.flags &= !(flag::GSO | flag::GSO_ECN);
        if let Some(gso) = gso {
            meta.flags |= flag::GSO | if gso.ecn { flag::GSO_ECN } else { 0 };
            meta.gso_kind = gso.kind as u8;
            meta.gso_size = gso.size;
            meta.gso_segs = gso.segs;
            meta.hdr_len = gso.hdr_len;
        }
    }

    /// Whether the packet requests anything that a plain port cannot do: a partial checksum,
    /// segmentation, an out-of-band VLAN tag.
    #[inline]
    pub fn wants_offload(&self) -> bool {
        self.meta().flags & (flag::CSUM_PARTIAL | flag::GSO | flag::VLAN) != 0
    }

    /// The out-of-band VLAN tag.
    #[inline]
    pub fn vlan(&self) -> Option<Vlan> {
        let meta = self.meta();
        let service = meta.flags & flag::VLAN_SERVICE != 0;
        (meta.flags & flag::VLAN != 0).then_some(Vlan { tci: meta.vlan_tci, service })
    }

    /// Sets or removes the out-of-band VLAN tag.
    #[inline]
    pub fn set_vlan(&mut self, vlan: Option<Vlan>) {
        let meta = self.meta_mut();
        meta.flags &= !(flag::VLAN | flag::VLAN_SERVICE);
        if let Some(Vlan { tci, service }) = vlan {
            meta.flags |= flag::VLAN | if service { flag::VLAN_SERVICE } else { 0 };
            meta.vlan_tci = tci;
        }
    }

    /// Inserts a VLAN tag into an Ethernet frame, behind the addresses, which move into the
    /// headroom (DPDK: `rte_vlan_insert`). The packet has no out-of-band tag afterwards.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is smaller than a tag, or the linear part can't have both
    /// addresses.
    #[inline]
    pub fn insert_vlan(&mut self, vlan: Vlan) -> Result<(), NoRoom> {
        self.make_linear(ADDRESSES_LEN)?;
        self.push_front(TAG_LEN)?;
        let head = self.linear_mut().first_chunk_mut::<{ ADDRESSES_LEN + TAG_LEN }>().ok_or(NoRoom)?;
        head.copy_within(TAG_LEN.., 0);
        let [a, b] = if vlan.service { ethertype::QINQ } else { ethertype::VLAN }.to_be_bytes();
        let [c, d] = vlan.tci.to_be_bytes();
        head[ADDRESSES_LEN..].copy_from_slice(&[a, b, c, d]);
        self.set_vlan(None);
        Ok(())
    }

    /// Hash of the packet's flow, if it was computed.
    #[inline]
    pub fn flow_hash(&self) -> Option<u32> {
        let meta = self.meta();
        (meta.flags & flag::HASH != 0).then_some(meta.hash)
    }

    /// Sets the hash of the packet's flow.
    #[inline]
    pub fn set_flow_hash(&mut self, hash: u32) {
        let meta = self.meta_mut();
        meta.flags |= flag::HASH;
        meta.hash = hash;
    }

    /// Lane that a verdict chose.
    #[inline]
    pub fn lane(&self) -> Option<u8> {
        self.meta().lane.checked_sub(1)
    }

    /// Chooses a lane, 0 to 254.
    #[inline]
    pub fn set_lane(&mut self, lane: Option<u8>) {
        self.meta_mut().lane = lane.map_or(0, |lane| lane.saturating_add(1));
    }

    /// Numbers of the port and the queue that received the packet.
    #[inline]
    pub fn ingress(&self) -> (u8, u8) {
        (self.meta().port, self.meta().rx_queue)
    }

    /// Sets the port and the queue that received the packet.
    #[inline]
    pub fn set_ingress(&mut self, port: u8, queue: u8) {
        let meta = self.meta_mut();
        meta.port = port;
        meta.rx_queue = queue;
    }

    /// Time of arrival in nanoseconds since the epoch; 0 if unknown.
    #[inline]
    pub fn timestamp(&self) -> u64 {
        // SAFETY: this is a head, where the field is the time; any bits are a number.
        unsafe { self.meta().stamp.time }
    }

    /// Sets the time of arrival, in nanoseconds since the epoch.
    #[inline]
    pub fn set_timestamp(&mut self, ns: u64) {
        self.meta_mut().stamp = Stamp { time: ns };
    }
}

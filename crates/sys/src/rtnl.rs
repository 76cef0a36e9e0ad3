//! What an interface is, its counters, those of its queueing discipline and of a veth's other end, by
//! `rtnetlink(7)`.

use super::netlink::{Socket, attribute};
use std::io;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_TARGET_NETNSID: u16 = 46;
/// In `IFLA_LINKINFO`.
const IFLA_INFO_KIND: u16 = 1;
/// In `IFLA_LINKINFO`.
const IFLA_INFO_DATA: u16 = 2;
/// In `IFLA_INFO_DATA` of a bond.
const IFLA_BOND_ACTIVE_SLAVE: u16 = 2;
/// `TC_H_ROOT`.
const ROOT: u32 = u32::MAX;
const TCA_STATS2: u16 = 7;
/// In `TCA_STATS2`: `struct gnet_stats_queue`.
const TCA_STATS_QUEUE: u16 = 3;

/// Counters of `struct rtnl_link_stats64` (`include/uapi/linux/if_link.h`). An interface receives
/// what comes from its wire; for a tun, that is what user space writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Packets transmitted.
    pub tx_packets: u64,
    /// Received packets that were dropped, without those of `rx_missed`.
    pub rx_dropped: u64,
    /// Packets that were dropped on their way out, after the queueing discipline.
    pub tx_dropped: u64,
    /// Packets for which the device had no buffer.
    pub rx_missed: u64,
}

/// What an interface is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its hardware address, if that has six bytes.
    pub mac: Option<[u8; 6]>,
    /// The index of the interface that it is a part of.
    pub master: Option<i32>,
    /// Of a bond, the index of its active slave.
    pub active_slave: Option<i32>,
}

impl Identity {
    /// Reads the attributes of `RTM_NEWLINK`.
    fn read(attributes: &[u8]) -> Identity {
        let index =
            |list: &[u8], kind| attribute(list, kind).and_then(|v| v.first_chunk().copied()).map(i32::from_ne_bytes);
        let name = attribute(attributes, IFLA_IFNAME).unwrap_or_default();
        let info = attribute(attributes, IFLA_LINKINFO).unwrap_or_default();
        let kind = attribute(info, IFLA_INFO_KIND).and_then(|kind| kind.strip_suffix(b"\0"));
        let data = attribute(info, IFLA_INFO_DATA).filter(|_| kind == Some(b"bond")).unwrap_or_default();
        Identity {
            name: String::from_utf8_lossy(name.strip_suffix(b"\0").unwrap_or(name)).into_owned(),
            mac: attribute(attributes, IFLA_ADDRESS).and_then(|mac| mac.try_into().ok()),
            master: index(attributes, IFLA_MASTER),
            active_slave: index(data, IFLA_BOND_ACTIVE_SLAVE),
        }
    }
}

/// One interface of the namespace in which this was made, or the other end of a veth.
#[derive(Debug)]
pub struct Link {
    socket: Socket,
    index: i32,
    /// The namespace of the interface, as an id of the socket's namespace.
    netns: Option<i32>,
}

impl Link {
    /// The interface `index` of the calling thread's namespace.
    ///
    /// # Errors
    /// The error of `socket(2)`.
    pub fn new(index: i32) -> io::Result<Link> {
        Ok(Link { socket: Socket::new(libc::NETLINK_ROUTE)?, index, netns: None })
    }

    /// The attributes of an interface of this one's namespace.
    fn attributes(&self, index: i32) -> io::Result<Vec<u8>> {
        let mut ifinfomsg = [0u8; 16];
        ifinfomsg[4..8].copy_from_slice(&index.to_ne_bytes());
        let netns = self.netns.unwrap_or(0).to_ne_bytes();
        // The value 0 sets no filter: `RTEXT_FILTER_SKIP_STATS` would leave the counters out.
        let all: [(u16, &[u8]); 2] = [(IFLA_EXT_MASK, &[0; 4]), (IFLA_TARGET_NETNSID, &netns)];
        let wanted = if self.netns.is_some() { &all[..] } else { &all[..1] };
        let mut answer = self.socket.request(libc::RTM_GETLINK, &ifinfomsg, wanted)?;
        Ok(answer.split_off(16.min(answer.len())))
    }

    /// The interface's index.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// What an interface of this one's namespace is.
    ///
    /// # Errors
    /// `ENODEV` if no interface has the index.
    pub fn identity(&self, index: i32) -> io::Result<Identity> {
        Ok(Identity::read(&self.attributes(index)?))
    }

    /// The interface's counters.
    ///
    /// # Errors
    /// `ENODEV` if no interface has the index; `InvalidData` for a short answer.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let attributes = self.attributes(self.index)?;
        let counters = attribute(&attributes, IFLA_STATS64).unwrap_or_default();
        let number = |at: usize| {
            let bytes = counters.get(8 * at..).and_then(|b| b.first_chunk().copied());
            bytes.map(u64::from_ne_bytes).ok_or(io::ErrorKind::InvalidData)
        };
        Ok(Statistics {
            tx_packets: number(1)?,
            rx_dropped: number(6)?,
            tx_dropped: number(7)?,
            rx_missed: number(15)?,
        })
    }

    /// Packets that the queueing discipline at the root dropped since it was attached; with a queue
    /// for each processor (`mq`), their sum.
    ///
    /// # Errors
    /// The error of the kernel; `NotFound` if it hides the queueing discipline.
    pub fn qdisc_drops(&self) -> io::Result<u64> {
        let mut tcmsg = [0u8; 20];
        tcmsg[4..8].copy_from_slice(&self.index.to_ne_bytes());
        tcmsg[12..16].copy_from_slice(&ROOT.to_ne_bytes());
        let answer = self.socket.request(libc::RTM_GETQDISC, &tcmsg, &[])?;
        let queue = attribute(answer.get(20..).unwrap_or_default(), TCA_STATS2)
            .and_then(|statistics| attribute(statistics, TCA_STATS_QUEUE))
            .and_then(|queue| queue.get(8..)?.first_chunk().copied());
        queue.map(|drops| u32::from_ne_bytes(drops).into()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Whether the interface is in another namespace than the socket.
    pub fn is_elsewhere(&self) -> bool {
        self.netns.is_some()
    }

    /// The other end, if the interface is one of a veth pair.
    ///
    /// # Errors
    /// As for [`statistics`](Link::statistics); `EPERM` without `CAP_NET_ADMIN` in the other end's
    /// namespace.
    pub fn veth_peer(&self) -> io::Result<Option<Link>> {
        let attributes = self.attributes(self.index)?;
        let number = |kind| attribute(&attributes, kind).and_then(|v| v.first_chunk().copied()).map(i32::from_ne_bytes);
        let kind = attribute(&attributes, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_KIND));
        if kind.and_then(|kind| kind.strip_suffix(b"\0")) != Some(b"veth") {
            return Ok(None);
        }
        let Some(index) = number(IFLA_LINK) else { return Ok(None) };
        let peer = Link { socket: Socket::new(libc::NETLINK_ROUTE)?, index, netns: number(IFLA_LINK_NETNSID) };
        peer.statistics()?;
        Ok(Some(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_a_name_counters_a_queueing_discipline_that_drops_nothing_and_no_other_end() {
        let lo = Link::new(1).unwrap();
        lo.statistics().unwrap();
        assert!(lo.veth_peer().unwrap().is_none());
        let identity = lo.identity(lo.index()).unwrap();
        assert_eq!((identity.name.as_str(), identity.mac, identity.master), ("lo", Some([0; 6]), None));
        assert_eq!(lo.qdisc_drops().unwrap_or(0), 0);
        assert_eq!(Link::new(i32::MAX).unwrap().statistics().unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    /// An attribute.
    fn nla(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_bond_has_an_active_slave_and_its_slave_a_master() {
        let data = nla(IFLA_BOND_ACTIVE_SLAVE, &7i32.to_ne_bytes());
        let info = |kind: &[u8]| [nla(IFLA_INFO_KIND, kind), nla(IFLA_INFO_DATA, &data)].concat();
        let bond = [nla(IFLA_IFNAME, b"bond0\0"), nla(IFLA_LINKINFO, &info(b"bond\0"))].concat();
        let identity = Identity::read(&bond);
        assert_eq!((identity.name.as_str(), identity.active_slave), ("bond0", Some(7)));
        let other = Identity::read(&nla(IFLA_LINKINFO, &info(b"bridge\0")));
        assert_eq!(other, Identity::default(), "the number means something else there");
        let slave = [nla(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]), nla(IFLA_MASTER, &3i32.to_ne_bytes())].concat();
        let identity = Identity::read(&slave);
        assert_eq!((identity.mac, identity.master), (Some([2, 0, 0, 0, 0, 1]), Some(3)));
        assert_eq!(Identity::read(&nla(IFLA_ADDRESS, &[])).mac, None);
    }
}

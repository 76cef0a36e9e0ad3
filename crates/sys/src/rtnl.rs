//! Interfaces by `rtnetlink(7)`: what they are, their changes, their counters, and those of their
//! queueing disciplines and of a veth's other end.

use super::netlink::{Socket, attribute, message};
use super::route_socket::{RouteSocket, group};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_TXQLEN: u16 = 13;
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
#[non_exhaustive]
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

    /// The interface's index.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// The interface's settings; `None` if no interface has the index.
    ///
    /// # Errors
    /// The error of the kernel; `InvalidData` for a short answer.
    pub fn info(&self) -> io::Result<Option<LinkInfo>> {
        self.info_of(self.index)
    }

    /// The same of another interface of this one's namespace.
    ///
    /// # Errors
    /// As [`info`](Link::info).
    pub fn info_of(&self, index: i32) -> io::Result<Option<LinkInfo>> {
        match self.message(index) {
            Ok(message) => LinkInfo::parse(&message).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The attributes of the interface.
    fn attributes(&self) -> io::Result<Vec<u8>> {
        let mut message = self.message(self.index)?;
        Ok(message.split_off(IFINFOMSG.min(message.len())))
    }

    /// The message about an interface: `struct ifinfomsg` and attributes.
    fn message(&self, index: i32) -> io::Result<Vec<u8>> {
        let mut ifinfomsg = [0u8; 16];
        ifinfomsg[4..8].copy_from_slice(&index.to_ne_bytes());
        let netns = self.netns.unwrap_or(0).to_ne_bytes();
        // The value 0 sets no filter: `RTEXT_FILTER_SKIP_STATS` would leave the counters out.
        let all: [(u16, &[u8]); 2] = [(IFLA_EXT_MASK, &[0; 4]), (IFLA_TARGET_NETNSID, &netns)];
        let wanted = if self.netns.is_some() { &all[..] } else { &all[..1] };
        self.socket.request(libc::RTM_GETLINK, &ifinfomsg, wanted)
    }

    /// The interface's counters.
    ///
    /// # Errors
    /// `ENODEV` if no interface has the index; `InvalidData` for a short answer.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let attributes = self.attributes()?;
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
        let attributes = self.attributes()?;
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

/// Settings of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu: u32,
    /// Length of its transmit queue, in packets.
    pub queue_len: u32,
    /// Whether it is set up (`IFF_UP`).
    pub up: bool,
    /// Whether packets can pass (`IFF_LOWER_UP`).
    pub carrier: bool,
    /// Its hardware address, if that has six bytes.
    pub mac: Option<[u8; 6]>,
    /// The index of the interface that it is a part of.
    pub master: Option<i32>,
    /// Of a bond, the index of its active slave.
    pub active_slave: Option<i32>,
}

/// Bytes of `struct ifinfomsg`: family, type, index (4), flags (8), change.
const IFINFOMSG: usize = 16;

impl LinkInfo {
    /// Reads what is behind the `nlmsghdr` of a message about an interface.
    fn parse(message: &[u8]) -> Option<LinkInfo> {
        let flags = i32::from_ne_bytes(*message.get(8..)?.first_chunk()?);
        let attributes = message.get(IFINFOMSG..)?;
        let index = |list, kind| attribute(list, kind)?.first_chunk().copied().map(i32::from_ne_bytes);
        let number = |kind| Some(u32::from_ne_bytes(*attribute(attributes, kind)?.first_chunk()?));
        let info = attribute(attributes, IFLA_LINKINFO).unwrap_or_default();
        let kind = attribute(info, IFLA_INFO_KIND).and_then(|kind| kind.strip_suffix(b"\0"));
        let data = attribute(info, IFLA_INFO_DATA).filter(|_| kind == Some(b"bond")).unwrap_or_default();
        let name = attribute(attributes, IFLA_IFNAME)?;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(LinkInfo {
            name: String::from_utf8_lossy(name).into_owned(),
            mtu: number(IFLA_MTU)?,
            queue_len: number(IFLA_TXQLEN).unwrap_or(0),
            up: flags & libc::IFF_UP != 0,
            carrier: flags & libc::IFF_LOWER_UP != 0,
            mac: attribute(attributes, IFLA_ADDRESS).and_then(|mac| mac.try_into().ok()),
            master: index(attributes, IFLA_MASTER),
            active_slave: index(data, IFLA_BOND_ACTIVE_SLAVE),
        })
    }
}

/// What the kernel announces about one interface of the namespace in which this was made.
#[derive(Debug)]
pub struct LinkEvents {
    socket: RouteSocket,
    link: Link,
    buffer: Box<[u8]>,
    /// What of the buffer has not been read.
    rest: std::ops::Range<usize>,
}

impl LinkEvents {
    /// Listens for announcements about the interface `index`.
    ///
    /// # Errors
    /// The error of `socket(2)` or `bind(2)`.
    pub fn new(index: i32) -> io::Result<LinkEvents> {
        Ok(LinkEvents {
            socket: RouteSocket::new(group::LINK)?,
            link: Link::new(index)?,
            buffer: vec![0; 32768].into(),
            rest: 0..0,
        })
    }

    /// The interface after the next announcement; `None` if it vanished. Does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if there is no announcement; another error of `recvfrom(2)`.
    pub fn receive(&mut self) -> io::Result<Option<LinkInfo>> {
        loop {
            let bytes = self.buffer.get(self.rest.clone()).unwrap_or_default();
            if let Some((kind, body, rest)) = message(bytes) {
                self.rest.start = self.rest.end - rest.len();
                let index = body.get(4..).and_then(|b| b.first_chunk().copied()).map(i32::from_ne_bytes);
                match kind {
                    libc::RTM_NEWLINK if index == Some(self.link.index) => {
                        if let Some(info) = LinkInfo::parse(body) {
                            return Ok(Some(info));
                        }
                    }
                    // A bridge announces with the same type that a port left it (AF_BRIDGE).
                    libc::RTM_DELLINK if index == Some(self.link.index) && body.first() == Some(&0) => {
                        return Ok(None);
                    }
                    _ => {}
                }
                continue;
            }
            self.rest = match self.socket.receive(&mut self.buffer) {
                Ok(Some(n)) => 0..n,
                Ok(None) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return self.link.info(),
                Err(error) => return Err(error),
            };
        }
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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
        let info = lo.info().unwrap().unwrap();
        assert_eq!((info.name.as_str(), info.mac, info.master), ("lo", Some([0; 6]), None));
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
        let parse = |attributes: &[Vec<u8>]| {
            let always = [nla(IFLA_IFNAME, b"bond0\0"), nla(IFLA_MTU, &1500u32.to_ne_bytes())];
            LinkInfo::parse(&[&[0; IFINFOMSG][..], &always.concat(), &attributes.concat()].concat()).unwrap()
        };
        let data = nla(IFLA_BOND_ACTIVE_SLAVE, &7i32.to_ne_bytes());
        let info = |kind: &[u8]| nla(IFLA_LINKINFO, &[nla(IFLA_INFO_KIND, kind), nla(IFLA_INFO_DATA, &data)].concat());
        let bond = parse(&[info(b"bond\0")]);
        assert_eq!((bond.name.as_str(), bond.active_slave), ("bond0", Some(7)));
        assert_eq!(parse(&[info(b"bridge\0")]).active_slave, None, "the number means something else there");
        let slave = parse(&[nla(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]), nla(IFLA_MASTER, &3i32.to_ne_bytes())]);
        assert_eq!((slave.mac, slave.master), (Some([2, 0, 0, 0, 0, 1]), Some(3)));
        assert_eq!(parse(&[nla(IFLA_ADDRESS, &[])]).mac, None);
    }
}

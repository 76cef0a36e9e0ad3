//! TCP, UDP and ICMP echo headers.

use super::Checksums;
use crate::checksum::{self, add, finish};
use crate::ip::protocol;
use crate::options::NOP;
use crate::tcp::kind;
use crate::{Error, icmp, tcp, udp};

/// A TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Control bits, see [`tcp::flags`].
    pub flags: u8,
    /// Window.
    pub window: u16,
    /// Options, at most 40 bytes; padded with zeros to a multiple of 4.
    pub options: &'a [u8],
}

/// A UDP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

impl Udp {
    /// Writes the ports of a header without a length and a checksum; returns the bytes after it.
    pub(super) fn write_ports<'a>(&self, segment: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let (mut header, rest) = udp::Header::split_mut(segment)?;
        header.set_src_port(self.src_port);
        header.set_dst_port(self.dst_port);
        header.set_length(0);
        header.set_checksum(0);
        Ok(rest)
    }
}

/// An ICMP or ICMPv6 echo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    /// A reply, else a request.
    pub reply: bool,
    /// Identifier.
    pub id: u16,
    /// Sequence number.
    pub seq: u16,
}

/// The transport layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport<'a> {
    /// TCP.
    Tcp(Tcp<'a>),
    /// UDP.
    Udp(Udp),
    /// ICMP echo, or ICMPv6 echo over IPv6.
    Echo(Echo),
    /// Any protocol whose header is part of the payload.
    Raw(u8),
}

impl Transport<'_> {
    pub(super) const fn protocol(&self, is_v4: bool) -> u8 {
        match self {
            Transport::Tcp(_) => protocol::TCP,
            Transport::Udp(_) => protocol::UDP,
            Transport::Echo(_) if is_v4 => protocol::ICMP,
            Transport::Echo(_) => protocol::ICMPV6,
            Transport::Raw(protocol) => *protocol,
        }
    }

    /// Length of the header with its options.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        match self {
            Transport::Tcp(tcp) => tcp::HEADER_LEN + tcp.options.len().next_multiple_of(4),
            Transport::Udp(_) => udp::HEADER_LEN,
            Transport::Echo(_) => icmp::HEADER_LEN,
            Transport::Raw(_) => 0,
        }
    }

    /// Writes the header of a segment that fills `segment`. `pseudo` is the sum of the
    /// pseudo-header if the protocol has one, `payload` the sum of the bytes after the header.
    pub(super) fn write(
        &self,
        segment: &mut [u8],
        is_v4: bool,
        pseudo: Option<u16>,
        payload: u16,
        checksums: Checksums,
    ) -> Result<(), Error> {
        let len = segment.len();
        let check = |header: &[u8]| match (pseudo, checksums) {
            (Some(pseudo), Checksums::Partial) => pseudo,
            _ => finish(add(pseudo.unwrap_or(0), add(payload, checksum::sum(header)))),
        };
        match self {
            Transport::Tcp(tcp) => {
                let header_len = self.header_len();
                if header_len > 60 {
                    return Err(Error::HeaderLength);
                }
                let head = segment.get_mut(..header_len).ok_or(Error::Truncated)?;
                let (mut header, options) = tcp::Header::split_mut(head)?;
                header.set_src_port(tcp.src_port);
                header.set_dst_port(tcp.dst_port);
                header.set_seq(tcp.seq);
                header.set_ack(tcp.ack);
                header.set_header_len(header_len);
                header.set_flags(tcp.flags);
                header.set_window(tcp.window);
                header.set_checksum(0);
                header.set_urgent(0);
                options.fill(0);
                options.get_mut(..tcp.options.len()).ok_or(Error::Truncated)?.copy_from_slice(tcp.options);
                let check = check(head);
                tcp::Header::split_mut(head)?.0.set_checksum(check);
            }
            Transport::Udp(udp) => {
                let (mut header, _) = udp::Header::split_mut(segment)?;
                header.set_src_port(udp.src_port);
                header.set_dst_port(udp.dst_port);
                header.set_length(len.try_into().map_err(|_| Error::Length)?);
                header.set_checksum(0);
                let check = check(header.bytes());
                header.set_checksum(if check == 0 { 0xffff } else { check });
            }
            Transport::Echo(echo) => {
                let (mut header, _) = icmp::Header::split_mut(segment)?;
                header.set_kind(echo.kind(is_v4));
                header.set_code(0);
                header.set_checksum(0);
                header.set_id(echo.id);
                header.set_seq(echo.seq);
                let check = check(header.bytes());
                header.set_checksum(check);
            }
            Transport::Raw(_) => {}
        }
        Ok(())
    }
}

impl Echo {
    const fn kind(&self, is_v4: bool) -> u8 {
        match (is_v4, self.reply) {
            (true, false) => icmp::v4::ECHO_REQUEST,
            (true, true) => icmp::v4::ECHO_REPLY,
            (false, false) => icmp::v6::ECHO_REQUEST,
            (false, true) => icmp::v6::ECHO_REPLY,
        }
    }
}

/// The timestamps option as stacks send it: aligned by two [`NOP`]s
/// ([RFC 7323](https://www.rfc-editor.org/rfc/rfc7323) appendix A).
#[must_use]
pub const fn timestamps(value: u32, echo: u32) -> [u8; 12] {
    let ([a, b, c, d], [e, f, g, h]) = (value.to_be_bytes(), echo.to_be_bytes());
    [NOP, NOP, kind::TIMESTAMPS, 10, a, b, c, d, e, f, g, h]
}

/// The options of a SYN: maximum segment size and window scale.
#[must_use]
pub const fn mss_and_window_scale(mss: u16, shift: u8) -> [u8; 8] {
    let [a, b] = mss.to_be_bytes();
    [kind::MSS, 4, a, b, NOP, kind::WINDOW_SCALE, 3, shift]
}

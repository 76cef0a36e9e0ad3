//! Segmentation: one super-packet in, ordinary packets out.
//!
//! ```text
//! pieces:  [ headers | payload ........ ][ payload .... ][ payload ....... ]
//! write 0: [ headers'| payload 0 ]
//! write 1: [ headers'| payload 1 ]          each one copy, summed while it is copied
//! write 2: [ headers'| payload 2, shorter ]
//! ```
//!
//! [`Split`] is pulled: [`Split::next_len`] returns a length, the caller provides a buffer of that
//! length, and [`Split::write`] fills it. It allocates nothing and holds nothing but the pieces. An
//! ordinary packet comes out as one packet, its checksum completed.
//!
//! The packet and its [`Offload`] are untrusted: the result is legal segments or a [`GsoError`].
//!
//! Every segment gets IP lengths and header checksums, IPv4 identifications that count up unless
//! [`Offload::fixed_id`], TCP sequence numbers, FIN and PSH in the last only, CWR in the first only
//! with [`ecn`](towpath_wire::offload::Gso::ecn), UDP lengths, transport checksums, and the
//! lengths, identifications and checksums of one layer of tunnel.
//!
//! | file | |
//! |---|---|
//! | `template` | what the headers of all segments have in common |

mod template;

use core::{fmt, iter};

use towpath_wire::checksum::{self, add, finish, finish_udp, swap_for_odd};
use towpath_wire::offload::{Checksum, Checksums, LinkKind};

use crate::bytes::{length_field, put16, put32, sum};
use crate::fixup::{self, Describe};
use crate::layout::{FIN_PSH, Layout, MAX_HEADER, Outer};
use crate::offload::Offload;
use crate::payload::{Payload, gather};

use template::Template;

/// The smallest segment size accepted for TCP, as in Linux (`TCP_MIN_GSO_SIZE`): smaller segments
/// would consist of headers.
pub const MIN_TCP_SIZE: u16 = 8;

/// The longest headers of a packet that is segmented, in bytes.
pub const MAX_HEADERS: usize = MAX_HEADER;

const CWR: u8 = 0x80;

/// Why a packet cannot be segmented, or its checksum not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GsoError {
    /// The segment size is 0, below [`MIN_TCP_SIZE`], too large for an IP length field, or yields
    /// more than [`MAX_UDP_SEGMENTS`](towpath_wire::offload::MAX_UDP_SEGMENTS).
    Size,
    /// The packet ends inside its headers, or they are longer than 512 bytes.
    Truncated,
    /// The headers are not those of the transport the metadata names.
    Headers,
    /// The place of the partial checksum is outside the packet, or not the transport header's.
    Checksum,
}

impl fmt::Display for GsoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "the segment size is 0, too small, too large or yields too many segments",
            Self::Truncated => "the packet ends inside its headers",
            Self::Headers => "the headers are not of the transport the GSO type names",
            Self::Checksum => "the partial checksum is not where the transport header has it",
        })
    }
}

impl core::error::Error for GsoError {}

/// The packets of one super-packet, written one by one into buffers of the caller.
///
/// ```
/// use towpath_gro::{Checksums, LinkKind, Offload, Split};
/// # fn send(_: &[u8]) {}
/// # let (head, fragment, offload) = (&[0u8; 60][..], &[0u8; 100][..], Offload::default());
/// let pieces = [head, fragment];
/// let (link, checksums) = (LinkKind::Ethernet, Checksums::Complete);
/// let mut split = Split::new(pieces.into_iter(), link, &offload, checksums)?;
/// let mut buffer = [0u8; 2048];
/// while let Some(len) = split.next_len() {
///     let Some(out) = buffer.get_mut(..len) else { break };
///     split.write(out);
///     send(out);
/// }
/// # Ok::<(), towpath_gro::GsoError>(())
/// ```
pub struct Split<'a, I> {
    payload: Payload<'a, I>,
    /// Payload bytes not written yet.
    left: usize,
    /// Packets not written yet.
    packets: usize,
    /// Packets written.
    written: usize,
    /// Payload bytes of a packet.
    size: usize,
    checksum: Checksum,
    checksums: Checksums,
    /// The headers of the super-packet; `None` if the packet leaves as one, headers and all as
    /// payload.
    template: Option<Template>,
    /// The headers of the next segment, before it is known how long it is.
    header: [u8; MAX_HEADER],
}

/// The packets of a super-packet that lies in one piece.
pub type SplitWhole<'a> = Split<'a, iter::Once<&'a [u8]>>;

impl<'a> SplitWhole<'a> {
    /// [`Split::new`] for a packet that lies in one piece.
    ///
    /// # Errors
    ///
    /// As [`Split::new`].
    pub fn of(packet: &'a [u8], link: LinkKind, offload: &Offload, checksums: Checksums) -> Result<Self, GsoError> {
        Self::new(iter::once(packet), link, offload, checksums)
    }

    /// The next packet without copying its payload: writes its headers to the beginning of
    /// `headers`, and returns their length and the payload behind them. `None`, and nothing has
    /// changed, if there is no next packet or `headers` is too short: [`MAX_HEADERS`] are enough
    /// for a segment. Of a packet that leaves as one, all bytes up to a checksum that is completed
    /// are headers.
    pub fn next_slices(&mut self, headers: &mut [u8]) -> Option<Slices<'a>> {
        let len = self.next_len()?;
        let completed = match (self.checksum, self.checksums) {
            (Checksum::Partial { start, offset }, Checksums::Complete) => Some((start.into(), offset.into())),
            _ => None,
        };
        let header = match (&self.template, completed) {
            (Some(template), _) => template.layout.header.into(),
            (None, Some((start, offset))) => start + offset + 2,
            (None, None) => 0,
        };
        let headers = headers.get_mut(..header)?;
        let mut payload: &'a [u8] = &[];
        let checksum = match (self.template, completed) {
            (Some(template), _) => self.headers(&template, headers, len, |from, checksums| {
                payload = from.next(len - header);
                if checksums == Checksums::Complete { checksum::sum(payload) } else { 0 }
            }),
            (None, Some((start, offset))) => {
                self.payload.copy(headers);
                payload = self.payload.next(len - header);
                let rest = checksum::sum(payload);
                let rest = if (header - start) % 2 == 1 { swap_for_odd(rest) } else { rest };
                store_checksum(headers, start, offset, add(sum(headers, start, header), rest));
                Checksum::Verified
            }
            (None, None) => {
                payload = self.payload.next(len);
                self.checksum
            }
        };
        self.advance();
        Some(Slices { headers: header, payload, offload: Offload::new(checksum, None) })
    }
}

/// A packet of [`Split::next_slices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices<'a> {
    /// Length of its headers.
    pub headers: usize,
    /// Its other bytes.
    pub payload: &'a [u8],
    /// Its metadata.
    pub offload: Offload,
}

impl<'a, I: Iterator<Item = &'a [u8]> + Clone> Split<'a, I> {
    /// Prepares the segmentation of the packet that `pieces` make up, headers first. Headers need
    /// not be in one piece.
    ///
    /// # Errors
    ///
    /// [`GsoError`], if the metadata cannot be true of the packet. Nothing has been written then.
    pub fn new(pieces: I, link: LinkKind, offload: &Offload, checksums: Checksums) -> Result<Self, GsoError> {
        let mut header = [0; MAX_HEADER];
        let (gathered, len) = gather(pieces.clone(), &mut header);
        if len == 0 {
            return Err(GsoError::Truncated);
        }
        if let Checksum::Partial { start, offset } = offload.checksum
            && usize::from(start) + usize::from(offset) + 2 > len
        {
            return Err(GsoError::Checksum);
        }
        let mut split = Self {
            payload: Payload::new(pieces),
            left: len,
            packets: 1,
            written: 0,
            size: len,
            checksum: offload.checksum,
            checksums,
            template: None,
            header,
        };
        if let Some(gso) = offload.gso {
            let headers = header.get(..gathered).unwrap_or_default();
            let template = Template::new(headers, len, link, gso, offload)?;
            split.size = usize::from(gso.size);
            split.left = len - usize::from(template.layout.header);
            split.packets = template.packets(len)?;
            split.payload.skip(template.layout.header.into());
            split.template = Some(template);
        }
        Ok(split)
    }

    /// How many packets are still to be written.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// The length of the next packet; `None` if all have been written.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        let header = self.template.map_or(0, |t| usize::from(t.layout.header));
        (self.packets > 0).then(|| header + self.left.min(self.size))
    }

    /// Writes the next packet to the first [`next_len`](Self::next_len) bytes of `out` and returns
    /// its metadata. `None`, and nothing has changed, if there is no next packet or `out` is
    /// shorter.
    #[inline]
    pub fn write(&mut self, out: &mut [u8]) -> Option<Offload> {
        let out = out.get_mut(..self.next_len()?)?;
        let checksum = match self.template {
            None => {
                self.payload.copy(out);
                self.finish_whole(out)
            }
            Some(template) => self.segment(&template, out),
        };
        self.advance();
        Some(Offload::new(checksum, None))
    }

    fn advance(&mut self) {
        self.packets -= 1;
        self.written += 1;
        self.left = self.left.saturating_sub(self.size);
    }

    fn finish_whole(&self, out: &mut [u8]) -> Checksum {
        match (self.checksum, self.checksums) {
            (Checksum::Partial { start, offset }, Checksums::Complete) => {
                complete_at(out, start.into(), offset.into());
                Checksum::Verified
            }
            (unchanged, _) => unchanged,
        }
    }

    fn segment(&mut self, t: &Template, out: &mut [u8]) -> Checksum {
        let len = out.len();
        let Some((header, payload)) = out.split_at_mut_checked(t.layout.header.into()) else {
            return Checksum::Unknown;
        };
        self.headers(t, header, len, |from, checksums| match checksums {
            Checksums::Complete => from.copy_and_sum(payload),
            Checksums::Partial => {
                from.copy(payload);
                0
            }
        })
    }

    /// Writes the headers of the next segment, of `len` bytes. `take` takes its payload, and
    /// returns the sum of it if checksums are completed.
    #[inline(always)]
    fn headers(
        &mut self,
        t: &Template,
        header: &mut [u8],
        len: usize,
        take: impl FnOnce(&mut Payload<'a, I>, Checksums) -> u16,
    ) -> Checksum {
        let last = self.packets == 1;
        let layout = &t.layout;
        let l4 = usize::from(layout.l4);
        header.copy_from_slice(self.header.get(..header.len()).unwrap_or_default());

        let index = self.written as u16;
        let id = |first: u16, fixed| if fixed { first } else { first.wrapping_add(index) };
        let l3 = usize::from(layout.l3);
        fixup::ip(header, l3, layout.v6, len - l3, id(t.id, t.fixed_id), t.ip_sum);
        // The headers are summed by what changes: a load of fields that were stored a moment ago
        // would wait for those stores.
        let mut headers = t.l4_sum;
        if layout.udp {
            let length = length_field(len - l4);
            put16(header, l4 + 4, length);
            headers = add(headers, length);
        } else {
            let seq = t.seq.wrapping_add((self.written * self.size) as u32);
            put32(header, l4 + 4, seq);
            let mut flags = t.flags;
            if !last {
                flags &= !u16::from(FIN_PSH);
            }
            if self.written > 0 && t.gso.ecn {
                flags &= !u16::from(CWR);
            }
            put16(header, l4 + 12, flags);
            headers = add(add(headers, flags), add((seq >> 16) as u16, seq as u16));
        }
        let field = l4 + usize::from(layout.checksum_offset());
        let pseudo = fixup::pseudo(t.addresses, layout.protocol(), len - l4);
        let checksum = match self.checksums {
            Checksums::Complete => {
                let total = add(add(pseudo, headers), take(&mut self.payload, Checksums::Complete));
                put16(header, field, fixup::finish_transport(total, layout.udp));
                Checksum::Verified
            }
            Checksums::Partial => {
                take(&mut self.payload, Checksums::Partial);
                put16(header, field, pseudo);
                Checksum::Partial { start: layout.l4, offset: layout.checksum_offset() }
            }
        };
        let outer_id = id(t.outer_id, t.outer_fixed_id);
        fixup::outer(header, layout, len, Describe::Segment(outer_id));
        checksum
    }
}

/// The segments of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Bytes of headers, in front of the payload of each segment.
    pub header: usize,
    /// Number of segments.
    pub packets: usize,
    /// Whether the headers are those of a tunnel as well.
    pub tunneled: bool,
}

impl Cuts {
    /// Computes the segments of a packet of `len` bytes from its beginning: `start` has all of its
    /// headers. An ordinary packet is one segment without headers.
    ///
    /// # Errors
    ///
    /// As [`Split::new`].
    pub fn of(start: &[u8], len: usize, link: LinkKind, offload: &Offload) -> Result<Self, GsoError> {
        let Some(gso) = offload.gso else { return Ok(Self { header: 0, packets: 1, tunneled: false }) };
        let start = start.get(..len).unwrap_or(start);
        let template = Template::new(start, len, link, gso, offload)?;
        let Layout { header, outer, .. } = template.layout;
        Ok(Self { header: header.into(), packets: template.packets(len)?, tunneled: outer != Outer::None })
    }
}

/// Completes a partial checksum in place. `packet` is the whole packet. Other checksums stay as
/// they are.
///
/// # Errors
///
/// [`GsoError::Checksum`] if its place is outside the packet.
pub fn complete_checksum(packet: &mut [u8], offload: &Offload) -> Result<(), GsoError> {
    let Checksum::Partial { start, offset } = offload.checksum else {
        return Ok(());
    };
    let (start, offset) = (usize::from(start), usize::from(offset));
    if start + offset + 2 > packet.len() {
        return Err(GsoError::Checksum);
    }
    complete_at(packet, start, offset);
    Ok(())
}

fn complete_at(packet: &mut [u8], start: usize, offset: usize) {
    store_checksum(packet, start, offset, sum(packet, start, packet.len()));
}

fn store_checksum(packet: &mut [u8], start: usize, offset: usize, total: u16) {
    // Only UDP has its field at offset 6.
    let check = if offset == 6 { finish_udp(total) } else { finish(total) };
    put16(packet, start + offset, check);
}

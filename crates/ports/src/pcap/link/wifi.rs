//! 802.11: data frames as the station or the access point would see them on Ethernet.
//!
//! ```text
//!                                     to DS   from DS   destination     source
//!   control   2  ─► type, subtype,      0        0      address 1       address 2    (ad hoc)
//!   duration  2     flags               0        1      address 1       address 3
//!   address 1, 2, 3, sequence           1        0      address 3       address 2
//!   address 4 if to and from DS         1        1      address 3       address 4    (mesh)
//!   QoS 2, HT control 4 ─► A-MSDU?
//!   body ─┬─ 802.2 header, packet
//!         └─ A-MSDU: (destination, source, length, 802.2 header, packet, padding to words) ...
//! ```
//!
//! Frames of other types, encrypted ones, fragments and those without a body have no such form.
//! Retransmissions are frames as any other. Fields are those of IEEE 802.11-2020: headers in 9.2.4,
//! A-MSDUs in 9.3.2.2.

use super::parts::{Captured, Parts};
use super::{Payload, Unfit, lan};
use towpath_wire::ethernet::Mac;

/// Most bytes of an A-MSDU, that of a VHT frame.
const MAX_AMSDU: usize = 11_454;

/// An 802.11 frame without a check sequence. If `padded`, its header is padded to words.
pub(super) fn payload(frame: Captured<'_>, padded: bool) -> Result<Payload<'_>, Unfit> {
    // Version, type, subtype; flags.
    let [kind, flags] = frame.bytes(0)?;
    match kind & 0x0f {
        0x08 => {}
        // Beacons of 60 GHz are of the type of extensions.
        0x00 | 0x0c => return Err(Unfit::Management),
        0x04 => return Err(Unfit::Control),
        _ => return Err(Unfit::NoType),
    }
    let [has_qos, has_no_data] = [0x80, 0x40].map(|bit| kind & bit != 0);
    let [to_ds, from_ds, more_fragments, protected, order] = [0x01, 0x02, 0x04, 0x40, 0x80].map(|bit| flags & bit != 0);
    if has_no_data {
        return Err(Unfit::NoData);
    }
    if protected {
        return Err(Unfit::Encrypted);
    }
    let [sequence, _] = frame.bytes(22)?;
    if more_fragments || sequence & 0x0f != 0 {
        return Err(Unfit::Fragment);
    }
    let [one, two, three]: [Mac; 3] = [frame.bytes(4)?, frame.bytes(10)?, frame.bytes(16)?];
    let mut header = 24;
    let (destination, source) = match (to_ds, from_ds) {
        (false, false) => (one, two),
        (false, true) => (one, three),
        (true, false) => (three, two),
        (true, true) => {
            header += 6;
            (three, frame.bytes(24)?)
        }
    };
    let qos = if has_qos { frame.bytes(header)? } else { [0; 2] };
    header += if has_qos { 2 } else { 0 } + if has_qos && order { 4 } else { 0 };
    if padded {
        header = header.next_multiple_of(4);
    }
    let body = frame.skip(header)?;
    if body.len() == 0 {
        return Err(Unfit::NoData);
    }
    // The bit has other meanings outside of a mesh. Within one, frames have four addresses, or
    // three if they are for a group.
    let in_mesh = qos[1] & 1 != 0 && from_ds && (to_ds || one[0] & 1 != 0);
    if qos[0] & 0x80 != 0 {
        return Ok(Payload::Aggregate(Subframes { rest: body, left: MAX_AMSDU, in_mesh }));
    }
    msdu(body, destination, source, in_mesh).map(Payload::One)
}

/// The body of a frame or subframe, behind the mesh control if there is one.
fn msdu(mut body: Captured<'_>, mut destination: Mac, mut source: Mac, in_mesh: bool) -> Result<Parts<'_>, Unfit> {
    // The number of further addresses, in an octet whose other bits are zero; no 802.2 header
    // begins so.
    if let ([extension @ 0..=2, ..], true) = (body.data, in_mesh) {
        match extension {
            1 => source = body.bytes(6)?,
            2 => (destination, source) = (body.bytes(6)?, body.bytes(12)?),
            _ => {}
        }
        body = body.skip(6 + 6 * usize::from(*extension))?;
    }
    lan::llc(body, Some(destination), Some(source))
}

/// The subframes of an A-MSDU. At least one, the last of which may be damaged.
#[derive(Debug, Clone)]
pub(super) struct Subframes<'a> {
    rest: Captured<'a>,
    /// Bytes that the aggregate may still have.
    left: usize,
    in_mesh: bool,
}

impl<'a> Subframes<'a> {
    fn subframe(&mut self) -> Result<Parts<'a>, Unfit> {
        // Behind one that is damaged or cut none can be found.
        let at = std::mem::replace(&mut self.rest, Captured { data: &[], missing: 0 });
        let [destination, source] = [at.bytes(0)?, at.bytes(6)?];
        let len = usize::from(at.word(12)?);
        let behind = at.skip(14)?;
        if len > behind.len() || 14 + len > self.left {
            return Err(Unfit::Cut);
        }
        let body = behind.limit(len);
        if body.missing == 0 {
            // The last one has no padding.
            (self.rest, self.left) = (at.behind((14 + len).next_multiple_of(4)), self.left - 14 - len);
        }
        msdu(body, destination, source, self.in_mesh)
    }
}

impl<'a> Iterator for Subframes<'a> {
    type Item = Result<Parts<'a>, Unfit>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.rest.len() > 0).then(|| self.subframe())
    }
}

//! Lengths of packets, and the option `size`.

/// The packet lengths of the common "simple IMIX" in the order in which they are sent: 7 : 4 : 1 of
/// twelve, with IP packets of 576 and 1500 bytes behind 14 bytes of Ethernet.
pub const IMIX: [u16; 12] = [64, 590, 64, 64, 590, 64, 1514, 64, 590, 64, 590, 64];

/// Lengths of the packets, from the first byte of the [layer](super::Config::layer) to the last of
/// the payload: for Ethernet without the frame check sequence, so a "64-byte frame" on a wire is 60
/// here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Size {
    /// All of one length.
    Fixed(u32),
    /// These lengths, in this order in each flow; at least one, at most 65536.
    Each(Vec<u32>),
    /// The lengths of [`IMIX`]; on the IP layer 14 bytes less, and at least the headers and the
    /// tag.
    Imix,
}

impl Size {
    /// The rule of the option.
    pub(super) const RULE: &str =
        "must be a number of bytes or imix, FIRST-LAST or FIRST-LAST/STEP, or several of them joined by +";

    /// The lengths of `size`: at most 65536.
    pub(super) fn parse(text: &str) -> Option<Size> {
        let number = |text: &str| u32::try_from(crate::uri::parse_number(text)?).ok();
        match text {
            "imix" => return Some(Size::Imix),
            text if !text.contains(['-', '+']) => return number(text).map(Size::Fixed),
            _ => {}
        }
        let mut all = Vec::new();
        for part in text.split('+') {
            let (range, step) = part.split_once('/').unwrap_or((part, "1"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last, step) = (number(first)?, number(last)?, number(step)?);
            if part == "imix" || first > last || step == 0 || last > 1 << 17 {
                return None;
            }
            all.extend((first..=last).step_by(step as usize));
        }
        (all.len() <= 1 << 16).then_some(Size::Each(all))
    }
}

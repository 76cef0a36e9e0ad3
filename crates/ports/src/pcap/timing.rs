//! The times of packets that are read: `timing`, `speed`, `pps`, `mbps`.

use crate::uri::Options;
use towpath_packet::port::PortError;

/// The times at which the packets of a file are received.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Timing {
    /// As fast as possible.
    #[default]
    Fast,
    /// With the gaps of the capture.
    Original {
        /// The gaps are divided by this; a finite number above 0.
        speed: f64,
    },
    /// Packets per second, at least 1.
    PacketRate(u64),
    /// Bits of frames per second, at least 1.
    BitRate(u64),
}

impl Timing {
    /// Takes the times of packets: one of four options.
    pub(super) fn of(o: &mut Options) -> Result<Timing, PortError> {
        let original = o.choice("timing", &[("fast", false), ("original", true)])?;
        let number = |text: &String| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
        let (speed, pps, mbps) = (o.text("speed"), o.number("pps", 1..=u64::MAX)?, o.text("mbps"));
        let given = [
            ("timing", original.map(|original| if original { "original" } else { "fast" }.to_owned())),
            ("speed", speed.clone().filter(|_| original != Some(true))),
            ("pps", pps.map(|n| n.to_string())),
            ("mbps", mbps.clone()),
        ];
        let mut given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        if let (Some((first, _)), Some((second, value))) = (given.next(), given.next()) {
            return Err(o.error(second, value, format!("excludes {first}: give one of timing, speed, pps and mbps")));
        }
        match (speed, pps, mbps) {
            (Some(text), ..) => match number(&text) {
                Some(speed) => Ok(Timing::Original { speed }),
                None => Err(o.error("speed", text, "must be a number above 0: 2 is twice as fast as captured")),
            },
            (_, Some(pps), _) => Ok(Timing::PacketRate(pps)),
            (_, _, Some(text)) => match number(&text).map(|mbps| mbps * 1e6).filter(|bits| (1.0..=1e15).contains(bits))
            {
                Some(bits) => Ok(Timing::BitRate(bits as u64)),
                None => Err(o.error("mbps", text, "must be a number of Mbit/s from 0.000001 to 1000000000")),
            },
            _ if original == Some(true) => Ok(Timing::Original { speed: 1.0 }),
            _ => Ok(Timing::Fast),
        }
    }
}

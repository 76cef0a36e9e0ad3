//! Membership of ports in VLANs (IEEE 802.1Q), and the tags of their frames.
//!
//! ```text
//!   ingress   tagged with a VLAN of the port        that VLAN
//!             untagged, or tagged with VLAN 0       the native VLAN; without one it is dropped
//!             anything else                         dropped as `vlan`
//!   egress    the port's untagged VLAN              without a tag
//!             another VLAN of the port              tagged, with the priority of the frame
//! ```
//!
//! The VLAN of a frame stands in the tag of its metadata while it is inside the bridge. An egress
//! that takes tags beside the frame gets it there; for every other one software offload writes it
//! into the frame. A service tag (802.1ad) is payload.

use std::fmt;
use std::str::FromStr;

/// A set of VLANs, 1 to 4094.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// No VLAN.
    pub fn new() -> VlanSet {
        VlanSet(Box::new([0; 64]))
    }

    /// Adds a VLAN; returns false if the number is not from 1 to 4094.
    pub fn insert(&mut self, vlan: u16) -> bool {
        let is_valid = (1..4095).contains(&vlan);
        if is_valid {
            self.0[usize::from(vlan / 64)] |= 1 << (vlan % 64);
        }
        is_valid
    }

    /// Whether a VLAN is in the set.
    #[inline]
    pub fn contains(&self, vlan: u16) -> bool {
        self.0[usize::from(vlan / 64) & 63] >> (vlan % 64) & 1 != 0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

impl Default for VlanSet {
    fn default() -> VlanSet {
        VlanSet::new()
    }
}

impl FromIterator<u16> for VlanSet {
    /// Numbers that no VLAN has are left out.
    fn from_iter<I: IntoIterator<Item = u16>>(vlans: I) -> VlanSet {
        let mut set = VlanSet::new();
        for vlan in vlans {
            set.insert(vlan);
        }
        set
    }
}

impl FromStr for VlanSet {
    type Err = String;

    /// Numbers and ranges, with `+` or `,` between them: `10+100-199`.
    fn from_str(text: &str) -> Result<VlanSet, String> {
        let mut set = VlanSet::new();
        for part in text.split(['+', ',']) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse().ok().filter(|vlan| (1..4095).contains(vlan));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => (first..=last).for_each(|vlan| {
                    set.insert(vlan);
                }),
                _ => return Err(format!("'{part}' must be a VLAN from 1 to 4094, or a range of them: 10+100-199")),
            }
        }
        Ok(set)
    }
}

/// Numbers and ranges, as they are parsed.
impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut vlan, mut separator) = (1, "");
        while vlan < 4095 {
            if self.contains(vlan) {
                let first = vlan;
                while vlan < 4094 && self.contains(vlan + 1) {
                    vlan += 1;
                }
                if first == vlan {
                    write!(f, "{separator}{first}")?;
                } else {
                    write!(f, "{separator}{first}-{vlan}")?;
                }
                separator = "+";
            }
            vlan += 1;
        }
        Ok(())
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

/// The part of a port in VLANs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortMode {
    /// The default: of a bridge that ignores VLANs, the port passes all frames as they are; of one
    /// that does not, it is an access port of VLAN 1.
    #[default]
    Plain,
    /// An untagged member of one VLAN.
    Access(u16),
    /// A tagged member of several VLANs.
    Trunk {
        /// The VLANs.
        vlans: VlanSet,
        /// The VLAN of untagged frames, in both directions; `None`: they are dropped.
        native: Option<u16>,
    },
}

/// A [`PortMode`], resolved.
#[derive(Debug, Clone)]
pub(super) struct Membership {
    vlans: VlanSet,
    native: Option<u16>,
}

impl Membership {
    pub(super) fn new(mode: &PortMode) -> Membership {
        match mode {
            PortMode::Plain => Membership { vlans: [1].into_iter().collect(), native: Some(1) },
            PortMode::Access(vlan) => Membership { vlans: [*vlan].into_iter().collect(), native: Some(*vlan) },
            PortMode::Trunk { vlans, native } => {
                let mut vlans = vlans.clone();
                if let Some(native) = native {
                    vlans.insert(*native);
                }
                Membership { vlans, native: *native }
            }
        }
    }

    #[inline]
    pub(super) fn contains(&self, vlan: u16) -> bool {
        self.vlans.contains(vlan)
    }

    /// The tag of a received frame inside the bridge: its VLAN, and its priority; `None` if the
    /// port is no member. `tci`: the tag that it has, if any.
    #[inline]
    pub(super) fn classify(&self, tci: Option<u16>) -> Option<u16> {
        let tci = tci.unwrap_or(0);
        match tci & 0xfff {
            0 => self.native.map(|native| tci & 0xf000 | native),
            vlan => self.vlans.contains(vlan).then_some(tci),
        }
    }

    /// Whether frames of a VLAN leave without a tag.
    #[inline]
    pub(super) fn strips(&self, vlan: u16) -> bool {
        self.native == Some(vlan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_vlans_is_printed_as_it_is_parsed() {
        for text in ["1", "10+100-199", "1-4094", "2+4+4093-4094"] {
            assert_eq!(text.parse::<VlanSet>().unwrap().to_string(), text);
        }
        assert_eq!("5,3-4,1".parse::<VlanSet>().unwrap().to_string(), "1+3-5");
        for bad in ["", "0", "4095", "5-3", "x", "1+", "-4"] {
            assert!(bad.parse::<VlanSet>().unwrap_err().contains("1 to 4094"), "{bad}");
        }
    }

    #[test]
    fn untagged_and_priority_tagged_frames_have_the_native_vlan_and_keep_their_priority() {
        let trunk = Membership::new(&PortMode::Trunk { vlans: "10-20".parse().unwrap(), native: Some(5) });
        assert_eq!(trunk.classify(None), Some(5));
        assert_eq!(trunk.classify(Some(0xe000)), Some(0xe005));
        assert_eq!(trunk.classify(Some(0x200a)), Some(0x200a));
        assert_eq!(trunk.classify(Some(21)), None);
        assert_eq!(trunk.classify(Some(4095)), None);
        assert!(trunk.strips(5) && !trunk.strips(10) && trunk.contains(5));
        let strict = Membership::new(&PortMode::Trunk { vlans: "10".parse().unwrap(), native: None });
        assert_eq!((strict.classify(None), strict.classify(Some(0))), (None, None));
        let plain = Membership::new(&PortMode::Plain);
        assert_eq!((plain.classify(None), plain.classify(Some(2))), (Some(1), None));
    }
}

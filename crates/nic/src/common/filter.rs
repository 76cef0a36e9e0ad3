//! Receive filters: the port's address, other addresses, groups, VLANs; as options with text
//! values, and as the tables of Intel's MACs.

use super::option::ConfigError;
use std::fmt;
use std::str::FromStr;
use towpath_packet::port::Setting;
use towpath_wire::ethernet::{BROADCAST, Mac, MacText, parse_mac};

/// Which destinations are received, in addition to broadcasts, the port's own address, and the
/// addresses and groups of a [`Filter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Receive {
    /// All frames: promiscuous.
    #[default]
    All,
    /// All multicast frames.
    Multicast,
    /// No others.
    Own,
}

const RECEIVE: [(&str, Receive); 3] = [("all", Receive::All), ("multicast", Receive::Multicast), ("own", Receive::Own)];

/// A set of VLAN identifiers, 1 to 4094; written `10+100-199`, or `none`.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u32; 128]>);

impl VlanSet {
    /// No VLAN.
    pub fn none() -> VlanSet {
        VlanSet(Box::new([0; 128]))
    }

    /// Adds a VLAN; false if `id` is none: 0 means priority without a VLAN, 4095 is reserved (IEEE
    /// 802.1Q-2018 table 9-2).
    pub fn add(&mut self, id: u16) -> bool {
        let word = self.0.get_mut(usize::from(id >> 5)).filter(|_| (1..=4094).contains(&id));
        word.map(|word| *word |= 1 << (id & 31)).is_some()
    }

    /// Whether the set has a VLAN.
    pub fn has(&self, id: u16) -> bool {
        self.0.get(usize::from(id >> 5)).is_some_and(|word| word >> (id & 31) & 1 != 0)
    }

    /// A bit for each identifier, 32 a word, as the VLAN tables of Intel's MACs have them.
    pub(crate) fn words(&self) -> &[u32; 128] {
        &self.0
    }
}

impl FromStr for VlanSet {
    type Err = String;

    /// # Errors
    /// The rule that the text breaks.
    fn from_str(text: &str) -> Result<VlanSet, String> {
        let rule = || "must be all, none, or VLANs from 1 to 4094 and ranges of them: 10+100-199".to_owned();
        let mut set = VlanSet::none();
        for part in items(text) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<u16>(), last.parse::<u16>());
            let (Ok(first), Ok(last)) = (first, last) else { return Err(rule()) };
            if first > last || !(first..=last).all(|id| set.add(id)) {
                return Err(rule());
            }
        }
        Ok(set)
    }
}

impl fmt::Display for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut id, mut plus) = (1, "");
        while id < 4095 {
            let first = id;
            while self.has(id) {
                id += 1;
            }
            match id - first {
                0 => {}
                1 => write!(f, "{plus}{first}")?,
                _ => write!(f, "{plus}{first}-{}", id - 1)?,
            }
            plus = if id > first { "+" } else { plus };
            id += 1;
        }
        if plus.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

/// Which frames a port receives. Broadcasts always are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Filter {
    /// Which destinations are received, in addition to those below.
    pub receive: Receive,
    /// The port's own address; `None` is the one in the device's memory.
    pub mac: Option<Mac>,
    /// Other unicast addresses. If the device has no room for all of them, all unicast frames are
    /// received.
    pub addresses: Vec<Mac>,
    /// Multicast groups. Groups with the same hash are received as well.
    pub groups: Vec<Mac>,
    /// The VLANs whose frames are received, in addition to frames without a tag and with VLAN 0;
    /// `None` is all VLANs.
    pub vlans: Option<VlanSet>,
}

impl Filter {
    /// The options by which a filter is named, and their meaning.
    pub const OPTIONS: [(&str, &str); 5] = [
        ("mac", "the port's address: six bytes, or device for the one in its memory"),
        ("receive", "destinations: all, multicast (and own), or own"),
        ("addresses", "unicast addresses besides the port's own: none, or some with + between them"),
        ("groups", "multicast groups: none, or some with + between them"),
        ("vlans", "VLANs besides untagged frames: all, none, or 10+100-199"),
    ];

    /// Changes one of the [options](Filter::OPTIONS). [`check`](Filter::check) comes after all
    /// changes.
    ///
    /// # Errors
    /// [`ConfigError`] names the rule; nothing has changed then.
    pub fn set(&mut self, option: &str, value: &str) -> Result<(), ConfigError> {
        let unknown = ConfigError { option: "filter", value: option.to_owned(), rule: "no such option".to_owned() };
        let (option, _) = Filter::OPTIONS.into_iter().find(|(name, _)| *name == option).ok_or(unknown)?;
        let broken = |rule: String| ConfigError { option, value: value.to_owned(), rule };
        match option {
            "mac" if value == "device" => self.mac = None,
            "mac" => self.mac = Some(unicast(value).map_err(broken)?),
            "receive" => {
                let word = RECEIVE.iter().find(|(word, _)| *word == value);
                self.receive = word.ok_or_else(|| broken("must be one of all, multicast, own".to_owned()))?.1;
            }
            "addresses" => self.addresses = items(value).map(unicast).collect::<Result<_, _>>().map_err(broken)?,
            "groups" => self.groups = items(value).map(group).collect::<Result<_, _>>().map_err(broken)?,
            _ => self.vlans = if value == "all" { None } else { Some(value.parse().map_err(broken)?) },
        }
        Ok(())
    }

    /// The value of an option, as [`set`](Filter::set) takes it.
    pub fn get(&self, option: &str) -> String {
        match option {
            "mac" => self.mac.map_or_else(|| "device".to_owned(), |mac| MacText(mac).to_string()),
            "receive" => RECEIVE.iter().find(|(_, what)| *what == self.receive).map_or("", |(word, _)| word).to_owned(),
            "addresses" => list(&self.addresses),
            "groups" => list(&self.groups),
            _ => self.vlans.as_ref().map_or_else(|| "all".to_owned(), VlanSet::to_string),
        }
    }

    /// The options as settings of a port whose address is `mac`, if it is known.
    pub(crate) fn settings(&self, mac: Option<Mac>) -> impl Iterator<Item = Setting> {
        Filter::OPTIONS.into_iter().map(move |(name, what)| match mac {
            Some(mac) if name == "mac" => Setting::new(name, MacText(mac).to_string(), what),
            _ => Setting::new(name, self.get(name), what),
        })
    }

    /// Whether a setting is one of the options.
    pub(crate) fn has_option(name: &str) -> bool {
        Filter::OPTIONS.iter().any(|(option, _)| *option == name)
    }

    /// Checks the rules that concern several options.
    ///
    /// # Errors
    /// [`ConfigError`] names the rule.
    pub fn check(&self) -> Result<(), ConfigError> {
        // Linux: `netdev.c:e1000e_set_rx_mode` filters no VLANs in promiscuous mode either.
        if self.receive == Receive::All && self.vlans.is_some() {
            let rule = "receive=all takes the frames of every VLAN: choose receive=own or receive=multicast first, \
                        or vlans=all";
            return Err(ConfigError { option: "vlans", value: self.get("vlans"), rule: rule.to_owned() });
        }
        Ok(())
    }
}

/// The items of a list: `none`, or some with `+` between them.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split('+').filter(move |_| text != "none")
}

fn list(addresses: &[Mac]) -> String {
    let texts: Vec<_> = addresses.iter().map(|mac| MacText(*mac).to_string()).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join("+") }
}

fn unicast(text: &str) -> Result<Mac, String> {
    let mac = parse_mac(text).filter(|mac| mac[0] & 1 == 0 && *mac != Mac::default());
    mac.ok_or_else(|| "must be unicast addresses of six bytes in hexadecimal: 02:00:00:00:00:01".to_owned())
}

fn group(text: &str) -> Result<Mac, String> {
    let mac = parse_mac(text).filter(|mac| mac[0] & 1 != 0 && *mac != BROADCAST);
    mac.ok_or_else(|| "must be multicast addresses, the first byte odd: 01:00:5e:00:00:fb".to_owned())
}

/// The multicast hash table (MTA) for these groups, as Intel's MACs have it from the 82540 to the
/// X550: 12 bits of the address, from bit 36 on (a multicast offset of 0), choose one of 4096 bits.
pub(crate) fn multicast_table(groups: &[Mac]) -> [u32; 128] {
    let mut table = [0; 128];
    for group in groups {
        let hash = (u32::from(group[4]) >> 4 | u32::from(group[5]) << 4) & 0xfff;
        if let Some(word) = table.get_mut(hash as usize >> 5) {
            *word |= 1 << (hash & 31);
        }
    }
    table
}

/// Places addresses in the entries of an exact filter: those that are there keep their entries, so
/// that no frame to them is missed during the change. `None` if there is no room for all.
pub(crate) fn place<const N: usize>(now: &[Option<Mac>; N], wanted: &[Mac]) -> Option<[Option<Mac>; N]> {
    let mut next = now.map(|entry| entry.filter(|mac| wanted.contains(mac)));
    for mac in wanted {
        if !next.contains(&Some(*mac)) {
            *next.iter_mut().find(|entry| entry.is_none())? = Some(*mac);
        }
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_the_upper_bits_of_its_address() {
        let mut expected = [0; 128];
        expected[0xfb0 >> 5] = 1 << 16;
        assert_eq!(multicast_table(&[[1, 0, 0x5e, 0, 0, 0xfb]]), expected);
        assert_eq!(multicast_table(&[]), [0; 128]);
    }

    #[test]
    fn every_option_is_read_as_it_was_written() {
        let mut filter = Filter::default();
        let defaults: Vec<_> = Filter::OPTIONS.iter().map(|(name, _)| filter.get(name)).collect();
        assert_eq!(defaults, ["device", "all", "none", "none", "all"]);
        for (option, value) in [
            ("mac", "02:00:00:00:00:0a"),
            ("receive", "own"),
            ("addresses", "02:00:00:00:00:01+02:00:00:00:00:02"),
            ("groups", "01:00:5e:00:00:fb"),
            ("vlans", "1+10-12+4094"),
            ("vlans", "none"),
            ("vlans", "1-4094"),
        ] {
            filter.set(option, value).unwrap();
            assert_eq!((filter.get(option).as_str(), filter.check()), (value, Ok(())));
        }
        filter.set("vlans", "3+1+2").unwrap();
        assert_eq!(filter.get("vlans"), "1-3");
        assert!(filter.vlans.as_ref().unwrap().has(3) && !filter.vlans.unwrap().has(4));
    }

    #[test]
    fn what_breaks_a_rule_changes_nothing_and_is_named_with_the_rule() {
        let mut filter = Filter::default();
        for (option, value, part) in [
            ("mac", "01:00:5e:00:00:01", "unicast"),
            ("mac", "00:00:00:00:00:00", "unicast"),
            ("mac", "2:0:0:0:0:1", "02:00:00:00:00:01"),
            ("addresses", "02:00:00:00:00:01+", "unicast"),
            ("groups", "02:00:00:00:00:01", "multicast"),
            ("groups", "ff:ff:ff:ff:ff:ff", "multicast"),
            ("receive", "some", "all, multicast, own"),
            ("vlans", "0", "1 to 4094"),
            ("vlans", "4095", "1 to 4094"),
            ("vlans", "9-8", "1 to 4094"),
            ("vlans", "", "1 to 4094"),
        ] {
            let error = filter.set(option, value).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(value), "{error}");
        }
        assert_eq!(filter.set("colour", "red").unwrap_err().to_string(), "filter=colour: no such option");
        assert_eq!(filter, Filter::default());
        filter.set("vlans", "7").unwrap();
        assert!(filter.check().unwrap_err().to_string().starts_with("vlans=7: receive=all takes"));
    }

    #[test]
    fn addresses_that_stay_keep_their_entries_and_others_take_free_ones() {
        let mac = |n| [2, 0, 0, 0, 0, n];
        let now = [Some(mac(1)), Some(mac(2)), None];
        assert_eq!(place(&now, &[mac(3), mac(2)]), Some([Some(mac(3)), Some(mac(2)), None]));
        assert_eq!(place(&now, &[mac(2), mac(2)]), Some([None, Some(mac(2)), None]));
        assert_eq!(place(&now, &[1, 2, 3, 4].map(mac)), None);
    }
}

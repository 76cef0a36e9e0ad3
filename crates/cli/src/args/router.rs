//! Options of `router`.

use super::Run;
use super::bridge::Of;
use clap::{Args as ClapArgs, ValueHint};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use towpath::engine::router::Action;

/// `towpath router`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Router {
    /// The ports: Ethernet frames
    #[arg(value_name = "PORT", required = true, num_args = 1.., value_hint = ValueHint::Other)]
    pub(crate) ports: Vec<String>,
    /// An address of a port with the length of its subnet: tap:a=192.0.2.1/24; may be repeated
    #[arg(long, value_name = "PORT=ADDRESS/LEN", conflicts_with = "mirror", help_heading = "Tables")]
    pub(crate) address: Vec<Of<Subnet>>,
    /// A route as 'ip route' writes it: '198.51.100.0/24 via 192.0.2.2', 'default via 2001:db8::1
    /// dev tap:a', 'blackhole 10.0.0.0/8'; several 'via' share the flows, each with 'weight N' if
    /// it has another part than one
    #[arg(long, value_name = "ROUTE", conflicts_with = "mirror", help_heading = "Tables")]
    pub(crate) route: Vec<RouteText>,
    /// Use the addresses, routes and neighbours of a network namespace's kernel, so that FRR or
    /// BIRD run there. Each port gets a tap there for what is for the router itself, of the name of
    /// the port's interface
    #[arg(long, value_name = "NETNS", help_heading = "Tables")]
    pub(crate) mirror: Option<String>,
    #[command(flatten)]
    pub(crate) run: Run,
}

/// An address with the length of its subnet, or of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet {
    pub(crate) address: IpAddr,
    pub(crate) len: u8,
}

impl Subnet {
    /// Its first address.
    pub(crate) fn first(&self) -> IpAddr {
        let len = u32::from(self.len);
        match self.address {
            IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits() & !u32::MAX.checked_shr(len).unwrap_or(0)).into(),
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::MAX.checked_shr(len).unwrap_or(0)).into(),
        }
    }

    /// Whether an address lies in it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let different = bits(self.address) ^ bits(address);
        self.address.is_ipv4() == address.is_ipv4() && different.leading_zeros() >= u32::from(self.len)
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        let rule = || format!("{text}: must be an address with a length: 192.0.2.1/24, 2001:db8::1/64");
        let (address, len) = text.split_once('/').ok_or_else(rule)?;
        let address: IpAddr = address.parse().map_err(|_| rule())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let len = len.parse().ok().filter(|len| *len <= longest).ok_or_else(rule)?;
        Ok(Subnet { address, len })
    }
}

/// A hop, whose port is named or follows from the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HopText {
    pub(crate) via: Option<IpAddr>,
    pub(crate) dev: Option<String>,
    pub(crate) weight: u32,
}

/// A route as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteText {
    pub(crate) text: String,
    /// `None`: the default route, of the family of its gateways.
    pub(crate) prefix: Option<Subnet>,
    pub(crate) action: Action,
    pub(crate) hops: Vec<HopText>,
}

impl FromStr for RouteText {
    type Err = String;

    fn from_str(text: &str) -> Result<RouteText, String> {
        let mut words = text.split_ascii_whitespace().peekable();
        let refusal = [Action::Blackhole, Action::Unreachable, Action::Prohibit];
        let action = refusal.into_iter().find(|action| words.peek() == Some(&action.name()));
        if action.is_some() {
            words.next();
        }
        let prefix = match words.next() {
            Some("default") => None,
            Some(word) if word.contains('/') => Some(word.parse::<Subnet>()?),
            Some(word) => {
                let rule = "must begin with a prefix (198.51.100.0/24) or 'default'";
                let address: IpAddr = word.parse().map_err(|_| format!("{word}: {rule}"))?;
                Some(Subnet { address, len: if address.is_ipv4() { 32 } else { 128 } })
            }
            None => return Err("must have a prefix: '198.51.100.0/24 via 192.0.2.2'".into()),
        };
        let mut hops = Vec::<HopText>::new();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("'{word}' must have a value"))?;
            let begins = |hop: &HopText| word == "via" || (word == "dev" && hop.dev.is_some());
            if hops.last().is_none_or(begins) {
                hops.push(HopText { weight: 1, ..HopText::default() });
            }
            let Some(hop) = hops.last_mut() else { continue };
            match word {
                "via" => hop.via = Some(value.parse().map_err(|_| format!("via {value}: must be an address"))?),
                "dev" => hop.dev = Some(value.to_owned()),
                "weight" => {
                    let weight = value.parse().ok().filter(|weight| (1..=256).contains(weight));
                    hop.weight = weight.ok_or_else(|| format!("weight {value}: must be from 1 to 256"))?;
                }
                other => return Err(format!("'{other}' is none of via, dev, weight")),
            }
        }
        match (action, hops.is_empty()) {
            (None, true) => return Err("must lead somewhere: 'via ADDRESS' or 'dev PORT'".into()),
            (Some(action), false) => return Err(format!("a {} route has no hops", action.name())),
            _ => {}
        }
        Ok(RouteText { text: text.to_owned(), prefix, action: action.unwrap_or_default(), hops })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_as_ip_route_writes_them() {
        let route: RouteText =
            "198.51.100.0/24 via 192.0.2.2 dev tap:a?netns=x weight 3 via 192.0.2.3".parse().unwrap();
        assert_eq!(route.prefix.unwrap(), "198.51.100.0/24".parse().unwrap());
        let hops: Vec<_> = route.hops.iter().map(|hop| (hop.dev.as_deref(), hop.weight)).collect();
        assert_eq!(hops, [(Some("tap:a?netns=x"), 3), (None, 1)]);
        let hops = |text: &str| text.parse::<RouteText>().unwrap().hops.len();
        assert_eq!((hops("default dev tap:a"), hops("10.0.0.0/8 dev tap:a dev tap:b")), (1, 2));
        let refused: RouteText = "blackhole 2001:db8::/32".parse().unwrap();
        assert_eq!((refused.action, refused.prefix.unwrap().len), (Action::Blackhole, 32));
        assert_eq!("192.0.2.9 via 192.0.2.1".parse::<RouteText>().unwrap().prefix.unwrap().len, 32);
    }

    #[test]
    fn a_subnet_begins_with_the_address_whose_other_bits_are_zero() {
        for (text, first) in [("10.9.8.7/20", "10.9.0.0"), ("10.9.8.7/0", "0.0.0.0"), ("10.9.8.7/32", "10.9.8.7")] {
            assert_eq!(text.parse::<Subnet>().unwrap().first(), first.parse::<IpAddr>().unwrap());
        }
        for (text, first) in [("fd00::ff/120", "fd00::"), ("fd00::1/0", "::"), ("fd00::1/128", "fd00::1")] {
            assert_eq!(text.parse::<Subnet>().unwrap().first(), first.parse::<IpAddr>().unwrap());
        }
    }

    #[test]
    fn what_is_no_route_is_refused_with_the_rule() {
        for (text, part) in [
            ("", "must have a prefix"),
            ("10.0.0.0/33 via 192.0.2.1", "10.0.0.0/33"),
            ("here via 192.0.2.1", "'default'"),
            ("10.0.0.0/8", "must lead somewhere"),
            ("10.0.0.0/8 via", "'via' must have a value"),
            ("10.0.0.0/8 over 192.0.2.1", "'over' is none of"),
            ("10.0.0.0/8 via x", "via x"),
            ("10.0.0.0/8 via 192.0.2.1 weight 0", "weight 0"),
            ("prohibit 10.0.0.0/8 dev tap:a", "no hops"),
        ] {
            let error = text.parse::<RouteText>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

//! Checks the URI of a port of any kind without opening it.

use crate::any::{MAX_BEHIND, Opener, Role, both_ways, unknown_kind};
use crate::{cpsw, e1000e, pci, virtio};
use towpath_packet::port::PortError;
use towpath_ports::uri::Uri;
use towpath_ports::{fault, generator, null, packet, pcap, sock, tun, veth, vhost, xdp};

impl Opener {
    /// Checks the kind and the options of a port. Nothing is opened: whether its device is there is
    /// not known then.
    ///
    /// # Errors
    /// [`PortError::Input`], as [`open`](Opener::open) has it for the same text.
    pub fn check_uri(uri: &Uri, role: Role) -> Result<(), PortError> {
        check(0, uri, role)
    }
}

fn check(ports: usize, uri: &Uri, role: Role) -> Result<(), PortError> {
    if ports > MAX_BEHIND {
        return Err(uri.error(format!("stands behind {ports} ports: must be behind at most {MAX_BEHIND}")));
    }
    match uri.scheme() {
        "tap" | "tun" => tun::Config::from_uri(uri).map(drop),
        "packet" => packet::Config::from_uri(uri).map(drop),
        "xdp" => xdp::Config::from_uri(uri).map(drop),
        "sock" => sock::Config::from_uri(uri).map(drop),
        "veth" => veth::Config::from_uri(uri).map(drop),
        "pcap" => match role {
            Role::Ingress => pcap::Config::from_uri(uri, pcap::Role::Ingress).map(drop),
            Role::Egress => pcap::Config::from_uri(uri, pcap::Role::Egress).map(drop),
            Role::Both => Err(both_ways(uri)),
        },
        "gen" => generator::Config::from_uri(uri).map(drop),
        "null" => null::Config::from_uri(uri).map(drop),
        "e1000e" => e1000e::config_from_uri(uri)?.1.map_or(Ok(()), |wire| check(ports + 1, &wire, Role::Both)),
        "vhost" => vhost::Config::from_uri(uri).map(drop),
        "virtio" => {
            virtio::config_from_uri(uri)?;
            pci::split(uri)?.1.map_or(Ok(()), |wire| check(ports + 1, &wire, Role::Both))
        }
        "cpsw" => cpsw::config_from_uri(uri)?.1.map_or(Ok(()), |wire| check(ports + 1, &wire, Role::Both)),
        "fault" => {
            let (_, inner) = fault::Config::from_uri(uri)?;
            check(ports + 1, &inner, role)
        }
        _ => Err(unknown_kind(uri)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::KINDS;
    use towpath_ports::kind::Kind;

    fn parse(uri: &str, role: Role) -> Result<(), PortError> {
        Opener::check_uri(&uri.parse()?, role)
    }

    /// Parses the options with each device that the kind drives, and in both roles.
    fn parse_all(kind: &Kind, options: &str) -> Vec<Result<(), PortError>> {
        let roles = [Role::Ingress, Role::Egress];
        uris(kind, options).iter().flat_map(|uri| roles.map(|role| parse(uri, role))).collect()
    }

    /// URIs of a kind with these options, one for each device that the kind drives.
    fn uris(kind: &Kind, options: &str) -> Vec<String> {
        let devices: &[&str] = match kind.name {
            "gen" | "null" => return vec![format!("{}:{options}", kind.name)],
            "fault" => return vec![format!("fault:{options}@null:")],
            "e1000e" => &["vfio=3:0.0", "model", "qtest=/s"],
            "virtio" => &["user=/s", "vfio=3:0.0", "model", "qtest=/s"],
            "cpsw" => &["model"],
            _ => &["a"],
        };
        devices.iter().map(|device| format!("{}:{device}?{options}", kind.name)).collect()
    }

    #[test]
    fn every_option_of_every_kind_is_parsed_as_its_example_shows() {
        for kind in KINDS {
            assert!(parse(kind.example, Role::Ingress).is_ok(), "{}", kind.example);
            for option in kind.options {
                assert!(option.example.split(',').any(|part| part.starts_with(&format!("{}=", option.name))));
                let mut values: Vec<_> = option.words().iter().map(|word| format!("{}={word}", option.name)).collect();
                values.push(option.example.to_owned());
                // A word may need other options: the example has them.
                values.retain(|value| value == option.example || !option.example.contains(','));
                for value in values {
                    let parsed = parse_all(kind, &value);
                    assert!(parsed.iter().any(Result::is_ok), "{}: {value}: {parsed:?}", kind.name);
                }
            }
        }
    }

    #[test]
    fn a_misspelt_option_of_any_kind_is_answered_with_the_one_that_is_meant() {
        for kind in KINDS {
            for option in kind.options.iter().filter(|option| option.name.len() > 3) {
                let misspelt = format!("{}{}", &option.name[..1], &option.name[2..]);
                let answered = parse_all(kind, &format!("{misspelt}=1")).into_iter().any(|parsed| {
                    let error = parsed.unwrap_err().to_string();
                    error.contains("no such option") && error.contains("did you mean")
                });
                assert!(answered, "{}: {misspelt}", kind.name);
            }
        }
    }
}

//! Any text as a port's URI, and as the configuration of every kind of port: no port is opened.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_ports::uri::{self, Uri};
use towpath_ports::{fault, generator, null, packet, pcap, sock, tun, veth, xdp};

/// Reads a URI with the options of its own kind of port, or the error of that kind.
fn configure(uri: &Uri) -> Result<Option<Uri>, towpath_packet::port::PortError> {
    match uri.scheme() {
        "cpsw" => return towpath::cpsw::config_from_uri(uri).map(|(_, wire)| wire),
        "e1000e" => return towpath::e1000e::config_from_uri(uri).map(|(_, wire)| wire),
        "fault" => return fault::Config::from_uri(uri).map(|(_, inner)| Some(inner)),
        "gen" => drop(generator::Config::from_uri(uri)?),
        "null" => drop(null::Config::from_uri(uri)?),
        "packet" => drop(packet::Config::from_uri(uri)?),
        "pcap" => {
            let read = pcap::Config::from_uri(uri, pcap::Role::Ingress);
            pcap::Config::from_uri(uri, pcap::Role::Egress).map(drop).or(read.map(drop))?;
        }
        "sock" => drop(sock::Config::from_uri(uri)?),
        "tap" | "tun" => drop(tun::Config::from_uri(uri)?),
        "veth" => drop(veth::Config::from_uri(uri)?),
        "xdp" => drop(xdp::Config::from_uri(uri)?),
        _ => {}
    }
    Ok(None)
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(number) = uri::parse_number(text) {
        assert!(text.bytes().any(|byte| byte.is_ascii_digit()), "{number}");
    }
    let _ = (uri::parse_duration(text), uri::parse_linear(text));
    let mut next = Some(text.parse::<Uri>());
    while let Some(parsed) = next {
        let Ok(uri) = parsed else { return };
        assert!(uri.as_str().starts_with(&uri.short().split(':').next().unwrap_or_default().to_owned()));
        let printed: Uri = uri.to_string().parse().expect("what was read can be read again");
        assert_eq!(printed, uri);
        next = match configure(&uri) {
            // Each inner URI is shorter.
            Ok(inner) => inner.inspect(|inner| assert!(inner.as_str().len() < uri.as_str().len())).map(Ok),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        };
    }
});

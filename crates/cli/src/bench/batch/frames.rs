//! The frames of the benches: whole headers with right checksums.

use std::error::Error;
use towpath::wire::emit::{Checksums, Headers, Ip, Link, Network, Tcp, Transport, Udp};
use towpath::wire::ethernet::BROADCAST;

/// The transport of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) enum Protocol {
    Udp,
    /// With time stamps: 12 bytes of options.
    Tcp,
}

/// A frame of `size` bytes, without FCS, to the broadcast address, which every receiver takes.
///
/// # Errors
/// The frame is shorter than its headers.
pub(super) fn frame(protocol: Protocol, size: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let options = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
    let transport = match protocol {
        Protocol::Udp => Transport::Udp(Udp { src_port: 40_000, dst_port: 5201 }),
        Protocol::Tcp => Transport::Tcp(Tcp {
            src_port: 40_000,
            dst_port: 5201,
            seq: 1,
            ack: 1,
            flags: towpath::wire::tcp::flags::ACK,
            window: 512,
            options: &options,
        }),
    };
    let link = Link { dst: BROADCAST, src: [2, 0, 0, 0, 0, 1], ..Link::default() };
    let headers = Headers { link: Some(link), network: Network::Ip(Ip::v4([10, 0, 0, 1], [10, 0, 0, 2]), transport) };
    let mut frame = vec![7; size];
    headers.write(&mut frame, Checksums::Complete)?;
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath::wire::LinkKind;
    use towpath::wire::verify::{Check, Verdict, verify};

    #[test]
    fn frames_have_the_asked_length_and_right_checksums() {
        for (protocol, size) in [(Protocol::Udp, 60), (Protocol::Udp, 1512), (Protocol::Tcp, 1514)] {
            let frame = frame(protocol, size).unwrap();
            assert_eq!(frame.len(), size);
            let good = Verdict { network: Check::Good, transport: Check::Good };
            assert_eq!(verify(&frame, LinkKind::Ethernet), good, "{protocol:?} {size}");
        }
        assert!(frame(Protocol::Tcp, 60).is_err());
    }
}

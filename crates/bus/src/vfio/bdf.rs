//! PCI addresses.

use std::fmt;
use std::str::FromStr;

/// A PCI function: domain, bus, device, function. Written `0000:03:00.0`; without a domain, domain
/// 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bdf {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// The text is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a PCI address: write it as 0000:03:00.0 (domain:bus:device.function, hexadecimal; lspci -D shows it)"
)]
#[non_exhaustive]
pub struct BdfError(pub String);

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Through `pad`, so that tables can give it a width.
        f.pad(&format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function))
    }
}

impl FromStr for Bdf {
    type Err = BdfError;

    fn from_str(text: &str) -> Result<Bdf, BdfError> {
        let parse = || {
            let hex = |digits: &str, longest: usize| {
                let sound = (1..=longest).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
                sound.then(|| u32::from_str_radix(digits, 16).ok())?
            };
            let (rest, function) = text.rsplit_once('.')?;
            let mut parts = rest.rsplit(':');
            let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0"));
            let device = u8::try_from(hex(device, 2)?).ok().filter(|&d| d < 32)?;
            let function = u8::try_from(hex(function, 1)?).ok().filter(|&f| f < 8)?;
            let bus = u8::try_from(hex(bus, 2)?).ok()?;
            // Domains of more than 16 bits are virtual, behind a VMD.
            let bdf = Bdf { domain: hex(domain, 8)?, bus, device, function };
            parts.next().is_none().then_some(bdf)
        };
        parse().ok_or_else(|| BdfError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_with_and_without_its_domain_and_written_as_the_kernel_does() {
        for (text, name) in
            [("03:00.0", "0000:03:00.0"), ("0000:00:1F.6", "0000:00:1f.6"), ("10000:e1:00.7", "10000:e1:00.7")]
        {
            assert_eq!(text.parse::<Bdf>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_by_name() {
        for text in ["", "eth0", "03:00", "03:20.0", "03:00.8", "0:0:03:00.0", "../03:00.0", "+3:00.0", "03:00.0/x"] {
            assert_eq!(text.parse::<Bdf>(), Err(BdfError(text.into())), "{text}");
        }
    }
}

//! The words of an expression.
//!
//! The longest word wins, as in pcap's own scanner. So `80-90` is one word (a range of ports), and
//! a subtraction has blanks around its sign.

use super::names;
use super::{FilterError, MAX_TEXT};
use std::net::{Ipv4Addr, Ipv6Addr};
use towpath_wire::ethernet::Mac;

/// A word and where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Byte offset in the text.
    pub(super) at: usize,
    /// Bytes of the word.
    pub(super) len: usize,
    /// Index of the parenthesis that closes this one.
    pub(super) closed_by: usize,
}

/// What a word is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// A keyword or a name.
    Word,
    /// A name after a backslash, which is never a keyword.
    Name,
    Number(u32),
    /// An IPv4 address or its first bytes, and how many bits they are.
    V4(Ipv4Addr, u8),
    V6(Ipv6Addr),
    Mac(Mac),
    /// `&&`, `<=` and all other signs.
    Sign(&'static str),
    End,
}

/// Longer signs first.
const SIGNS: [&str; 26] = [
    "&&", "||", ">=", "<=", "!=", "==", "<<", ">>", "(", ")", "[", "]", ":", "!", "<", ">", "=", "&", "|", "^", "+",
    "-", "*", "/", "%", ",",
];

/// Splits a text into words; the last one is [`Kind::End`].
pub(super) fn words(text: &str) -> Result<Vec<Token>, FilterError> {
    if text.len() > MAX_TEXT {
        return Err(FilterError::at(text, 0, 0, format!("an expression has at most {MAX_TEXT} bytes")));
    }
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut open = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let rest = text.get(at..).unwrap_or_default();
        let (kind, len) = one(text, at, rest)?;
        match kind {
            Kind::Sign("(") => open.push(tokens.len()),
            Kind::Sign(")") => {
                let own = tokens.len();
                match open.pop().and_then(|opened: usize| tokens.get_mut(opened)) {
                    Some(Token { closed_by, .. }) => *closed_by = own,
                    None => return Err(FilterError::at(text, at, len, "closes no parenthesis")),
                }
            }
            _ => {}
        }
        tokens.push(Token { kind, at, len, closed_by: 0 });
        at += len;
    }
    if let Some(Token { at, len, .. }) = open.pop().and_then(|opened| tokens.get(opened)) {
        return Err(FilterError::at(text, *at, *len, "is not closed: ) is missing"));
    }
    tokens.push(Token { kind: Kind::End, at: text.len(), len: 0, closed_by: 0 });
    Ok(tokens)
}

/// The first word of `rest`, and its length.
fn one(text: &str, at: usize, rest: &str) -> Result<(Kind, usize), FilterError> {
    let run = |allowed: &dyn Fn(u8) -> bool| rest.bytes().take_while(|byte| allowed(*byte)).count();
    // Addresses with colons.
    let len = run(&|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.');
    let address = rest.get(..len).unwrap_or_default();
    if address.matches(':').count() >= 2 {
        return match (names::mac(address), address.parse()) {
            (Some(mac), _) => Ok((Kind::Mac(mac), len)),
            (None, Ok(v6)) => Ok((Kind::V6(v6), len)),
            _ => Err(FilterError::at(text, at, len, "is neither an IPv6 nor a MAC address")),
        };
    }
    if rest.starts_with('\\') {
        let len = 1 + rest.bytes().skip(1).take_while(|byte| !b" !()\n\t".contains(byte)).count();
        return match len {
            1 => Err(FilterError::at(text, at, 1, "needs the name of a protocol behind it: \\tcp")),
            _ => Ok((Kind::Name, len)),
        };
    }
    if rest.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        // A word ends with neither a hyphen nor an underline.
        let len = run(&|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let word = rest.get(..len).unwrap_or_default().trim_end_matches(['-', '_']);
        return Ok((word_kind(text, at, word)?, word.len()));
    }
    match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
        Some(&sign) if sign != "," => Ok((Kind::Sign(sign), sign.len())),
        Some(_) => Err(FilterError::at(text, at, 1, "does not make a list: write port 80 or 443")),
        None => {
            let len = rest.chars().next().map_or(0, char::len_utf8);
            Err(FilterError::at(text, at, len, "is not a sign of this language"))
        }
    }
}

fn word_kind(text: &str, at: usize, word: &str) -> Result<Kind, FilterError> {
    if let Some(mac) = names::mac(word) {
        return Ok(Kind::Mac(mac));
    }
    let error = |problem: &str| Err(FilterError::at(text, at, word.len(), problem));
    if let Some(hex) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"))
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
        && !hex.is_empty()
    {
        return match u32::from_str_radix(hex, 16) {
            Ok(number) => Ok(Kind::Number(number)),
            Err(_) => error("is more than 32 bits"),
        };
    }
    if let Some(number) = names::number(word) {
        return Ok(Kind::Number(number));
    }
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        let octal = word.len() > 1 && word.starts_with('0');
        if octal && word.contains(['8', '9']) {
            return error("begins with 0, so it is octal, and has a digit above 7");
        }
        return match u32::from_str_radix(word, if octal { 8 } else { 10 }) {
            Ok(number) => Ok(Kind::Number(number)),
            Err(_) => error("is more than 32 bits"),
        };
    }
    let parts: Vec<&str> = word.split('.').collect();
    if parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())) {
        let mut octets = [0; 4];
        let good = parts.len() <= 4
            && parts.iter().zip(&mut octets).all(|(part, octet)| part.parse().map(|value| *octet = value).is_ok());
        return match good {
            true => Ok(Kind::V4(octets.into(), parts.len() as u8 * 8)),
            false => error("is not an IPv4 address: up to four numbers from 0 to 255"),
        };
    }
    Ok(Kind::Word)
}

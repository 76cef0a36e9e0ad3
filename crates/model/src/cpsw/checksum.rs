//! Checksums: the switch inserts one if the control words of a packet request it, and it checks the
//! TCP or UDP checksum of received frames.

/// The ones' complement sum of big-endian 16-bit words. An odd byte at the end is the high byte of
/// a word.
fn sum(bytes: &[u8], mut sum: u32) -> u32 {
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

/// Inserts the checksum that PS word 2 requests: [31:24] position of the result, [23:16] first
/// byte, [15] zero becomes 0xffff, [13:0] number of bytes. Bytes are numbered from one. Returns
/// false if the frame is too short.
pub(super) fn insert(frame: &mut [u8], word: u32) -> bool {
    let (result, start, count) = (word >> 24, word >> 16 & 0xff, (word & 0x3fff) as usize);
    let (Some(result), Some(start)) = (result.checked_sub(1), start.checked_sub(1)) else { return false };
    let (result, start) = (result as usize, start as usize);
    let Some(bytes) = frame.get(start..start + count) else { return false };
    let mut value = !(sum(bytes, 0) as u16);
    if value == 0 && word & 0x8000 != 0 {
        value = 0xffff;
    }
    match frame.get_mut(result..result + 2) {
        Some(field) => {
            field.copy_from_slice(&value.to_be_bytes());
            true
        }
        None => false,
    }
}

/// PS word 2 of a received frame: [15:0] sum (0xffff if correct), [16] error, [17] fragment, [18]
/// TCP, [19] IPv6 seen, [20] IPv4 seen; 0 for a frame that is neither TCP nor UDP.
pub(super) fn observe(frame: &[u8]) -> u32 {
    inspect(frame).unwrap_or(0)
}

fn inspect(frame: &[u8]) -> Option<u32> {
    let mut at = 12;
    let mut kind = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
    while matches!(kind, 0x8100 | 0x88a8) && at < 20 {
        at += 4;
        kind = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
    }
    let ip = frame.get(at + 2..)?;
    let (protocol, header, total, addresses, seen, fragment) = match kind {
        0x0800 => {
            let header = usize::from(*ip.first()? & 0xf) * 4;
            let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
            let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff != 0;
            (*ip.get(9)?, header, total, ip.get(12..20)?, 1 << 20, fragment)
        }
        0x86dd => {
            let total = 40 + usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
            (*ip.get(6)?, 40, total, ip.get(8..40)?, 1 << 19, false)
        }
        _ => return None,
    };
    let transport = match protocol {
        6 => 1 << 18,
        17 => 0,
        _ => return None,
    };
    if fragment {
        return Some(seen | transport | 1 << 17);
    }
    let payload = ip.get(header..total)?;
    let pseudo = sum(addresses, u32::from(protocol) + payload.len() as u32);
    let value = sum(payload, (pseudo & 0xffff) + (pseudo >> 16)) & 0xffff;
    let unchecked = protocol == 17 && payload.get(6..8) == Some(&[0, 0]);
    let error = if value == 0xffff || unchecked { 0 } else { 1 << 16 };
    Some(seen | transport | error | if unchecked { 0xffff } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP from 10.0.0.1:1 to 10.0.0.2:2 with four bytes. The checksum field holds the sum of the
    /// pseudo-header.
    fn frame() -> Vec<u8> {
        let mut f = vec![0; 12];
        f.extend([8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend([0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4]);
        let pseudo = sum(&f[26..34], 17 + 12) as u16;
        f[40..42].copy_from_slice(&pseudo.to_be_bytes());
        f
    }

    #[test]
    fn an_inserted_checksum_is_correct() {
        let mut frame = frame();
        assert!(insert(&mut frame, (40 + 1) << 24 | (34 + 1) << 16 | 0x8000 | 12));
        assert_eq!(observe(&frame), 1 << 20 | 0xffff);
        frame[45] ^= 1;
        assert_ne!(observe(&frame) & 1 << 16, 0);
    }

    #[test]
    fn a_position_outside_of_the_frame_is_refused_and_fragments_are_reported() {
        let mut f = frame();
        assert!(!insert(&mut f, 200 << 24 | 35 << 16 | 12));
        assert!(!insert(&mut f, 41 << 24 | 35 << 16 | 13));
        assert!(!insert(&mut f, 12));
        f[20] = 0x20;
        assert_ne!(observe(&f) & 1 << 17, 0);
        assert_eq!(observe(&f[..30]), 0);
    }
}

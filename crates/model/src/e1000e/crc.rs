//! The frame check sequence (IEEE 802.3 §3.2.9), for a driver that does not have it stripped.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// The FCS of a frame.
pub(crate) fn fcs(frame: &[u8]) -> [u8; 4] {
    let crc = frame.iter().fold(u32::MAX, |crc, byte| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]);
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_value_is_the_known_one() {
        assert_eq!(super::fcs(b"123456789"), 0xcbf4_3926u32.to_le_bytes());
    }
}

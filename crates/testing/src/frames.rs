//! Frames that a test recognizes.

/// A frame to an address, with a VLAN tag (its control information) or without, that is known again
/// by its `id`, the last byte of its source address.
pub fn addressed(mut frame: Vec<u8>, to: [u8; 6], tag: Option<u16>, id: u8) -> Vec<u8> {
    frame[..6].copy_from_slice(&to);
    frame[11] = id;
    if let Some(tag) = tag {
        let [high, low] = tag.to_be_bytes();
        frame.splice(12..12, [0x81, 0, high, low]);
    }
    frame
}

//! The base of vhost-user: where a queue goes on after its device was replaced.

use crate::layout::Format;

/// The positions of a device's next available and next used entry. A packed queue's are an index in
/// bits 14:0 and the wrap counter in bit 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// The next available entry that the device takes.
    pub avail: u16,
    /// The next used entry that the device writes.
    pub used: u16,
}

impl Base {
    /// The base of a new queue.
    pub const fn start(format: Format) -> Base {
        match format {
            Format::Split => Base { avail: 0, used: 0 },
            Format::Packed => Base { avail: 1 << 15, used: 1 << 15 },
        }
    }

    /// The base in a `VHOST_USER_SET_VRING_BASE`. That of a split queue has no used index: it is
    /// read from memory ([`Device::used_index`](crate::split::Device::used_index)) by
    /// [`Device::new`](crate::Device::new). A packed one whose upper half is zero comes from a back
    /// end that does not know of it, and has used what was available.
    pub const fn from_vring(format: Format, num: u32) -> Base {
        let (avail, used) = (num as u16, (num >> 16) as u16);
        match format {
            Format::Packed if used != 0 => Base { avail, used },
            _ => Base { avail, used: avail },
        }
    }

    /// The answer to a `VHOST_USER_GET_VRING_BASE`.
    pub const fn to_vring(self, format: Format) -> u32 {
        match format {
            Format::Split => self.avail as u32,
            Format::Packed => self.avail as u32 | (self.used as u32) << 16,
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_what_vhost_user_sends() {
        assert_eq!(Base::start(Format::Packed).to_vring(Format::Packed), 0x8000_8000);
        assert_eq!(Base::start(Format::Split).to_vring(Format::Split), 0);
        let packed = Base { avail: 0x80b3, used: 5 };
        assert_eq!(Base::from_vring(Format::Packed, packed.to_vring(Format::Packed)), packed);
        assert_eq!(Base::from_vring(Format::Packed, 0x8000), Base::start(Format::Packed));
        assert_eq!(Base::from_vring(Format::Split, 0xffff), Base { avail: 0xffff, used: 0xffff });
    }
}

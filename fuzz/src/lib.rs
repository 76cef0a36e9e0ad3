//! What several targets need.

/// The input, a byte at a time; zeros after its end.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    /// The next two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// The next four bytes.
    pub fn int(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    /// The next eight bytes.
    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }

    /// Up to `len` bytes.
    pub fn slice(&mut self, len: usize) -> &'a [u8] {
        let (first, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        first
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let given = self.slice(N);
        bytes[..given.len()].copy_from_slice(given);
        bytes
    }
}

/// Rings of sessions that ended, which a port keeps for some seconds: 32 of a user.
const KEPT: usize = 32;
/// Descriptors of connections that a port is about to close. No input waits for its own: what one
/// left behind, several leave too.
const CLOSING: usize = 16;

/// The descriptors of this process between the inputs of a target that keeps its port.
#[derive(Debug, Default)]
pub struct OpenFiles {
    most: Option<usize>,
}

impl OpenFiles {
    /// Whether there are no more than after the first input, and those that the port keeps for a
    /// time.
    pub fn are_bounded(&mut self) -> bool {
        let open = count_files();
        open <= *self.most.get_or_insert(open + KEPT + CLOSING)
    }
}

fn count_files() -> usize {
    // Linux 6.2 has the number as the size of the directory.
    match std::fs::metadata("/proc/self/fd").unwrap().len() {
        0 => std::fs::read_dir("/proc/self/fd").unwrap().count(),
        n => n as usize,
    }
}

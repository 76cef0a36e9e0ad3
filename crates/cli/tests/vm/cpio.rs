//! Archives in the format that the kernel unpacks at boot: cpio, "newc" (Linux
//! `Documentation/driver-api/early-userspace/buffer-format.rst`).

/// An archive under construction.
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    number: u32,
}

const FOLDER: u32 = 0o40755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;
const DEVICE: u32 = 0o20_600;

impl Cpio {
    pub(crate) fn new() -> Cpio {
        Cpio { bytes: Vec::new(), number: 0 }
    }

    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, (0, 0), &[]);
    }

    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, (0, 0), content);
    }

    pub(crate) fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, (0, 0), content);
    }

    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, DEVICE, (major, minor), &[]);
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.number = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.number += 1;
        let (links, size) = (1 + u32::from(mode == FOLDER), u32::try_from(content.len()).expect("less than 4 GiB"));
        let name = u32::try_from(path.len()).expect("a short path") + 1;
        // inode, mode, uid, gid, links, time, size, device of the file (2), of the node (2), name,
        // checksum.
        let fields = [self.number, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

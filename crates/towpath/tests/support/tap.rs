//! A tap as the far side of a port: what is written arrives there, and what leaves there is read.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use towpath_sys::tun::{self, Attach};
use towpath_testing::Namespace;

pub(crate) struct Tap(File);

impl Tap {
    /// A tap in a namespace, set up after `settings` of `ip link set`.
    pub(crate) fn new(ns: &Namespace, name: &str, settings: &str) -> Tap {
        let file = ns.inside(|| {
            let file = tun::open().unwrap();
            tun::attach(&file, name, Attach { ethernet: true, multi_queue: false, vnet_header: false }).unwrap();
            file
        });
        if !settings.is_empty() {
            ns.ip(&format!("link set {name} {settings}"));
        }
        ns.ip(&format!("link set {name} up"));
        Tap(file)
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.0.write_all(frame).unwrap();
    }

    /// The frames that have left since the last call.
    pub(crate) fn received(&mut self) -> Vec<Vec<u8>> {
        let (mut frames, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match self.0.read(&mut buffer) {
                Ok(n) => frames.push(buffer[..n].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return frames,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

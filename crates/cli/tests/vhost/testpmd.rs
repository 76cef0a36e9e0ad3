//! DPDK's `testpmd` as the other side of a vhost-user socket.

use crate::support::traffic::Background;
use std::path::Path;
use std::process::{Command, Stdio};

/// Memory without huge pages, shared all the same; two threads on one core; nothing that two
/// programs would share.
const EAL: &str = "--lcores (0,1)@1 --main-lcore=0 --no-pci --no-telemetry --no-huge -m 192 --no-shconf \
                   --log-level=lib.eal:error";

pub(crate) struct Testpmd {
    _program: Background,
}

impl Testpmd {
    /// `net_virtio_user` with `options`; `mode` is one of testpmd's ways to forward.
    pub(crate) fn front_end(socket: &Path, options: &str, mode: &str) -> Testpmd {
        let comma = if options.is_empty() { "" } else { "," };
        Testpmd::start(&format!("net_virtio_user0,path={}{comma}{options}", socket.display()), mode)
    }

    fn start(device: &str, mode: &str) -> Testpmd {
        let mut command = Command::new("dpdk-testpmd");
        command.args(EAL.split_whitespace()).arg(format!("--vdev={device}")).arg("--");
        command.args(["--auto-start", "--total-num-mbufs=8192", "--no-mlockall"]).arg(format!("--forward-mode={mode}"));
        // Without a terminal it runs until it is killed, or until its input ends.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Testpmd { _program: Background(child) }
    }
}

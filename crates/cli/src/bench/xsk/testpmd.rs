//! DPDK's `testpmd` as a back end of vhost-user: `net_vhost` in the mode `rxonly`, which copies
//! each frame into a buffer of its own, counts it and frees it.
//!
//! It obeys commands that it reads from its input, and ends with it. While it is not measured it
//! does not receive: a thread that receives polls all the time.

use super::back_end::BackEndPlace;
use super::reader::Work;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// MiB of memory for its buffers.
const MEMORY: u64 = 96;
/// Time in which it must listen.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The program; killed on drop.
pub(super) struct Testpmd {
    child: Child,
    commands: ChildStdin,
    output: BufReader<ChildStdout>,
    path: PathBuf,
    /// What it has counted when it was last asked.
    pub(super) work: Work,
}

impl Testpmd {
    /// Starts it at its place; it listens at `path`.
    pub(super) fn start(path: &Path, BackEndPlace { core, huge }: BackEndPlace) -> Result<Testpmd, Box<dyn Error>> {
        let memory = if huge { "--in-memory" } else { "--no-huge --no-shconf" };
        let args = format!(
            "-c {core} stdbuf -oL dpdk-testpmd --lcores (0,1)@{core} --main-lcore=0 --no-pci \
             --no-telemetry -m {MEMORY} {memory} --file-prefix towpath{} --log-level=lib.eal:error \
             --log-level=lib.vhost.config:error --vdev=net_vhost0,iface={} -- -i --forward-mode=rxonly \
             --nb-cores=1 --total-num-mbufs=16384 --rxd=256 --txd=256",
            std::process::id(),
            path.display()
        );
        let mut command = Command::new("taskset");
        command.args(args.split_ascii_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("taskset: {error}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (commands, output) = pipes.ok_or("a program without input and output")?;
        let mut testpmd =
            Testpmd { child, commands, output: BufReader::new(output), path: path.to_owned(), work: Work::default() };
        let begun = Instant::now();
        while !path.exists() {
            if testpmd.child.try_wait()?.is_some() || begun.elapsed() > TIMEOUT {
                let pages = if huge { ", and free huge pages" } else { "" };
                return Err(format!("dpdk-testpmd does not start: it needs DPDK (Debian: dpdk), stdbuf{pages}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(testpmd)
    }

    /// Lets it receive, or not; returns once it does.
    pub(super) fn run(&mut self, runs: bool) -> Result<(), Box<dyn Error>> {
        self.commands.write_all(if runs { b"start\n" } else { b"stop\n" })?;
        self.ask().map(drop)
    }

    /// Asks for all that it has received.
    pub(super) fn ask(&mut self) -> Result<Work, Box<dyn Error>> {
        self.commands.write_all(b"show port stats 0\n")?;
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Some((packets, bytes)) = counts(&line) {
                self.work = Work { packets, bytes, ns: 0 };
                return Ok(self.work);
            }
            line.clear();
        }
        Err("dpdk-testpmd has ended".into())
    }
}

/// Packets and bytes of a line of its statistics.
fn counts(line: &str) -> Option<(u64, u64)> {
    let value = |name: &str| line.split_once(name)?.1.split_ascii_whitespace().next()?.parse().ok();
    Some((value("RX-packets:")?, value("RX-bytes:")?))
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_received_packets() {
        let line = "  RX-packets: 6400       RX-missed: 0          RX-bytes:  409600\n";
        assert_eq!(counts(line), Some((6400, 409_600)));
        assert_eq!(counts("  TX-packets: 1          TX-errors: 0          TX-bytes:  64\n"), None);
        assert_eq!(counts("  RX-packets: 0              RX-dropped: 0             RX-total: 0\n"), None);
    }
}

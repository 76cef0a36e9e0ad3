//! Processor time of cores, and what the kernel lost at sockets: `/proc/stat`, `/proc/net/snmp`.

use std::fs::read_to_string;
use std::io;
use std::time::{Duration, Instant};

/// Ticks of `/proc/stat` in a second (`USER_HZ`, the same on every architecture that Rust knows).
const TICKS: u64 = 100;

/// The time that some cores had nothing to do up to one moment. Their work is the rest: the kernel
/// measures idle time exactly and samples work by ticks, which threads that sleep often escape.
#[derive(Debug, Clone)]
pub(crate) struct CoreTime {
    at: Instant,
    cores: u32,
    idle: Duration,
}

impl CoreTime {
    /// The time up to now.
    pub(crate) fn of(cores: &[usize]) -> io::Result<CoreTime> {
        let (count, idle) = idle(&read_to_string("/proc/stat")?, cores);
        Ok(CoreTime { at: Instant::now(), cores: count, idle })
    }

    /// The time that passed since `before`, and the time that the cores worked in it, for all
    /// processes and interrupts.
    pub(crate) fn since(&self, before: &CoreTime) -> (Duration, Duration) {
        let passed = self.at - before.at;
        (passed, (passed * self.cores).saturating_sub(self.idle.saturating_sub(before.idle)))
    }
}

/// How many of the cores there are, and the sum of their `idle`, `iowait` and `steal`
/// (`proc_stat(5)`).
fn idle(stat: &str, cores: &[usize]) -> (u32, Duration) {
    let (mut count, mut ticks) = (0, 0);
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let core = words.next().and_then(|word| word.strip_prefix("cpu")).and_then(|number| number.parse().ok());
        if core.is_some_and(|core| cores.contains(&core)) {
            let columns: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
            ticks += [3, 4, 7].iter().filter_map(|&column| columns.get(column)).sum::<u64>();
            count += 1;
        }
    }
    (count, Duration::from_millis(ticks * 1000 / TICKS))
}

/// UDP messages that found no room in the buffer of a socket of this thread's namespace, so far. A
/// super-packet for a socket with `UDP_GRO` is one message.
pub(crate) fn udp_refused() -> io::Result<u64> {
    Ok(refused(&read_to_string("/proc/thread-self/net/snmp")?))
}

/// `RcvbufErrors` of the two lines of UDP: names, then values.
fn refused(snmp: &str) -> u64 {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(name, _)| *name == "RcvbufErrors").and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_the_time_in_which_the_cores_named_are_neither_idle_nor_taken_away() {
        let stat = "cpu  9 9 9 9 9 9 9 9\ncpu0 1000 1000 1000 1 2 1000 1000 4\ncpu1 0 0 0 100 0 0 0 0\nintr 5\n";
        assert_eq!(idle(stat, &[0]), (1, Duration::from_millis(70)));
        assert_eq!(idle(stat, &[0, 1]), (2, Duration::from_millis(1070)));
        let at = Instant::now();
        let before = CoreTime { at, cores: 2, idle: Duration::from_secs(5) };
        let after = CoreTime { at: at + Duration::from_secs(1), cores: 2, idle: Duration::from_secs(6) };
        assert_eq!(after.since(&before), (Duration::from_secs(1), Duration::from_secs(1)));
    }

    #[test]
    fn messages_that_sockets_refused_are_found_by_the_name_of_their_column() {
        let snmp = "Ip: RcvbufErrors\nIp: 3\nUdp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 10 7 2\nUdpLite: RcvbufErrors\nUdpLite: 1\n";
        assert_eq!(refused(snmp), 7);
        assert_eq!(refused("Udp: InDatagrams\nUdp: 1\n"), 0);
    }
}

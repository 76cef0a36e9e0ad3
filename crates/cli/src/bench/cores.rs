//! Processor time of cores, and what the kernel lost at sockets: `/proc/stat`, `/proc/net/snmp`.

use std::fs::read_to_string;
use std::io;
use std::time::{Duration, Instant};

/// Ticks of `/proc/stat` in a second (`USER_HZ`, the same on every architecture that Rust knows).
const TICKS: u64 = 100;

/// The processor time of some cores up to one moment, of all processes, interrupts included.
#[derive(Debug, Clone)]
pub(crate) struct CoreTime {
    at: Instant,
    busy: Duration,
}

impl CoreTime {
    /// The time up to now.
    pub(crate) fn of(cores: &[usize]) -> io::Result<CoreTime> {
        Ok(CoreTime { at: Instant::now(), busy: busy(&read_to_string("/proc/stat")?, cores) })
    }

    /// The time that passed since `before`, and the time that the cores worked in it.
    pub(crate) fn since(&self, before: &CoreTime) -> (Duration, Duration) {
        (self.at - before.at, self.busy.saturating_sub(before.busy))
    }
}

/// Sum of `user`, `nice`, `system`, `irq` and `softirq` of the cores (`proc_stat(5)`).
fn busy(stat: &str, cores: &[usize]) -> Duration {
    let mut ticks = 0;
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let core = words.next().and_then(|word| word.strip_prefix("cpu")).and_then(|number| number.parse().ok());
        if core.is_some_and(|core| cores.contains(&core)) {
            let columns: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
            ticks += [0, 1, 2, 5, 6].iter().filter_map(|&column| columns.get(column)).sum::<u64>();
        }
    }
    Duration::from_millis(ticks * 1000 / TICKS)
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
    fn time_in_which_a_core_rests_or_another_core_works_is_not_counted() {
        let stat = "cpu  9 9 9 9 9 9 9 9\ncpu0 1 2 4 1000 1000 8 16 1000\ncpu1 100 0 0 0 0 0 0 0\nintr 5\n";
        assert_eq!(busy(stat, &[0]), Duration::from_millis(310));
        assert_eq!(busy(stat, &[0, 1]), Duration::from_millis(1310));
    }

    #[test]
    fn messages_that_sockets_refused_are_found_by_the_name_of_their_column() {
        let snmp = "Ip: RcvbufErrors\nIp: 3\nUdp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 10 7 2\nUdpLite: RcvbufErrors\nUdpLite: 1\n";
        assert_eq!(refused(snmp), 7);
        assert_eq!(refused("Udp: InDatagrams\nUdp: 1\n"), 0);
    }
}

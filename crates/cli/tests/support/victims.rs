//! Applications under full load that are killed and replaced repeatedly.

use super::{LONGEST, Summary, Towpath};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A role and its current process.
struct Slot {
    /// Makes the program; it writes to standard error when its first frames have come back.
    program: Box<dyn Fn() -> Command>,
    victim: Child,
    ready: UnixStream,
}

impl Slot {
    fn new(program: Box<dyn Fn() -> Command>) -> Slot {
        let (victim, ready) = start(&program);
        Slot { program, victim, ready }
    }

    fn kill(&mut self) {
        self.victim.kill().expect("a child that is ours");
        self.victim.wait().expect("a child that was killed");
    }

    fn replace(&mut self) {
        self.kill();
        (self.victim, self.ready) = start(&self.program);
    }

    /// Waits until the process is at work. A process may have been refused while its predecessor
    /// was disconnecting: then it is replaced.
    fn wait(&mut self) {
        let since = Instant::now();
        while self.ready.read(&mut [0]).unwrap_or(0) == 0 {
            assert!(since.elapsed() < LONGEST, "the program does not get to work");
            self.replace();
        }
    }
}

fn start(program: &dyn Fn() -> Command) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    ours.set_read_timeout(Some(LONGEST)).expect("a valid timeout");
    let mut command = program();
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(OwnedFd::from(theirs));
    (command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")), ours)
}

/// All processes; dropping this kills them.
pub(crate) struct Victims {
    slots: Vec<Slot>,
    seed: u32,
}

impl Victims {
    pub(crate) fn new(programs: impl IntoIterator<Item = Box<dyn Fn() -> Command>>) -> Victims {
        Victims { slots: programs.into_iter().map(Slot::new).collect(), seed: 0x9e37_79b9 }
    }

    /// A pseudo-random number below `n`.
    fn random(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.seed >> 8) as usize % n
    }

    /// Kills `times` processes one after the other, most of them at work and some during startup;
    /// then the rest.
    pub(crate) fn are_killed(mut self, times: u64, towpath: &mut Towpath) {
        for _ in 0..times {
            let (which, is_late, pause) = (self.random(self.slots.len()), self.random(4) > 0, self.random(6000));
            let slot = &mut self.slots[which];
            if is_late {
                slot.wait();
            }
            std::thread::sleep(Duration::from_micros(pause as u64));
            slot.replace();
            assert!(!towpath.has_ended());
        }
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        self.slots.iter_mut().for_each(Slot::kill);
    }
}

/// Asserts that most killed processes had got as far as sending, and that nothing is missing.
#[track_caller]
pub(crate) fn was_busy_and_is_unharmed(summary: &Summary, kills: u64) {
    summary.is_balanced();
    assert!(summary.happened("sessions") >= kills / 2, "{summary:#?}");
}

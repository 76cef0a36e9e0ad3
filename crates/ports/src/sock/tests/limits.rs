//! What sessions cost the account of their user, and for how long.

use super::*;
use std::os::fd::AsRawFd;
use towpath_client::protocol::Rings;
use towpath_packet::port::Usage;
use towpath_sys::memfd;

impl Rig {
    /// What all users have of a resource.
    pub(super) fn usage(&self, resource: &str) -> Usage {
        let none = Usage::new(None, "", 0, 0, 0);
        let all = self.control.usage().into_iter().find(|usage| usage.user.is_none() && usage.resource == resource);
        all.unwrap_or(none)
    }

    /// Why a session is refused.
    #[track_caller]
    fn refusal(&self, hello: &Hello, memory: &UntrustedMem) -> String {
        match send_hello(self, &hello.encode(), &[memory.fd().unwrap()]).1 {
            Some(Answer::Refusal(refusal)) => refusal.why,
            answer => panic!("{answer:?}"),
        }
    }

    /// Runs the queues until no session has anything.
    pub(super) fn until_free(&mut self) {
        until(|| {
            drop(self.step());
            self.tx.reclaim();
            self.usage("sessions").now == 0
        });
    }
}

impl Rig {
    /// Ends the time of the rings of ended sessions.
    pub(super) fn free_rings(&self) {
        self.tx.queue.shared().events.ended_rings.free_all();
    }
}

fn memory(hello: &Hello) -> UntrustedMem {
    UntrustedMem::new(Region::new(hello.umem as usize, Backing::Memfd).unwrap())
}

fn populate(memory: &UntrustedMem) {
    towpath_sys::Mmap::populated(memory.fd().unwrap(), 0, memory.len()).unwrap();
}

fn free_pages(memory: &UntrustedMem, len: usize) {
    memfd::free_pages(memory.fd().unwrap(), len).unwrap();
}

#[test]
fn memory_without_all_its_pages_is_refused_with_the_way_to_get_them() {
    let rig = Rig::new("");
    let sparse = memory(&HELLO);
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fallocate(sparse.fd().unwrap().as_raw_fd(), how, 8192, 4096) }, 0);
    let why = rig.refusal(&HELLO, &sparse);
    assert!(why.contains("no page at byte 8192") && why.contains("MAP_POPULATE"), "{why}");
    assert_eq!(rig.usage("memory").now, 0);
    // Pages behind the end do not stand for those inside.
    // SAFETY: no pointers.
    unsafe { libc::fallocate(sparse.fd().unwrap().as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20) };
    assert!(rig.refusal(&HELLO, &sparse).contains("no page"));
    populate(&sparse);
    drop(Program::in_memory(&rig, &HELLO, &sparse));
    rig.end();
}

#[test]
fn memory_is_given_back_unless_pages_of_it_were_freed() {
    let mut rig = Rig::new("memory=1M");
    let whole = memory(&HELLO);
    for _ in 0..100 {
        // More than 1 MB in all, one after the other.
        drop(Program::in_memory(&rig, &HELLO, &whole));
        rig.until_free();
        assert_eq!(rig.usage("memory").now, 0);
    }
    assert_eq!(rig.usage("memory").peak, HELLO.umem);
    let sessions = 1_000_000 / HELLO.umem;
    for n in 1..=sessions {
        let freed = memory(&HELLO);
        let program = Program::in_memory(&rig, &HELLO, &freed);
        free_pages(&freed, 4096);
        // Whole again: by the application, or by the port.
        populate(&freed);
        drop(program);
        rig.until_free();
        assert_eq!(rig.usage("memory").now, n * HELLO.umem, "its pages may be those of the port");
    }
    let why = rig.refusal(&HELLO, &whole);
    assert!(why.contains("(memory=1000000)"), "{why}");
    rig.end();
}

#[test]
fn sessions_that_share_memory_pay_for_it_once() {
    let mut rig = Rig::new("");
    let whole = memory(&HELLO);
    let first = Program::in_memory(&rig, &HELLO, &whole);
    let second = Program::in_memory(&rig, &Hello { share: first.session, ..HELLO }, &whole);
    assert_eq!((rig.usage("memory").now, rig.usage("sessions").now), (HELLO.umem, 2));
    drop((first, second));
    rig.until_free();
    assert_eq!(rig.usage("memory").now, 0);
    rig.end();
}

#[test]
fn a_session_is_on_the_account_until_its_last_page_is_free() {
    let mut rig = Rig::new("sessions=1");
    let (mut program, whole) = Program::with_memory(&rig, &HELLO);
    program.send(&[(0, 60, 0)]);
    let batch = rig.receive(1);
    drop(program);
    rig.until_event("sessions-ended", 1);
    (0..20).for_each(|_| {
        drop(rig.step());
        rig.tx.reclaim();
    });
    assert_eq!((rig.usage("sessions").now, rig.usage("memory").now), (1, HELLO.umem));
    assert!(rig.refusal(&HELLO, &whole).contains("(sessions=1)"));
    drop(batch);
    rig.until_free();
    drop(Program::in_memory(&rig, &HELLO, &whole));
    rig.end();
}

#[test]
fn rings_stay_for_a_time_and_their_pages_are_freed_then_even_if_the_application_keeps_them() {
    let mut rig = Rig::new("");
    let whole = memory(&HELLO);
    let (connection, answer, fds) = send_hello(&rig, &HELLO.encode(), &[whole.fd().unwrap()]);
    let Some(Answer::Welcome(welcome)) = answer else { panic!("{answer:?}") };
    let rings = UntrustedMem::from_memfd(fds.into_iter().next().unwrap(), welcome.memory as usize).unwrap();
    let whole_until = || memfd::first_hole(rings.fd().unwrap()).unwrap();
    assert_eq!(whole_until(), welcome.memory, "all pages exist from the beginning");
    drop(connection);
    rig.until_free();
    assert_eq!((whole_until(), rig.usage("metadata").now), (welcome.memory, welcome.memory));
    rig.free_rings();
    assert_eq!((whole_until(), rig.usage("metadata").now), (0, 0));
    rig.end();
}

#[test]
fn rings_of_many_ended_sessions_are_freed_before_their_time() {
    let mut rig = Rig::new("");
    let whole = memory(&HELLO);
    for _ in 0..40 {
        drop(Program::in_memory(&rig, &HELLO, &whole));
        rig.until_free();
    }
    let rings = Rings::lay_out(&HELLO.rings).1.next_multiple_of(4096);
    assert!(rig.usage("metadata").now <= 32 * rings, "{}", rig.usage("metadata").now);
    rig.end();
}

#[test]
fn metadata_is_bounded_by_memory_and_budget_whatever_the_rings() {
    let rings = Sizes::all(32_768);
    let memory_bytes = Hello { umem: 1 << 20, rings, ..HELLO };
    let cases = [
        memory_bytes.clone(),
        Hello { skip_invalid: true, ..memory_bytes.clone() },
        Hello { skip_invalid: true, one_descriptor: true, unaligned: true, chunk: 3000, ..memory_bytes },
    ];
    for hello in cases {
        let mut rig = Rig::new("budget=1M");
        let (program, whole) = Program::with_memory(&rig, &hello);
        let bytes = rig.usage("metadata").now;
        // The rings take 1.5 MiB, a page in flight 92 bytes: at most one for 256 bytes of memory.
        assert!((1_500_000..2_200_000).contains(&bytes), "{bytes} bytes for {hello:?}");
        // The next one is refused by name.
        let full = Rig::new("metadata=1M");
        assert!(full.refusal(&hello, &whole).contains("bytes of metadata"));
        drop(program);
        rig.until_free();
        rig.free_rings();
        assert_eq!(rig.usage("metadata").now, 0);
        rig.end();
        full.end();
    }
}

#[test]
fn a_session_that_sends_one_frame_many_times_waits_and_loses_none() {
    let mut rig = Rig::new("");
    let hello = Hello { umem: 2048, skip_invalid: true, rings: Sizes::all(256), ..HELLO };
    let mut program = Program::connect(&rig, &hello);
    program.send(&[(0, 60, 0); 200]);
    let (mut seen, mut held) = (0, Vec::new());
    until(|| {
        let batch = rig.step();
        seen += batch.len();
        held.push(batch);
        // The port takes more when it has some back.
        if held.len() > 3 {
            held.clear();
        }
        seen == 200
    });
    drop((held, program));
    rig.end();
}

#[test]
fn what_a_user_may_not_ask_for_is_refused_by_name() {
    let rig = Rig::new("allow=*:udp dport 1024-2047");
    let umem = Umem::new(8, 2048).unwrap();
    drop(rig.ask(&umem, "udp dport 2000", Sizes::all(64)).unwrap());
    for rules in ["udp dport 53", "default", "any"] {
        match rig.ask(&umem, rules, Sizes::all(64)) {
            Err(Error::Refused(refusal)) => {
                assert!(refusal.code == Code::Rules && refusal.why.contains("may ask for udp dport 1024-2047"));
            }
            other => panic!("{rules}: {other:?}"),
        }
    }
    rig.end();
}

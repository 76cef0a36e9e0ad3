//! Applications of several users. Root alone can connect as others: elsewhere these tests are
//! skipped by name.

use crate::rig::{Rig, until};
use crate::rogue::{CHUNK, Rogue, hello, send_hello};
use std::os::unix::fs::PermissionsExt;
use towpath_client::protocol::{Answer, Hello, Sizes};
use towpath_packet::{Backing, Region};
use towpath_testing::skip;

/// The user with many sessions, and the one beside it.
const MANY: u32 = 2001;
const ONE: u32 = 2002;

/// Frames of a session that sends all the time: more than its share of two bursts.
const CHUNKS: u32 = 128;

/// A port that all users can connect to.
fn open_to_all(name: &str, options: &str) -> Option<Rig> {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        skip(name, "connecting as another user needs root");
        return None;
    }
    let rig = Rig::new(&format!("mode=666,{options}"));
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(rig.path.parent().unwrap(), open).unwrap();
    Some(rig)
}

/// Runs `f` as another user: the kernel names the user of the thread that connects.
fn as_user<T>(user: u32, f: impl FnOnce() -> T) -> T {
    let become_user = |user: u32| {
        // SAFETY: no pointers. Without the library's wrapper, which changes all threads.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) }, 0);
    };
    become_user(user);
    let done = f();
    become_user(0);
    done
}

fn few_rules(rules: &str) -> Hello {
    Hello { rules: rules.to_owned(), ..hello() }
}

/// The answer to a message of a user, which holds its session as long as the returned values.
fn ask(rig: &Rig, user: u32, hello: &Hello) -> (Result<(), String>, impl Sized + use<>) {
    let memory = Region::new(hello.umem as usize, Backing::Memfd).unwrap();
    let (connection, answer, fds) = as_user(user, || send_hello(rig, &hello.encode(), &[memory.fd().unwrap()]));
    let answer = match answer {
        Some(Answer::Welcome(_)) => Ok(()),
        Some(Answer::Refusal(refusal)) => Err(refusal.why),
        None => panic!("no answer"),
    };
    (answer, (connection, fds))
}

/// Asks until it is refused; returns the sessions and the reason.
fn ask_for_all(rig: &mut Rig, user: u32, hello: &Hello) -> (Vec<impl Sized + use<>>, String) {
    let mut all = Vec::new();
    loop {
        let (answer, session) = ask(rig, user, hello);
        // The queues take the sessions that were opened.
        drop(rig.step());
        match answer {
            Ok(()) => all.push(session),
            Err(why) => return (all, why),
        }
    }
}

#[test]
fn one_user_cannot_take_the_sessions_rules_memory_or_metadata_of_all() {
    let large = Hello { rings: Sizes::all(32_768), rules: String::new(), ..hello() };
    let cases: [(&str, Hello, usize, &str); 4] = [
        ("", few_rules(""), 32, "(user-sessions=32)"),
        ("", few_rules(&"arp\n".repeat(64)), 4, "(user-rules=256)"),
        ("memory=2M", Hello { umem: 1 << 18, ..few_rules("") }, 3, "(user-memory=1000000)"),
        ("metadata=10M", large, 3, "(user-metadata=5000000)"),
    ];
    for (options, hello, most, limit) in cases {
        let Some(mut rig) = open_to_all("users::one_user_cannot_take", options) else { return };
        let (held, why) = ask_for_all(&mut rig, MANY, &hello);
        assert!(held.len() == most && why.contains(limit), "{}: {why}", held.len());
        // As much is left for another user.
        let (others, why) = ask_for_all(&mut rig, ONE, &hello);
        assert_eq!(others.len(), most, "{why}");
        let ended = (held.len() + others.len()) as u64;
        drop((held, others));
        rig.until_event("sessions-ended", ended);
        // Rings are given back later.
        let mut again = Vec::new();
        until(|| {
            again.extend(ask_for_all(&mut rig, MANY, &hello).0);
            again.len() == most
        });
        drop(again);
        rig.end();
    }
}

#[test]
fn forty_sessions_of_a_user_leave_half_of_each_burst_to_one_session_of_another() {
    let Some(mut rig) = open_to_all("users::forty_sessions", "sessions=80") else { return };
    let wide = Hello { umem: u64::from(CHUNKS) * CHUNK, rings: Sizes::all(CHUNKS), ..few_rules("") };
    let of = |user| as_user(user, || Rogue::connect(&rig, &wide));
    let mut all: Vec<_> = (0..40).map(|_| of(MANY)).chain([of(ONE)]).collect();
    // The last bytes of a frame name its user.
    for (number, rogue) in all.iter_mut().enumerate() {
        let byte = u8::from(number == 40);
        let chunks = 0..u64::from(CHUNKS);
        chunks.clone().for_each(|at| rogue.scrawl((at * CHUNK) as usize + 56, u32::from_ne_bytes([byte; 4])));
        rogue.send(&chunks.map(|at| (at * CHUNK, 60, 0)).collect::<Vec<_>>());
    }
    let mut bursts = Vec::new();
    until(|| {
        for rogue in &mut all {
            let back: Vec<_> = rogue.reap().into_iter().map(|at| (at, 60, 0)).collect();
            rogue.send(&back);
        }
        let batch = rig.step();
        let of_one = batch.iter().filter(|packet| packet.to_vec()[59] == 1).count();
        // The queue has all sessions when it has the last one.
        if of_one > 0 {
            bursts.push((of_one, batch.len()));
        }
        bursts.len() == 50
    });
    assert!(bursts.iter().all(|burst| *burst == (32, 64)), "{bursts:?}");
    drop(all);
    rig.until_event("sessions-ended", 41);
    rig.end();
}

#[test]
fn a_connection_is_that_of_the_user_who_made_it() {
    let Some(rig) = open_to_all("users::a_connection_is", "allow=2001:arp") else { return };
    let fds = |user, rules| ask(&rig, user, &few_rules(rules)).0;
    assert!(fds(MANY, "arp").is_ok());
    let why = fds(ONE, "arp").unwrap_err();
    assert!(why.contains("user 2002 may ask for nothing (allow=)"), "{why}");
    rig.end();
}

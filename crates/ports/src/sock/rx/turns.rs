//! The turns of a queue's applications in a burst: fair among users, then among the sessions of a
//! user.
//!
//! ```text
//!   room of the burst ──┬── user 1: a half ──┬── session a: a quarter
//!                       │                    └── session b: a quarter
//!                       └── user 2: a half ───── session c: a half        what is left: those who have more
//! ```
//!
//! A user with many sessions gets no more than one with a single session, if both have enough to
//! send. Every burst begins with the next user, and with the next session of each user. What a user
//! leaves goes to the others.

/// What a session took in its turn.
pub(super) struct Taken {
    /// Descriptors that it took out of its ring.
    pub(super) descriptors: usize,
    /// The room in the burst that is left.
    pub(super) room: usize,
}

/// Sessions of one user: neighbours in the list of the queue.
#[derive(Debug)]
struct Group {
    first: usize,
    len: usize,
    /// The session that the next burst begins with.
    next: usize,
}

/// The order of turns. It allocates nothing after it was made.
#[derive(Debug)]
pub(super) struct Turns {
    groups: Vec<Group>,
    /// Sessions that used up their room: they may have more.
    more: Vec<bool>,
    /// The user that the next burst begins with.
    next: usize,
}

impl Turns {
    /// For up to `sessions` sessions.
    pub(super) fn new(sessions: usize) -> Turns {
        Turns { groups: Vec::with_capacity(sessions), more: Vec::with_capacity(sessions), next: 0 }
    }

    /// Sets the users of the sessions in the list, in which those of a user are neighbours.
    pub(super) fn regroup(&mut self, users: impl Iterator<Item = u32>) {
        self.groups.clear();
        self.more.clear();
        let mut last = None;
        for (first, user) in users.enumerate() {
            match self.groups.last_mut() {
                Some(group) if last == Some(user) => group.len += 1,
                _ => self.groups.push(Group { first, len: 1, next: 0 }),
            }
            last = Some(user);
            self.more.push(false);
        }
        self.next = 0;
    }

    /// Gives all sessions their turns. `take` lets a session take up to a number of descriptors.
    #[inline]
    pub(super) fn burst<T>(&mut self, sessions: &mut [T], room: usize, mut take: impl FnMut(&mut T, usize) -> Taken) {
        let (mut room, users) = (room, self.groups.len());
        // A session by itself.
        if let [session] = sessions {
            if room > 0 {
                take(session, room);
            }
            return;
        }
        let share = (room / users.max(1)).max(1);
        for i in 0..users {
            let Some(group) = self.groups.get_mut((self.next + i) % users) else { continue };
            let mut left = share.min(room);
            // Each session has its part, and then what others left of it.
            for round in [(left / group.len).max(1), usize::MAX] {
                for j in 0..group.len {
                    let at = group.first + (group.next + j) % group.len;
                    let (Some(session), Some(more)) = (sessions.get_mut(at), self.more.get_mut(at)) else { continue };
                    let most = left.min(round);
                    if round == usize::MAX && !*more {
                        continue;
                    }
                    if most == 0 {
                        *more = true;
                        continue;
                    }
                    let taken = take(session, most);
                    *more = taken.descriptors >= most;
                    (left, room) = (left.saturating_sub(taken.descriptors).min(taken.room), taken.room);
                }
            }
            group.next = (group.next + 1) % group.len;
        }
        if users > 1 && room > 0 {
            self.rest(sessions, room, take);
        }
        self.next = if self.next + 1 < users { self.next + 1 } else { 0 };
    }

    /// Gives the room that users left to those who have more.
    #[inline]
    fn rest<T>(&self, sessions: &mut [T], mut room: usize, mut take: impl FnMut(&mut T, usize) -> Taken) {
        let users = self.groups.len();
        for i in 0..users {
            let Some(group) = self.groups.get((self.next + i) % users) else { continue };
            for j in 0..group.len {
                let at = group.first + (group.next + j) % group.len;
                if room > 0
                    && self.more.get(at) == Some(&true)
                    && let Some(session) = sessions.get_mut(at)
                {
                    room = take(session, room).room;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session with descriptors in its ring, and those that it took.
    #[derive(Debug, Clone, Copy)]
    struct Session {
        waiting: usize,
        taken: usize,
    }

    const ROOM: usize = 64;

    /// Runs bursts over sessions of users, each with `refill` descriptors before every burst.
    /// Returns what each took.
    fn run(users: &[u32], refill: &[usize], bursts: usize) -> Vec<usize> {
        let mut sessions = vec![Session { waiting: 0, taken: 0 }; users.len()];
        let mut turns = Turns::new(users.len());
        turns.regroup(users.iter().copied());
        for _ in 0..bursts {
            sessions.iter_mut().zip(refill).for_each(|(session, refill)| session.waiting = *refill);
            let mut room = ROOM;
            turns.burst(&mut sessions, ROOM, |session, most| {
                assert!(most > 0 && most <= room);
                let n = session.waiting.min(most);
                session.waiting -= n;
                session.taken += n;
                room -= n;
                Taken { descriptors: n, room }
            });
            let left: usize = sessions.iter().map(|session| session.waiting).sum();
            assert!(room == 0 || left == 0, "{room} left, and {left} wait");
        }
        sessions.iter().map(|session| session.taken).collect()
    }

    #[test]
    fn forty_sessions_of_a_user_take_no_more_than_one_session_of_another() {
        let users = [vec![1; 40], vec![2]].concat();
        let taken = run(&users, &[1000; 41], 400);
        assert_eq!(taken[40], 400 * ROOM / 2);
        let flood = &taken[..40];
        // 32 a burst among 40, each in turn.
        assert!(flood.iter().all(|n| *n == 320), "{flood:?}");
        // Beside a user with less than its share, the flood gets the rest.
        let mut refill = [1000; 41];
        refill[40] = 5;
        let taken = run(&users, &refill, 400);
        assert_eq!((taken[40], taken[..40].iter().sum::<usize>()), (400 * 5, 400 * (ROOM - 5)));
    }

    #[test]
    fn sessions_of_one_user_share_alike_and_take_what_others_leave() {
        assert_eq!(run(&[7; 4], &[1000; 4], 100), [1600; 4]);
        assert_eq!(run(&[7; 4], &[1000, 2, 0, 1000], 100)[1..3], [200, 0]);
        assert_eq!(run(&[7], &[1000], 100), [6400]);
        assert_eq!(run(&[], &[], 100), []);
    }

    #[test]
    fn more_users_than_a_burst_has_room_for_take_turns() {
        let users: Vec<_> = (0..100).collect();
        assert!(run(&users, &[1000; 100], 100).iter().all(|n| *n == ROOM));
    }

    proptest::proptest! {
        #[test]
        fn a_user_gets_its_share_or_all_that_it_offers(
            sessions in proptest::collection::vec((0u32..5, 0usize..100), 1..30),
        ) {
            let mut sessions = sessions;
            sessions.sort_unstable();
            let users: Vec<_> = sessions.iter().map(|(user, _)| *user).collect();
            let refill: Vec<_> = sessions.iter().map(|(_, refill)| *refill).collect();
            let (taken, bursts) = (run(&users, &refill, 30), 30);
            let mut distinct = users.clone();
            distinct.dedup();
            for user in &distinct {
                let of = |amounts: &[usize]| users.iter().zip(amounts).filter(|(u, _)| *u == user).map(|(_, n)| n).sum::<usize>();
                let fair = of(&refill).min(ROOM / distinct.len()) * bursts;
                proptest::prop_assert!(of(&taken) >= fair, "user {user}: {} of {fair}", of(&taken));
            }
        }
    }
}

//! Limits: what applications may have of the port, each user's and all together.
//!
//! ```text
//!   Hello ──► Account::take(user, amounts) ──► Share, held by the session, or by its memory
//!                │ over a limit: refused, by the limit's name        │ the last page in flight is freed
//!                ▼                                                   ▼
//!             an account per user, and one for all ◄──────── the share is given back
//! ```
//!
//! | resource | a user | all | counted |
//! |---|---|---|---|
//! | sessions | `user-sessions=` | `sessions=` | until the last page in flight is freed |
//! | rules | `user-rules=` | `all-rules=` | likewise |
//! | bytes of memory | `user-memory=` | `memory=` | once for all sessions that share it |
//! | bytes of metadata | `user-metadata=` | `metadata=` | rings, and what the port allocates for a session |
//!
//! A user is the user of the process that connected, as the kernel says (`SO_PEERCRED`).
//!
//! | file | contents |
//! |---|---|
//! | `account` | what each user's applications have, and all together |
//! | `claims` | the packets that a user's applications may ask for |
//! | `ended` | rings of sessions that have ended, until their pages are freed |
//!
//! **Defaults.** A user may have half of what all may have, so that one user can't take all of
//! anything. Where the socket's permissions admit its owner alone (`mode=600`), this user may have
//! all. Together all applications may have a quarter of the memory that this process may use as
//! their own memory (at most 4 GiB), and an eighth (at most 128 MiB) as metadata: see
//! [`towpath_sys::memory_limit`].
//!
//! **Memory of applications counts**, because it can become this process's. A page of a shared
//! memory is charged to the control group of the process that touches it first. So all pages must
//! exist before a session is opened: these are the application's for good. It can still free pages
//! (`fallocate` with `FALLOC_FL_PUNCH_HOLE`), and the next access of the port allocates them again,
//! charged to this process. No seal prevents only that. Such pages stay charged as long as the
//! application keeps them, whether there is a session or not. A file's time of change shows that
//! pages may have been freed. The share of a memory that changed while it was in use is therefore
//! **never given back**: such an application uses up the account of its user. In the summary these
//! bytes remain. What this process can be charged for the memory of applications is thus never more
//! than `memory=`.
//!
//! Rings lie in memory of this process. Their pages are freed some seconds after the end of the
//! session, even if the application keeps the descriptor, and count until then. Rings of sessions
//! that the end of the port ended stay as long as the applications keep them.
//!
//! **Not bounded here:** pages of rings that an application has pinned when its session ends
//! (`vmsplice`, registered buffers) stay charged until they are unpinned; the system's limits for
//! pinned and piped pages bound them. Kernel memory of sockets and descriptors is bounded by the
//! number of sessions.

mod account;
mod claims;
mod ended;

pub(super) use account::{Account, Amounts, Share};
pub use claims::Claim;
pub(super) use claims::{covers, parse_user};
pub(super) use ended::{EndedRings, RingPages};

use super::config::Config;
use towpath_sys::memory_limit;

/// What has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    Sessions = 0,
    Rules = 1,
    Memory = 2,
    Metadata = 3,
}

impl Resource {
    pub(super) const ALL: [Resource; 4] = [Resource::Sessions, Resource::Rules, Resource::Memory, Resource::Metadata];

    /// The name in messages and tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Resource::Sessions => "sessions",
            Resource::Rules => "rules",
            Resource::Memory => "memory",
            Resource::Metadata => "metadata",
        }
    }

    /// An amount of it, in words.
    fn of(self, amount: u64) -> String {
        match self {
            Resource::Memory | Resource::Metadata => format!("{amount} bytes of {}", self.name()),
            Resource::Sessions | Resource::Rules => format!("{amount} {}", self.name()),
        }
    }

    /// The option with the limit of a user, and that with the limit of all.
    const fn options(self) -> [&'static str; 2] {
        match self {
            Resource::Sessions => ["user-sessions", "sessions"],
            Resource::Rules => ["user-rules", "all-rules"],
            Resource::Memory => ["user-memory", "memory"],
            Resource::Metadata => ["user-metadata", "metadata"],
        }
    }
}

/// The limits of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    user: Amounts,
    all: Amounts,
}

/// The most bytes of applications' memory by default.
const MEMORY: u64 = 4 << 30;
/// The most bytes of metadata by default.
const METADATA: u64 = 128 << 20;

impl Limits {
    /// The limits of a configuration, with defaults for this process. A limit of a user is never
    /// more than that of all.
    pub(super) fn of(config: &Config) -> Limits {
        Limits::within(config, memory_limit::get())
    }

    /// As [`of`](Limits::of), for a process that may use `available` bytes.
    fn within(config: &Config, available: u64) -> Limits {
        let memory = config.memory.unwrap_or(MEMORY.min(available / 4));
        let metadata = config.metadata.unwrap_or(METADATA.min(available / 8));
        let all = Amounts([config.sessions.into(), config.all_rules.into(), memory, metadata]);
        let share = if config.admits_owner_alone() { 1 } else { 2 };
        let configured = [
            config.user_sessions.map(u64::from),
            config.user_rules.map(u64::from),
            config.user_memory,
            config.user_metadata,
        ];
        let each = |at: usize| configured[at].unwrap_or(all.0[at].div_ceil(share)).min(all.0[at]);
        Limits { user: Amounts(std::array::from_fn(each)), all }
    }
}

#[cfg(test)]
mod tests;

//! The accounts: what each user's applications have, and all together.

use super::{Limits, Resource};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use towpath_packet::port::Usage;

/// Users that are remembered after their last session, with what they had at most.
const MAX_USERS: usize = 64;

/// An amount of each [`Resource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::sock) struct Amounts(pub(super) [u64; 4]);

impl Amounts {
    /// This, and `n` of a resource.
    #[must_use]
    pub(in crate::sock) fn with(mut self, resource: Resource, n: u64) -> Amounts {
        self.0[resource as usize] += n;
        self
    }

    fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }
}

/// What one user's applications have, or all.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    now: Amounts,
    peak: Amounts,
}

impl Held {
    /// The first resource of which `more` is over a limit.
    fn exceeds(&self, more: &Amounts, limits: &Amounts) -> Option<Resource> {
        // Resources that are not asked for are never over: a share may outlive a lower limit.
        let over = |r: &Resource| more.get(*r) > 0 && self.now.get(*r).saturating_add(more.get(*r)) > limits.get(*r);
        Resource::ALL.into_iter().find(over)
    }

    fn add(&mut self, more: &Amounts) {
        for ((now, peak), more) in self.now.0.iter_mut().zip(&mut self.peak.0).zip(more.0) {
            *now += more;
            *peak = (*peak).max(*now);
        }
    }

    fn subtract(&mut self, less: &Amounts) {
        self.now.0.iter_mut().zip(less.0).for_each(|(now, less)| *now -= less);
    }
}

#[derive(Debug, Default)]
struct Accounts {
    all: Held,
    users: BTreeMap<u32, Held>,
}

impl Accounts {
    /// Forgets users without a session, above all if there are many.
    fn make_room(&mut self) {
        if self.users.len() >= MAX_USERS
            && let Some(idle) = self.users.iter().find(|(_, held)| held.now == Amounts::default())
        {
            let idle = *idle.0;
            self.users.remove(&idle);
        }
    }
}

/// The accounts of a port.
#[derive(Debug)]
pub(in crate::sock) struct Account {
    limits: Limits,
    accounts: Mutex<Accounts>,
}

impl Default for Account {
    /// Without limits.
    fn default() -> Account {
        let all = Amounts([u64::MAX; 4]);
        Account::new(Limits { user: all, all })
    }
}

impl Account {
    pub(in crate::sock) fn new(limits: Limits) -> Account {
        Account { limits, accounts: Mutex::default() }
    }

    /// Takes a share for an application of a user.
    ///
    /// # Errors
    /// [`Refused`] names the limit that it is over. Nothing is taken then.
    pub(in crate::sock) fn take(self: &Arc<Account>, user: u32, amounts: Amounts) -> Result<Share, Refused> {
        let mut accounts = self.lock();
        accounts.make_room();
        let held = accounts.users.get(&user).copied().unwrap_or_default();
        let refused = |resource: Resource, user: Option<u32>, now: &Held, limits: &Amounts| Refused {
            resource,
            user,
            requested: amounts.get(resource),
            held: now.now.get(resource),
            limit: limits.get(resource),
        };
        if let Some(resource) = accounts.all.exceeds(&amounts, &self.limits.all) {
            return Err(refused(resource, None, &accounts.all, &self.limits.all));
        }
        if let Some(resource) = held.exceeds(&amounts, &self.limits.user) {
            return Err(refused(resource, Some(user), &held, &self.limits.user));
        }
        accounts.all.add(&amounts);
        accounts.users.entry(user).or_default().add(&amounts);
        Ok(Share { account: self.clone(), user, amounts })
    }

    /// What users have, and all, of each resource.
    pub(in crate::sock) fn usage(&self) -> Vec<Usage> {
        let accounts = self.lock();
        let users = accounts.users.iter().map(|(user, held)| (Some(*user), held, &self.limits.user));
        let all = [(None, &accounts.all, &self.limits.all)];
        let rows = all.into_iter().filter(|_| !accounts.users.is_empty()).chain(users);
        let each = |(user, held, limits): (Option<u32>, &Held, &Amounts)| {
            let row = |r: Resource| Usage::new(user, r.name(), held.now.get(r), held.peak.get(r), limits.get(r));
            Resource::ALL.map(row)
        };
        rows.flat_map(each).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of an account, given back when it is dropped, on any thread.
#[derive(Debug)]
pub(in crate::sock) struct Share {
    account: Arc<Account>,
    user: u32,
    amounts: Amounts,
}

impl Share {
    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// Leaves a resource of the share on the account for good.
    pub(in crate::sock) fn keep(&mut self, resource: Resource) {
        self.amounts.0[resource as usize] = 0;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut accounts = self.account.lock();
        accounts.all.subtract(&self.amounts);
        if let Some(held) = accounts.users.get_mut(&self.user) {
            held.subtract(&self.amounts);
        }
    }
}

/// A share that is over a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sock) struct Refused {
    pub(in crate::sock) resource: Resource,
    /// The user; `None` if the limit is that of all.
    pub(in crate::sock) user: Option<u32>,
    requested: u64,
    held: u64,
    limit: u64,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { resource, user, requested, held, limit } = *self;
        let [of_user, of_all] = resource.options();
        write!(f, "{} beside the {held} of ", resource.of(requested))?;
        let option = match user {
            Some(user) => {
                write!(f, "other applications of user {user}: a user may have {limit} ({of_user}={limit})")?;
                of_user
            }
            None => {
                write!(f, "other applications: together they may have {limit} ({of_all}={limit})")?;
                of_all
            }
        };
        match resource {
            Resource::Memory => write!(f, "; end sessions, share less, or raise {option}= of the port"),
            _ => write!(f, "; end sessions, or raise {option}= of the port"),
        }
    }
}

//! The seccomp filters.
//!
//! ```text
//!   call ──┬─ in the list ─────────────────► allowed
//!          ├─ clone3 ──────────────────────► ENOSYS: the C library uses clone, whose flags a filter sees
//!          └─ any other ──► SIGSYS handler ─► counted, EPERM
//! ```
//!
//! A refused call fails and is counted; it does not kill. A library may try a call that it can do
//! without, on some kernel or C library that was never seen here, and a datapath that dies of it
//! loses the traffic of all its users. An application that took over a parser gains nothing from an
//! `EPERM`, and the counts in the summary tell the operator of both.

use crate::calls::{self, BASE, Call, Value};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use towpath_packet::port::Needs;
use towpath_sys::sigsys;

type Error = seccompiler::Error;
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// What becomes of a call outside of the list.
pub(crate) const REFUSED: SeccompAction =
    if sigsys::SUPPORTED { SeccompAction::Trap } else { SeccompAction::Errno(libc::EPERM as u32) };

fn condition(argument: u8, value: Value) -> Result<SeccompCondition, seccompiler::BackendError> {
    let (len, operator, value) = match value {
        Value::Is(value) => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value.into()),
        Value::Bits(mask, value) => (SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value),
        Value::OwnProcess => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, std::process::id().into()),
    };
    SeccompCondition::new(argument, len, operator, value)
}

/// The list as rules: a call without rules is allowed, one with rules if any of them matches.
fn rules(calls: impl Iterator<Item = &'static Call>) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Rules::new();
    let mut always = Vec::new();
    for call in calls {
        let entry = rules.entry(call.number).or_default();
        match call.when {
            None => always.push(call.number),
            Some((argument, values)) => {
                for &value in values {
                    entry.push(SeccompRule::new(vec![condition(argument, value)?])?);
                }
            }
        }
    }
    for number in always {
        rules.insert(number, Vec::new());
    }
    Ok(rules)
}

fn program(rules: Rules, other: SeccompAction, matching: SeccompAction) -> Result<BpfProgram, Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, other, matching, arch)?.try_into()?)
}

/// The list of `needs`, and what every datapath calls.
pub(crate) fn list(needs: &Needs) -> impl Iterator<Item = &'static Call> {
    BASE.iter().chain(needs.groups().flat_map(calls::of))
}

/// Installs the filters on all threads. Refused calls are counted from then on, where the
/// processor's registers are known.
pub(crate) fn install(needs: &Needs) -> Result<(), Error> {
    if sigsys::SUPPORTED {
        // Without the handler a refused call would kill.
        sigsys::count().map_err(Error::Prctl)?;
    }
    let mut allowed = rules(list(needs))?;
    allowed.insert(libc::SYS_clone3, Vec::new());
    let allowed = program(allowed, REFUSED, SeccompAction::Allow)?;
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let clone3 = program(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    // The second filter could not be installed after the first.
    seccompiler::apply_filter_all_threads(&clone3)?;
    seccompiler::apply_filter_all_threads(&allowed)
}

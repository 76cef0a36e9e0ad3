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
    sock_filter,
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

/// The filters, the first that is installed first. Refused calls are counted from the moment when
/// they are in force, where the processor's registers are known.
pub(crate) fn prepare(needs: &Needs) -> Result<Vec<Vec<libc::sock_filter>>, Error> {
    if sigsys::SUPPORTED {
        // Without the handler a refused call would kill.
        sigsys::count().map_err(Error::Prctl)?;
    }
    let mut allowed = rules(list(needs))?;
    allowed.insert(libc::SYS_clone3, Vec::new());
    let allowed = program(allowed, REFUSED, SeccompAction::Allow)?;
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let clone3 = program(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    let words = |program: BpfProgram| {
        let word = |word: &sock_filter| libc::sock_filter { code: word.code, jt: word.jt, jf: word.jf, k: word.k };
        program.iter().map(word).collect()
    };
    // The second refuses to install another.
    Ok([clone3, allowed].map(words).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::port::Calls;

    #[test]
    fn a_call_that_several_groups_have_is_allowed_under_the_conditions_of_each() {
        let conditions = |calls: &[Calls]| {
            let needs = Needs::none().calls(calls.iter().copied());
            rules(list(&needs)).unwrap()[&libc::SYS_ioctl].len()
        };
        let [none, tun, interface] = [&[][..], &[Calls::Tun], &[Calls::Interface]].map(conditions);
        assert!(tun > none && interface > none);
        assert_eq!(conditions(&[Calls::Tun, Calls::Interface]), tun + interface - none);
    }

    #[test]
    fn a_call_without_a_condition_is_allowed_whatever_other_groups_say_of_it() {
        let all = Needs::none().calls(Calls::ALL);
        let rules = rules(list(&all)).unwrap();
        assert!(rules[&libc::SYS_read].is_empty() && rules[&libc::SYS_lseek].is_empty());
        assert!(!rules[&libc::SYS_clone].is_empty() && !rules[&libc::SYS_socket].is_empty());
        program(rules, REFUSED, SeccompAction::Allow).unwrap();
    }

    #[test]
    fn no_group_has_a_call_that_starts_programs_reaches_other_processes_or_widens_rights() {
        // A port that connects again after its peer has ended can reach sockets of others, and no
        // port besides.
        let connects = |calls| list(&Needs::none().calls([calls])).any(|call| call.number == libc::SYS_connect);
        assert!(Calls::ALL.into_iter().all(|calls| connects(calls) == (calls == Calls::Connect)));
        let all = Needs::none().calls(Calls::ALL.into_iter().filter(|calls| *calls != Calls::Connect));
        let never = [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_connect,
            libc::SYS_unshare,
            libc::SYS_clone3,
            libc::SYS_mount,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_capset,
            libc::SYS_seccomp,
            libc::SYS_keyctl,
            libc::SYS_setresuid,
            libc::SYS_memfd_secret,
            libc::SYS_init_module,
            libc::SYS_finit_module,
        ];
        for call in list(&all) {
            assert!(!never.contains(&call.number), "{}", call.name());
        }
    }
}

//! System calls as text: the table of the manual, and names for messages.

use crate::calls::{self, BASE, Call};
use towpath_packet::port::Calls;
use towpath_sys::sigsys;

/// The calls of a group as Markdown.
fn list(calls: &[Call]) -> String {
    let one = |call: &Call| match call.text {
        "" => format!("`{}`", call.name()),
        text => format!("`{}` ({text})", call.name()),
    };
    calls.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The allowed system calls by group, as a table in Markdown: that of `docs/sandbox.md`.
pub fn group_table() -> String {
    let row = |name: &str, calls| format!("| {name} | {} |\n", list(calls));
    let groups = Calls::ALL.iter().map(|group| row(group.name(), calls::of(*group)));
    format!("| group | system calls |\n|---|---|\n{}{}", row("every datapath", BASE), groups.collect::<String>())
}

/// The system calls that were refused since the sandbox is in force, by name where it is known, and
/// how often.
pub fn refused() -> Vec<(String, u64)> {
    let name = |number: Option<i64>| match number.map(|number| (number, calls::name(number))) {
        Some((_, Some(name))) => name.to_owned(),
        Some((number, None)) => format!("system call {number}"),
        None => "system calls of another interface".to_owned(),
    };
    sigsys::refused().into_iter().map(|(number, times)| (name(number), times)).collect()
}

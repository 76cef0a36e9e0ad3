//! What of the sandbox is in force, and what this machine could enforce, for people and machines.

use crate::units::grouped;
use serde::Serialize;
use std::collections::BTreeMap;
use towpath::sandbox::{self, Enforced, Level, Machine};

/// What is in force.
#[derive(Serialize)]
pub(crate) struct Sandbox<'a> {
    level: &'static str,
    capabilities: &'a [&'static str],
    capabilities_before: u32,
    no_new_privs: bool,
    /// System calls of the seccomp list.
    system_calls: Option<usize>,
    /// Version of Landlock.
    landlock: Option<u32>,
    missing: Vec<String>,
    /// Calls that were refused.
    refused: BTreeMap<String, u64>,
}

fn name(level: Level) -> &'static str {
    match level {
        Level::Require => "require",
        Level::Prefer => "prefer",
        Level::Off => "off",
    }
}

impl<'a> Sandbox<'a> {
    pub(crate) fn new(enforced: &'a Enforced) -> Sandbox<'a> {
        Sandbox {
            level: name(enforced.level),
            capabilities: &enforced.capabilities,
            capabilities_before: enforced.capabilities_before,
            no_new_privs: enforced.no_new_privs,
            system_calls: enforced.system_calls,
            landlock: enforced.landlock,
            missing: enforced.missing().iter().map(ToString::to_string).collect(),
            refused: sandbox::refused().into_iter().collect(),
        }
    }
}

/// What is in force, in lines of the summary.
pub(crate) fn lines(enforced: &Enforced) -> impl Iterator<Item = String> {
    let state = match enforced.level {
        Level::Off => "off".to_owned(),
        Level::Prefer | Level::Require => in_force(enforced),
    };
    let refused: Vec<_> =
        sandbox::refused().iter().map(|(call, times)| format!("{call} {}", grouped(*times))).collect();
    let refused = (!refused.is_empty()).then(|| format!("refused  system calls: {}", refused.join(", ")));
    [format!("sandbox  {state}")].into_iter().chain(refused)
}

fn in_force(enforced: &Enforced) -> String {
    let kept = match (enforced.capabilities.as_slice(), enforced.capabilities_before) {
        ([], 0) => "no capabilities".to_owned(),
        ([], n) => format!("none of {n} capabilities"),
        (kept, n) => format!("{} of {n} capabilities", kept.join(" ")),
    };
    let privileges = if enforced.no_new_privs { "no_new_privs" } else { "NO no_new_privs" };
    let calls = enforced.system_calls.map_or("NO seccomp".to_owned(), |n| format!("seccomp: {n} system calls"));
    let landlock = enforced.landlock.map_or("NO landlock".to_owned(), |version| format!("landlock {version}"));
    [kept, privileges.to_owned(), calls, landlock].join("; ")
}

/// What this machine could enforce.
#[derive(Serialize)]
pub(crate) struct Possible {
    capabilities: Vec<&'static str>,
    seccomp: bool,
    landlock: Option<u32>,
    missing: Vec<String>,
}

impl Possible {
    pub(crate) fn new(machine: &Machine) -> Possible {
        Possible {
            capabilities: machine.capabilities.clone(),
            seccomp: machine.seccomp.is_ok(),
            landlock: machine.landlock.as_ref().ok().copied(),
            missing: machine.missing().iter().map(ToString::to_string).collect(),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut parts = vec!["no_new_privs".to_owned()];
        parts.extend(self.seccomp.then(|| "seccomp".to_owned()));
        parts.extend(self.landlock.map(|version| format!("landlock {version}")));
        let missing = self.missing.iter().map(|missing| format!("; {missing}"));
        format!("{}{}", parts.join(", "), missing.collect::<String>())
    }
}

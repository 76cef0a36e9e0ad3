//! The parts of a sandbox that this kernel can enforce.

use crate::names;
use std::fmt;
use std::io;
use towpath_sys::restrict;

/// A part of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Capabilities, files and new rights of all threads.
    Capabilities,
    /// The list of system calls.
    Seccomp,
    /// The rules about files, TCP, and sockets and processes outside.
    Landlock,
}

impl Part {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Part::Capabilities => "capabilities",
            Part::Seccomp => "seccomp",
            Part::Landlock => "landlock",
        }
    }
}

/// A part that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// The part.
    pub part: Part,
    /// Why it is missing.
    pub why: String,
    /// What brings it.
    pub hint: &'static str,
}

impl Missing {
    pub(crate) fn new(part: Part, why: impl fmt::Display, hint: &'static str) -> Missing {
        Missing { part, why: why.to_string(), hint }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is missing: {} (to fix it: {})", self.part.name(), self.why, self.hint)
    }
}

/// What this kernel could enforce, and what the process has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// Names of the capabilities that the process has.
    pub capabilities: Vec<&'static str>,
    /// Whether there are seccomp filters for this processor, or why not.
    pub seccomp: Result<(), String>,
    /// The version of Landlock, or why there is none.
    pub landlock: Result<u32, String>,
}

impl Machine {
    /// Asks the kernel. Nothing is changed.
    pub fn probe() -> Machine {
        let landlock = restrict::landlock_version().map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSYS) => "this kernel is built without it".to_owned(),
            Some(libc::EOPNOTSUPP) => "this kernel was booted without it".to_owned(),
            _ => error.to_string(),
        });
        let seccomp = match seccompiler::TargetArch::try_from(std::env::consts::ARCH) {
            Err(_) => Err(io::Error::other(format!("no list for {}", std::env::consts::ARCH))),
            Ok(_) => restrict::seccomp_action(crate::filter::REFUSED.into()),
        };
        Machine {
            capabilities: names(restrict::capabilities().unwrap_or(0)),
            seccomp: seccomp.map_err(|error| error.to_string()),
            landlock,
        }
    }

    /// The parts that it lacks.
    pub fn missing(&self) -> Vec<Missing> {
        let seccomp = self.seccomp.as_ref().err();
        let landlock = self.landlock.as_ref().err();
        let seccomp = seccomp.map(|why| Missing::new(Part::Seccomp, why, "a kernel with CONFIG_SECCOMP_FILTER"));
        let hint = "a kernel with CONFIG_SECURITY_LANDLOCK, and landlock among lsm= of its command line";
        let landlock = landlock.map(|why| Missing::new(Part::Landlock, why, hint));
        seccomp.into_iter().chain(landlock).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_lacks_is_named_with_the_reason_and_the_hint() {
        let old = Machine {
            capabilities: Vec::new(),
            seccomp: Err("Function not implemented".to_owned()),
            landlock: Err("this kernel is built without it".to_owned()),
        };
        let lines: Vec<_> = old.missing().iter().map(Missing::to_string).collect();
        let expected = "seccomp is missing: Function not implemented (to fix it: a kernel with CONFIG_SECCOMP_FILTER)";
        assert_eq!(lines[0], expected);
        assert!(lines[1].starts_with("landlock is missing: ") && lines[1].contains("CONFIG_SECURITY_LANDLOCK"));
        let newest = Machine { seccomp: Ok(()), landlock: Ok(7), ..old };
        assert!(newest.missing().is_empty());
    }
}

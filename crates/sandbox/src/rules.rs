//! The Landlock rule set: the paths that the ports use later, no TCP, no abstract UNIX sockets and
//! no signals to other processes. What the kernel's version of Landlock lacks is left out.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use std::os::fd::OwnedFd;
use towpath_packet::port::{Needs, PathUse};

/// The newest version whose rights are used: scopes of sockets and signals came with it.
const NEWEST: ABI = ABI::V6;

fn rights(usage: PathUse) -> BitFlags<AccessFs> {
    match usage {
        PathUse::Read => AccessFs::ReadFile.into(),
        PathUse::MakeFiles => AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::RemoveFile,
        PathUse::Remove => AccessFs::RemoveFile.into(),
        // A use that is newer than this crate gets nothing.
        _ => BitFlags::EMPTY,
    }
}

/// Makes the rule set; `None` if the kernel has no Landlock.
pub(crate) fn make(needs: &Needs) -> Result<Option<OwnedFd>, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    for (path, usage) in needs.paths() {
        // A path that is not there needs no right.
        let Ok(opened) = PathFd::new(path) else { continue };
        rules = rules.add_rule(PathBeneath::new(opened, rights(usage)))?;
    }
    Ok(rules.into())
}

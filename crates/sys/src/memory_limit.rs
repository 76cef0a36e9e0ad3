//! The limit of this process's memory: the machine's, or less by its control group.
//!
//! The hierarchies are expected at `/sys/fs/cgroup` (version 2) and `/sys/fs/cgroup/memory`
//! (version 1), where systemd and containers have them.

use std::fs;
use std::path::Path;

/// Bytes: the least of the machine's memory and the limits of the control group and its parents.
pub fn get() -> u64 {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups.lines().filter_map(group_limit).fold(machine(), u64::min)
}

/// The memory of the machine.
fn machine() -> u64 {
    // SAFETY: no pointers.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).ok().zip(u64::try_from(size).ok()).map_or(u64::MAX, |(pages, size)| pages.saturating_mul(size))
}

/// The limit by a line of `/proc/self/cgroup`: `0::/a/b`, or `4:memory:/a/b`.
fn group_limit(line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (root, file) = match controllers {
        "" if number == "0" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|one| one == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    lowest(Path::new(root), path.trim_start_matches('/'), file)
}

/// The lowest limit in the files of a group and its parents. No limit reads as `max`, or as a
/// number that is larger than any memory.
fn lowest(root: &Path, path: &str, file: &str) -> Option<u64> {
    let group = root.join(path);
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    groups.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_a_group_and_its_parents_holds() {
        let root = std::env::temp_dir().join(format!("towpath-limits-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        let write = |path: &str, text: &str| fs::write(root.join(path), text).unwrap();
        assert_eq!(lowest(&root, "a/b", "memory.max"), None);
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(lowest(&root, "a/b", "memory.max"), Some(1000));
        write("a/b/memory.max", "999\n");
        assert_eq!(lowest(&root, "a/b", "memory.max"), Some(999));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_process_may_use_no_more_than_the_machine_has() {
        assert!(get() <= machine() && get() > 1 << 20);
        for line in ["", "x", "7:pids:/", "0::", "1:cpu,cpuacct:/a"] {
            assert!(line == "0::" || group_limit(line).is_none(), "{line}");
        }
    }
}

//! A control group with a limit of memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The group; removed on drop.
pub(crate) struct Group(PathBuf);

impl Group {
    /// `None` where no such group can be made.
    pub(crate) fn new(limit: usize) -> Option<Group> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, file) =
            if v1.is_dir() { (v1, "memory.limit_in_bytes") } else { (Path::new("/sys/fs/cgroup"), "memory.max") };
        let group = root.join(format!("towpath-test-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        let group = Group(group);
        std::fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }

    /// Runs a program in the group.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs")).arg(program);
        command
    }

    /// Bytes that were used at most; `None` if the kernel does not say.
    pub(crate) fn peak(&self) -> Option<usize> {
        let read = |file: &str| std::fs::read_to_string(self.0.join(file)).ok()?.trim().parse().ok();
        read("memory.max_usage_in_bytes").or_else(|| read("memory.peak"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has ended may still be on its way out.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

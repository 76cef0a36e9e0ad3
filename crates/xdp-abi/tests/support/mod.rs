//! C programs for tests: compiled here, and run without any privilege.
//!
//! ```text
//!   Linkage::Ours      cc … -ltowpath_xdp                            linked with the library
//!   Linkage::Libxdp    cc … -lxdp, then LD_PRELOAD=libtowpath_xdp.so moved to towpath at its start
//! ```
//!
//! [`Programs`] is a directory that any user may read, with the library and the compiled programs;
//! it is deleted on drop. A crate whose tests use this has a dev-dependency on `towpath-xdp-abi`,
//! so that cargo builds the library beside the tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use towpath_testing::{Need, needs, skip};

/// How a program gets the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// Linked with this library.
    Ours,
    /// Linked with libxdp; this library is preloaded.
    Libxdp,
}

/// Whether the test `name` can compile programs here and run them without privilege. If not, it is
/// skipped.
#[must_use]
pub(crate) fn can_compile(name: &str) -> bool {
    let headers = Path::new("/usr/include/xdp/xsk.h").exists();
    needs(name, &[Need::Program("cc"), Need::Program("setpriv")]) && is_there(name, "libxdp-dev", headers)
}

/// The same for other requirements of a test.
#[must_use]
pub(crate) fn is_there(name: &str, what: &str, there: bool) -> bool {
    if !there {
        skip(name, format!("no {what}"));
    }
    there
}

/// Compiled programs, and sockets for them.
pub(crate) struct Programs(tempfile::TempDir);

impl Programs {
    pub(crate) fn new() -> Programs {
        let dir = tempfile::tempdir().expect("a directory for temporary files");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("a directory of ours");
        let here = std::env::current_exe().expect("a path of this program");
        let name = "libtowpath_xdp.so";
        let library = here.with_file_name(name);
        std::fs::copy(&library, dir.path().join(name)).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
        Programs(dir)
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles `tests/c/NAME.c`.
    pub(crate) fn compile(&self, name: &str, link: Linkage) -> Program {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xdp-abi/tests/c").join(name).with_extension("c");
        let binary = self.path(&format!("{name}-{link:?}"));
        let directory = self.0.path().display();
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]).arg(&source).arg("-o").arg(&binary);
        match link {
            Linkage::Ours => {
                cc.args([format!("-L{directory}"), format!("-Wl,-rpath,{directory}")]).arg("-ltowpath_xdp")
            }
            Linkage::Libxdp => cc.arg("-lxdp"),
        };
        let output = cc.output().expect("cc");
        assert!(output.status.success(), "{cc:?}\n{}", String::from_utf8_lossy(&output.stderr));
        Program { binary, preload: (link == Linkage::Libxdp).then(|| self.library()) }
    }

    /// The library.
    pub(crate) fn library(&self) -> PathBuf {
        self.path("libtowpath_xdp.so")
    }
}

/// A compiled program.
pub(crate) struct Program {
    binary: PathBuf,
    preload: Option<PathBuf>,
}

impl Program {
    /// The command for the program with `TOWPATH_XDP` set; it runs as an unprivileged user.
    pub(crate) fn command(&self, sockets: &str, args: &[&str]) -> Command {
        let mut command = unprivileged(&self.binary);
        command.args(args).env("TOWPATH_XDP", sockets).stdin(Stdio::null());
        self.preloaded(command)
    }

    /// The command for the program as the user that the test has.
    pub(crate) fn privileged(&self) -> Command {
        self.preloaded(Command::new(&self.binary))
    }

    fn preloaded(&self, mut command: Command) -> Command {
        // Cargo names its own directories there, which may have another build of the library.
        command.env_remove("LD_LIBRARY_PATH");
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}

/// A command that runs as an unprivileged user.
pub(crate) fn unprivileged(program: &Path) -> Command {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--"]).arg(program);
    command
}

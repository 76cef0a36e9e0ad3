//! Files of a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies a program, for all to run, by another process: a child of a parallel test would inherit
/// the descriptor that this one writes by, and a program that is open for writing can't be run.
pub(crate) fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    super::succeed(Command::new("install").args(["-m", "755"]).arg(from.as_ref()).arg(to.as_ref()));
}

/// A directory for the files of one test.
pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

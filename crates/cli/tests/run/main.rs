//! `towpath run`: files, their units, and reloads.
//!
//! ```text
//!   check      what is wrong with a file
//!   log        what ports do is in the log
//!   reload     what a reload changes, and that it leaves nothing behind
//!   tables     addresses, routes and neighbours are shown
//!   converge   two instances with bridges and mirrored routers, beside routing daemons
//! ```

mod check;
mod converge;
mod log;
mod reload;
#[path = "../support/mod.rs"]
mod support;
mod tables;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use support::Towpath;

/// A directory with the file of an instance and its control socket.
struct Instance {
    directory: tempfile::TempDir,
}

impl Instance {
    fn new() -> Instance {
        Instance { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the file, with the control socket.
    fn write(&self, units: &str) {
        let text = format!("control = \"{}\"\nlog = \"debug\"\n{units}", self.path("control").display());
        std::fs::write(self.path("file.toml"), text).unwrap();
    }

    fn start(&self, units: &str) -> Towpath {
        self.write(units);
        Towpath::start(&["run", self.path("file.toml").to_str().unwrap()])
    }

    /// Asks for a reload; returns what changed and what failed, or the error.
    #[track_caller]
    fn ask(&self) -> Result<(Vec<String>, Vec<String>), String> {
        let mut stream = UnixStream::connect(self.path("control")).unwrap();
        stream.write_all(b"\"reload\"\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&line).unwrap();
        let list = |of: &serde_json::Value| {
            of.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        match answer.get("reloaded") {
            Some(done) => Ok((list(&done["changes"]), list(&done["failures"]))),
            None => Err(answer["error"].as_str().unwrap().to_owned()),
        }
    }

    /// Reloads other units; returns what changed.
    #[track_caller]
    fn reload(&self, units: &str) -> Vec<String> {
        self.write(units);
        let (changes, failures) = self.ask().unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        changes
    }

    fn state(&self) -> serde_json::Value {
        let state = support::datapath::run(&["state", "--json", "--control", self.path("control").to_str().unwrap()]);
        serde_json::from_str(&state.code(0).stdout).unwrap()
    }
}

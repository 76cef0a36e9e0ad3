//! `towpath top` in terminals of different widths, by tmux.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::datapath::Towpath;
use support::{Need, needs, succeed, until};

/// Terminals of a tmux server of their own.
struct Terminals {
    dir: tempfile::TempDir,
    _towpath: Towpath,
}

impl Terminals {
    /// Terminals beside a generator that runs, with its control socket; `None` without tmux.
    fn new(test: &str) -> Option<Terminals> {
        if !needs(test, &[Need::Program("tmux")]) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let control = format!("--control={}", dir.path().join("control").display());
        let towpath = Towpath::start(&["fwd", "gen:rate=2k,flows=20", "null:", "--oneway", &control]);
        Some(Terminals { dir, _towpath: towpath })
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    fn tmux(&self, args: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        // Names and lines are UTF-8 whatever the environment is.
        tmux.args(["-u", "-f", "/dev/null", "-S"]).arg(self.dir.path().join("tmux")).args(args);
        tmux.env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        tmux
    }

    /// Starts `towpath top` in a terminal of this name.
    fn top(&self, name: &str, width: &str, height: &str) {
        let command = format!("exec {} top --interval 200ms --control {}", program(), self.control().display());
        succeed(&mut self.tmux(&["new-session", "-d", "-s", name, "-x", width, "-y", height, &command]));
    }

    fn picture(&self, name: &str) -> String {
        succeed(&mut self.tmux(&["capture-pane", "-p", "-t", name]))
    }

    fn shows(&self, name: &str, part: &str) {
        until(&format!("{part} at {name}"), || self.picture(name).contains(part));
    }

    fn press(&self, name: &str, key: &str) {
        succeed(&mut self.tmux(&["send-keys", "-t", name, key]));
    }

    fn has(&self, name: &str) -> bool {
        support::run(&mut self.tmux(&["has-session", "-t", name])).status.success()
    }
}

impl Drop for Terminals {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

fn program() -> &'static str {
    env!("CARGO_BIN_EXE_towpath")
}

fn is_running(pid: &str) -> bool {
    Path::new("/proc").join(pid).join("exe").read_link().is_ok_and(|exe| exe == Path::new(program()))
}

#[test]
fn the_picture_fits_its_terminal_and_keys_change_it() {
    let Some(terminals) = Terminals::new("the_picture_fits_its_terminal_and_keys_change_it") else { return };
    for (name, width, height) in [("narrow", "40", "12"), ("usual", "80", "24"), ("wide", "200", "50")] {
        terminals.top(name, width, height);
        terminals.shows(name, "gen:");
        terminals.shows(name, "q quit");
        // The views by their numbers; flows are counted once the document is read.
        terminals.press(name, "5");
        terminals.shows(name, "198.");
        terminals.press(name, "2");
        terminals.shows(name, "null:");
        terminals.press(name, "/");
        terminals.press(name, "gen");
        terminals.press(name, "Enter");
        until("the other port is filtered", || !terminals.picture(name).contains("null:"));
        terminals.press(name, "q");
        until("it ends", || !terminals.has(name));
    }
}

#[test]
fn it_ends_with_its_terminal() {
    let Some(terminals) = Terminals::new("it_ends_with_its_terminal") else { return };
    terminals.top("one", "80", "24");
    terminals.shows("one", "gen:");
    let pid = succeed(&mut terminals.tmux(&["list-panes", "-t", "one", "-F", "#{pane_pid}"])).trim().to_owned();
    assert!(is_running(&pid), "{pid}");
    succeed(&mut terminals.tmux(&["kill-server"]));
    until("it ends with its terminal", || !is_running(&pid));
}

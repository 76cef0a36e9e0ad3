//! What is seen of tests that can't run: this program starts itself as a run of cargo would, with
//! the output of its tests captured.

use std::process::{Command, Output};
use towpath_testing::{Need, needs};

/// The environment variable that makes the tests `part_…` of this program need more than there is.
const CAN_NOT: &str = "TOWPATH_TEST_CAN_NOT";

fn part(name: &str) {
    if std::env::var_os(CAN_NOT).is_some() && needs(name, &[Need::Program("no-such-program")]) {
        panic!("there is such a program");
    }
}

#[test]
fn part_one() {
    part("part_one");
}

#[test]
fn part_two() {
    part("part_two");
}

/// A program of tests that skips what matches `filter`; the list of the run is at `list`.
fn program(filter: &str, list: &std::path::Path, require: &str) -> Output {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.arg(filter).env(CAN_NOT, "1").env("TOWPATH_SKIPPED", list).env("TOWPATH_REQUIRE", require);
    program.env("CARGO", "cargo").output().expect("this program")
}

#[test]
fn every_skipped_test_has_a_line_and_the_run_a_count_although_libtest_captures() {
    let list = std::env::temp_dir().join(format!("towpath-skipped-{}", std::process::id()));
    std::fs::write(&list, "# cargo 1, started at 1\nskipped: something in a former run\n").expect("a file");
    // Two programs of the same run, one after the other.
    for (filter, here, all) in [("part_", 2, 2), ("part_two", 1, 3)] {
        let output = program(filter, &list, "");
        let text = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{text}");
        let tests: Vec<&str> = text.lines().filter(|line| line.starts_with("skipped: part_")).collect();
        assert_eq!(tests.len(), here, "{text}");
        assert!(tests.iter().all(|line| line.ends_with("no-such-program is not installed, or not in PATH")), "{text}");
        let count = format!("skipped tests: {all} in this run until now, {here} of them in this program; ");
        assert!(text.lines().last().expect("a line").starts_with(&count), "{text}");
    }
    let kept = std::fs::read_to_string(&list).expect("the list");
    std::fs::remove_file(&list).expect("the list");
    let lines: Vec<&str> = kept.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with(&format!("# cargo {},", std::process::id())), "{kept}");
}

#[test]
fn where_everything_is_required_a_test_that_can_not_run_fails() {
    let output = program("part_one", &std::env::temp_dir().join("towpath-skipped-none"), "all");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(!output.status.success() && text.contains("part_one can't run: no-such-program"), "{text}");
}

use std::process::Command;

/// The variable that marks the process of a single test.
const ALONE: &str = "TOWPATH_TEST_ALONE";

/// For a test that changes its process for good, or all of its threads. Runs the test of this name,
/// with its modules, in a process of its own, which must succeed: true there, where the test goes
/// on, and false in the process of all tests, where it is done.
pub fn alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|alone| alone == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, test).output().expect("it starts");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}: {stdout}{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "no test {test}: {stdout}");
    false
}

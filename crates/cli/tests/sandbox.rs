//! The sandbox of the command: what is in force, on all threads, on this kernel and on older ones;
//! what ports keep because they use it later.

mod support;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::datapath::{command, run};
use support::files::copy_program;
use support::{Namespace, Need, Towpath, needs, until};

const TRIAL: [&str; 5] = ["gen", "null:", "--count", "1000", "--json"];

/// The command as a user has it, whatever the environment of the tests says.
fn plain(args: &[&str]) -> Command {
    let mut command = command(args);
    command.env_remove("TOWPATH_SANDBOX");
    command
}

fn version() -> Option<u32> {
    towpath::sandbox::Machine::probe().landlock.ok()
}

/// The fields of each thread's `/proc/PID/task/TID/status`.
fn threads(pid: u32) -> Vec<BTreeMap<String, String>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    let fields = |text: String| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect()
    };
    texts.map(fields).collect()
}

#[test]
fn every_thread_of_a_running_datapath_has_no_capability_no_new_rights_and_a_list_of_calls() {
    let directory = tempfile::tempdir().unwrap();
    let sock = format!("sock:{}", directory.path().join("app").display());
    let towpath = Towpath::start_by(&mut plain(&["fwd", &sock, "e1000e:model"]));
    // A thread takes its name when it first runs.
    until("all threads have their names", || {
        let threads = threads(towpath.pid());
        let has = |name: &&str| threads.iter().any(|thread| thread["Name"] == **name);
        ["towpath", "towpath-sock", "e1000e model", "towpath-0"].iter().all(has)
    });
    for thread in &threads(towpath.pid()) {
        let of = |keys: &[&str]| keys.iter().map(|key| thread[*key].clone()).collect::<Vec<_>>();
        assert_eq!(of(&["CapInh", "CapPrm", "CapEff", "CapAmb"]), ["0000000000000000"; 4], "{thread:?}");
        assert_eq!(of(&["NoNewPrivs", "Seccomp"]), ["1", "2"], "{thread:?}");
    }
    let summary = towpath.stop().code(0).summary();
    assert_eq!(summary.sandbox.level, "prefer");
    assert_eq!((summary.sandbox.capabilities.len(), summary.sandbox.landlock), (0, version()));
    assert!(summary.sandbox.no_new_privs && summary.sandbox.system_calls > Some(50), "{:?}", summary.sandbox);
    assert!(!directory.path().join("app").exists(), "the socket's file is removed");
}

#[test]
fn the_summary_and_the_probe_show_it_and_off_changes_nothing() {
    let text = run(&["gen", "null:", "--count", "10", "--quiet"]).code(0).stdout;
    assert!(text.contains("\nsandbox  ") && text.contains("; no_new_privs; seccomp: "), "{text}");
    let probed = run(&["probe", "pcap:trace.pcap", "--json"]);
    assert!(probed.stdout.starts_with(r#"{"type":"error""#), "a file goes one way: {probed:#?}");
    let probed = run(&["probe", "gen:"]).code(0).stdout;
    assert!(probed.contains("sandbox       no_new_privs, seccomp"), "{probed}");
    let mut off = command(&TRIAL);
    off.env("TOWPATH_SANDBOX", "off");
    let off = support::run(&mut off);
    let text = String::from_utf8_lossy(&off.stdout).into_owned();
    assert!(text.contains(r#""sandbox":{"level":"off""#) && text.contains(r#""system_calls":null"#), "{text}");
}

#[test]
fn an_ordinary_user_gets_all_parts_too() {
    if !needs("an_ordinary_user_gets_all_parts_too", &[Need::Root]) {
        return;
    }
    // The program may lie in a directory that other users can't enter.
    let copy = tempfile::tempdir().unwrap();
    std::fs::set_permissions(copy.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = copy.path().join("towpath");
    copy_program(env!("CARGO_BIN_EXE_towpath"), &program);
    let output = Command::new(program)
        .args(TRIAL)
        .env_remove("TOWPATH_SANDBOX")
        .uid(65534)
        .gid(65534)
        .current_dir("/")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for part in [r#""capabilities":[],"capabilities_before":0"#, r#""no_new_privs":true"#, r#""refused":{}"#] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains(r#""system_calls":null"#), "{text}");
}

/// Runs the command as a kernel without Landlock would: an inherited filter answers `ENOSYS`.
fn without_landlock(args: &[&str]) -> (Option<i32>, String, String) {
    let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
    // Filters are for good, so a thread of its own starts the command and ends.
    let old = std::thread::spawn(move || {
        let rules = [(libc::SYS_landlock_create_ruleset, Vec::new())].into_iter().collect();
        let missing = SeccompAction::Errno(libc::ENOSYS as u32);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, arch).unwrap();
        let program: BpfProgram = filter.try_into().unwrap();
        seccompiler::apply_filter(&program).unwrap();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        plain(&args).output().unwrap()
    });
    let output = old.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn on_a_kernel_without_landlock_prefer_goes_on_and_says_so_and_require_moves_nothing() {
    let (code, stdout, stderr) = without_landlock(&TRIAL);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("note: sandbox: landlock is missing: this kernel is built without it"), "{stderr}");
    assert!(stdout.contains(r#""landlock":null,"missing":["landlock is missing"#), "{stdout}");
    assert!(!stdout.contains(r#""system_calls":null"#), "{stdout}");
    let (code, stdout, stderr) = without_landlock(&[&TRIAL[..], &["--sandbox", "require"]].concat());
    let is_error = stdout.lines().count() == 1 && stdout.starts_with(r#"{"type":"error""#);
    assert!(code == Some(2) && is_error, "{stdout}{stderr}");
    for part in ["--sandbox=require", "landlock is missing", "CONFIG_SECURITY_LANDLOCK", "sandbox=prefer"] {
        assert!(stderr.contains(part), "{stderr}");
    }
    let (_, stdout, _) = without_landlock(&["probe", "gen:"]);
    assert!(stdout.contains("no_new_privs, seccomp; landlock is missing"), "{stdout}");
}

#[test]
fn a_recording_goes_on_in_new_files_and_removes_old_ones_also_in_the_directory_of_another_user() {
    let directory = tempfile::tempdir().unwrap();
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if is_root {
        // Only cap_dac_override writes here.
        chown(directory.path(), Some(65534), Some(65534)).unwrap();
    }
    let file = directory.path().join("trace.pcap");
    let options = ["--with", "rotate-size=100k,files=2", "--json", "--sandbox", "prefer"];
    let args = [&["record", "gen:size=500,count=2000", file.to_str().unwrap()][..], &options].concat();
    let finished = run(&args).code(0);
    let summary = finished.summary();
    summary.is_clean();
    let kept: &[&str] = if is_root { &["cap_dac_override"] } else { &[] };
    assert_eq!(summary.sandbox.capabilities, kept);
    let mut files: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files[0].to_str() > Some("trace-00005.pcap"), "{files:?}");
}

#[test]
fn the_control_socket_answers_in_the_sandbox_and_ends_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let path = control.to_str().unwrap();
    let towpath = Towpath::start(&["fwd", "gen:rate=1k", "e1000e:model", "--control", path]);
    let answer = run(&["set", "--control", path, "e1000e:model", "copybreak=256"]).code(0).stdout;
    assert!(answer.contains("copybreak=256"), "{answer}");
    assert!(towpath.stop().code(0).summary().sandbox.refused.is_empty());
    assert!(!Path::new(path).exists());
}

#[test]
fn an_af_xdp_port_keeps_what_a_reopened_queue_takes_and_a_tap_keeps_nothing() {
    let name = "an_af_xdp_port_keeps_what_a_reopened_queue_takes_and_a_tap_keeps_nothing";
    if !needs(name, &[Need::Root, Need::Tun, Need::Program("ip")]) {
        return;
    }
    let namespace = Namespace::new("rights");
    namespace.ip("link add v0 type veth peer name v1");
    namespace.ip("link set v0 up");
    namespace.ip("link set v1 up");
    let program = env!("CARGO_BIN_EXE_towpath");
    let of = |port: &str| {
        let mut inside = namespace.command(program, &format!("fwd {port} null: --oneway"));
        let summary = Towpath::start_by(inside.stdin(Stdio::null())).stop().code(0).summary();
        summary.sandbox.capabilities
    };
    assert_eq!(of("xdp:v0"), ["cap_net_admin", "cap_net_raw", "cap_ipc_lock"]);
    assert_eq!(of("tap:t0"), [""; 0]);
    assert_eq!(of("packet:v0"), [""; 0]);
    until("the namespace is empty of taps", || !namespace.ip("link show").contains("t0:"));
}

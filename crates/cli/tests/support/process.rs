//! What a process and its children use, by `/proc`.

use std::fs::{read_dir, read_to_string};
use std::time::Duration;

/// The processes: one, and all that it started.
fn tree(pid: u32) -> Vec<u32> {
    let tasks = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.flat_map(|task| {
        let list = read_to_string(task.path().join("children")).unwrap_or_default();
        list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    std::iter::once(pid).chain(children.flat_map(tree)).collect()
}

/// Nanoseconds of processor time, and sleeps, of all threads that run.
pub(crate) fn work(pid: u32) -> (u64, u64) {
    let tasks = tree(pid).into_iter().flat_map(|pid| read_dir(format!("/proc/{pid}/task")).into_iter().flatten());
    let of = |task: std::fs::DirEntry| {
        let read = |file| read_to_string(task.path().join(file)).unwrap_or_default();
        let ns = read("schedstat").split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        (ns, field(&read("status"), "voluntary_ctxt_switches:"))
    };
    tasks.flatten().map(of).fold((0, 0), |(ns, sleeps), (a, b)| (ns + a, sleeps + b))
}

/// Whether a process sleeps now and then, and does nothing else, for two seconds. What is polled
/// sleeps a thousand times a second, or never.
pub(crate) fn is_quiet(pid: u32) -> bool {
    let (ns, slept) = work(pid);
    std::thread::sleep(Duration::from_secs(2));
    let (ns, slept) = (work(pid).0.saturating_sub(ns), work(pid).1.saturating_sub(slept));
    println!("{slept} sleeps, {} ms of processor time in 2 s", ns / 1_000_000);
    (1..=400).contains(&slept) && ns <= 200_000_000
}

/// KiB of memory: now, and at most so far, of the process alone.
pub(crate) fn memory(pid: u32) -> (u64, u64) {
    let status = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    (field(&status, "VmRSS:"), field(&status, "VmHWM:"))
}

/// Open descriptors, with those of its children.
pub(crate) fn files(pid: u32) -> usize {
    tree(pid).into_iter().map(|pid| read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)).sum()
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

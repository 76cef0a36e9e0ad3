//! The file of an application socket, while another user replaces everything that can be replaced.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};
use towpath_ports::sock::{Config, open};
use towpath_testing::{Need, needs};

const OTHER: u32 = 65534;
const STARTS: usize = 200;

/// Sets the flag when it is dropped: the scope joins threads that nothing else stops.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Makes the calling thread one of another user, who has no capability.
fn become_other() {
    // SAFETY: the system calls, unlike the functions of the C library, change this thread alone.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, OTHER, OTHER, OTHER), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER), 0);
    }
}

/// Replaces what is in a directory by symbolic links: the socket's path, and whatever lies beside
/// it.
fn replace_all(dir: &Path, target: &Path) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let away = dir.join("away");
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_dir { std::fs::rename(entry.path(), away) } else { std::fs::remove_file(entry.path()) };
        let _ = symlink(target, entry.path());
    }
    let _ = std::fs::remove_file(dir.join("s"));
    let _ = symlink(target, dir.join("s"));
    let _ = std::fs::remove_file(dir.join("s"));
}

/// A directory of that mode and owner, and a file of root beside it.
fn place(mode: u32, owner: u32) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let outer = tempfile::tempdir().unwrap();
    std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (dir, secret) = (outer.path().join("run"), outer.path().join("secret"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(&dir, Some(owner), Some(owner)).unwrap();
    std::fs::write(&secret, "nobody else reads this").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    (outer, dir, secret)
}

/// Opens and ends the port while another user replaces its files, in a directory of that mode and
/// owner, until each has done so often, and some ports have opened.
fn open_and_replace(mode: u32, owner: u32) {
    let (_outer, dir, secret) = place(mode, owner);
    let mut config = Config::new(dir.join("s"));
    (config.mode, config.uid, config.gid) = (0o666, Some(0), Some(7));
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            become_other();
            while !over.load(Relaxed) {
                replace_all(&dir, &secret);
                rounds.fetch_add(1, Relaxed);
            }
        });
        let (begin, mut starts, mut opened) = (Instant::now(), 0, 0);
        while starts < STARTS || rounds.load(Relaxed) < STARTS || opened == 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{starts} starts, {opened} ports");
            opened += usize::from(open(config.clone()).is_ok());
            starts += 1;
            let file = std::fs::metadata(&secret).unwrap();
            assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o600, 0, 0), "the file of root");
        }
    });
}

#[test]
fn no_file_that_another_user_puts_in_place_of_the_socket_gets_its_mode_or_owner() {
    if !needs("no_file_that_another_user_puts_in_place_of_the_socket_gets_its_mode_or_owner", &[Need::Root]) {
        return;
    }
    // The other user's own directory, and one of all users.
    open_and_replace(0o755, OTHER);
    open_and_replace(0o1777, 0);
}

#[test]
fn a_directory_in_which_another_user_could_replace_the_socket_is_refused_with_a_hint() {
    if !needs("a_directory_in_which_another_user_could_replace_the_socket_is_refused_with_a_hint", &[Need::Root]) {
        return;
    }
    let (_outer, dir, _) = place(0o777, 0);
    let error = open(Config::new(dir.join("s"))).unwrap_err().to_string();
    let dir = dir.canonicalize().unwrap();
    let parts =
        [format!("{} has mode 777", dir.display()), format!("(chmod go-w {0}, or chmod +t {0})", dir.display())];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn the_socket_has_its_mode_and_owner_from_the_first_moment() {
    if !needs("the_socket_has_its_mode_and_owner_from_the_first_moment", &[Need::Root]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path().join("s"));
    (config.mode, config.uid, config.gid) = (0o626, Some(17), Some(18));
    let (over, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        let watcher = scope.spawn(|| {
            while !over.load(Relaxed) {
                let Ok(file) = std::fs::symlink_metadata(&config.path) else { continue };
                assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o626, 17, 18));
                seen.fetch_add(1, Relaxed);
            }
        });
        let mut starts = 0;
        while starts < STARTS || (seen.load(Relaxed) == 0 && !watcher.is_finished()) {
            drop(open(config.clone()).unwrap());
            starts += 1;
        }
    });
}

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

const ACCESS: Access = Access { mode: 0o640, uid: None, gid: None };

/// A directory, removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        let dir = std::env::temp_dir().join(format!("towpath-unix-socket-{:016x}", random().unwrap()));
        std::fs::create_dir(&dir).unwrap();
        chmod(&dir, 0o755);
        Dir(dir)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in it, in order.
    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn listen(path: &Path) -> Result<Listener, ListenError> {
    Listener::new(path, Kind::Records, ACCESS)
}

/// A socket's file that nothing listens at.
fn abandon(path: &Path, kind: Kind) {
    let socket = socket(kind, 0).unwrap();
    with_address(libc::bind, &socket, &address(path).unwrap()).unwrap();
}

#[test]
fn the_file_has_exactly_the_mode_that_was_asked_for_and_is_gone_with_the_listener() {
    let dir = Dir::new();
    // More than a umask of 022 would leave.
    for mode in [0o600, 0o640, 0o666, 0o777] {
        let listener = Listener::new(&dir.at("s"), Kind::Stream, Access { mode, ..ACCESS }).unwrap();
        assert_eq!(std::fs::metadata(dir.at("s")).unwrap().mode() & 0o7777, mode);
        assert_eq!(dir.names(), ["s"], "nothing else stays");
        drop(std::os::unix::net::UnixStream::connect(dir.at("s")).unwrap());
        accept(listener.as_fd()).unwrap();
        drop(listener);
        assert!(dir.names().is_empty());
    }
}

#[test]
fn the_owner_is_the_one_that_was_asked_for() {
    // SAFETY: it takes no argument, and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let dir = Dir::new();
    let _listener = Listener::new(&dir.at("s"), Kind::Records, Access { uid: Some(17), gid: Some(18), ..ACCESS });
    let file = std::fs::metadata(dir.at("s")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (17, 18, 0o640));
}

#[test]
fn an_abandoned_socket_is_replaced_and_no_other_file_is() {
    let dir = Dir::new();
    for kind in [Kind::Records, Kind::Stream] {
        abandon(&dir.at("a"), kind);
        let first = Listener::new(&dir.at("a"), Kind::Records, ACCESS).unwrap();
        assert_eq!(
            (dir.names(), listen(&dir.at("a")).unwrap_err().source.kind()),
            (vec!["a".into()], io::ErrorKind::AddrInUse)
        );
        drop(connect(&dir.at("a"), Kind::Records, None).unwrap());
        drop(first);
    }
    std::fs::write(dir.at("file"), "x").unwrap();
    std::fs::create_dir(dir.at("directory")).unwrap();
    abandon(&dir.at("old"), Kind::Stream);
    symlink(dir.at("old"), dir.at("link")).unwrap();
    symlink(dir.at("nothing"), dir.at("dangling")).unwrap();
    let before = dir.names();
    for name in ["file", "directory", "link", "dangling"] {
        let error = listen(&dir.at(name)).unwrap_err();
        assert!(error.source.kind() == io::ErrorKind::AddrInUse && error.hint.is_some(), "{name}: {error}");
        assert_eq!(dir.names(), before, "{name}");
    }
    // A socket of the other kind that something listens at.
    let _stream = std::os::unix::net::UnixListener::bind(dir.at("stream")).unwrap();
    assert!(listen(&dir.at("stream")).is_err());
}

#[test]
fn a_file_that_has_taken_the_path_meanwhile_stays() {
    let dir = Dir::new();
    let listener = listen(&dir.at("s")).unwrap();
    std::fs::remove_file(dir.at("s")).unwrap();
    std::fs::write(dir.at("s"), "another").unwrap();
    drop(listener);
    assert_eq!(std::fs::read(dir.at("s")).unwrap(), b"another");
}

#[test]
fn a_file_that_takes_the_place_of_an_abandoned_socket_meanwhile_stays() {
    let dir = Dir::new();
    std::fs::write(dir.at("file"), "another").unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swaps = scope.spawn(|| {
            // An abandoned socket is at the path, then the file, then nothing.
            while !over.load(Relaxed) {
                abandon(&dir.at("new"), Kind::Records);
                std::fs::rename(dir.at("new"), dir.at("s")).unwrap();
                std::fs::rename(dir.at("file"), dir.at("s")).unwrap();
                // It may have been taken, and be on its way back.
                let begin = Instant::now();
                let is_there = || std::fs::read(dir.at("s")).is_ok_and(|bytes| bytes == b"another");
                while !is_there() || std::fs::rename(dir.at("s"), dir.at("file")).is_err() {
                    assert!(begin.elapsed() < Duration::from_secs(60), "the file is gone");
                }
            }
        });
        let (parent, name) = (open_at(None, &c_path(&dir.0).unwrap(), libc::O_DIRECTORY).unwrap(), c"s".to_owned());
        let (mut removed, end) = (0, Instant::now() + Duration::from_secs(60));
        while removed < 50 && !swaps.is_finished() && Instant::now() < end {
            removed += usize::from(Staging::new(&parent, &name).unwrap().remove_abandoned(Kind::Records));
        }
        over.store(true, Relaxed);
        swaps.join().unwrap();
        assert_eq!(removed, 50);
    });
    assert_eq!(std::fs::read(dir.at("file")).unwrap(), b"another");
}

#[test]
fn the_file_is_removed_from_its_directory_even_if_that_was_renamed() {
    let dir = Dir::new();
    std::fs::create_dir(dir.at("a")).unwrap();
    let listener = listen(&dir.at("a/s")).unwrap();
    std::fs::rename(dir.at("a"), dir.at("b")).unwrap();
    std::fs::create_dir(dir.at("a")).unwrap();
    std::fs::write(dir.at("a/s"), "another").unwrap();
    drop(listener);
    assert!(dir.at("a/s").exists() && !dir.at("b/s").exists());
}

#[test]
fn a_directory_that_others_can_write_is_refused_and_so_is_one_inside_of_it() {
    let dir = Dir::new();
    std::fs::create_dir(dir.at("in")).unwrap();
    std::fs::create_dir(dir.at("in/side")).unwrap();
    chmod(&dir.at("in/side"), 0o755);
    for (mode, fine) in [(0o777, false), (0o775, false), (0o772, false), (0o1777, true), (0o1770, true), (0o755, true)]
    {
        chmod(&dir.at("in"), mode);
        for name in ["in/s", "in/side/s"] {
            let listener = listen(&dir.at(name));
            assert_eq!(listener.is_ok(), fine, "{mode:o} {name}");
            let Err(error) = listener else { continue };
            let (text, place) = (error.to_string(), dir.at("in").canonicalize().unwrap());
            assert!(text.contains(&format!("{} has mode {mode:o}", place.display())), "{text}");
            assert!(text.contains(&format!("chmod +t {}", place.display())), "{text}");
        }
    }
}

#[test]
fn a_path_that_clients_could_not_name_is_refused() {
    let dir = Dir::new();
    for path in [dir.at(&"x".repeat(108)), dir.at(".."), PathBuf::from("/"), PathBuf::new()] {
        assert_eq!(listen(&path).unwrap_err().source.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
    }
    // The longest one.
    let rest = 107 - dir.0.as_os_str().len() - 1;
    let listener = listen(&dir.at(&"y".repeat(rest))).unwrap();
    drop(connect(&dir.at(&"y".repeat(rest)), Kind::Records, None).unwrap());
    drop(listener);
    assert!(listen(&dir.at(&"y".repeat(rest + 1))).is_err());
}

extern "C" fn ignore(_signal: libc::c_int) {}

#[test]
fn a_connection_waits_for_room_in_the_queue_despite_signals_and_no_longer_than_its_deadline() {
    // SAFETY: the handler does nothing, and nothing else uses this signal. Without SA_RESTART, it
    // interrupts calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let dir = Dir::new();
    let path = dir.at("s");
    let listener = listen(&path).unwrap();
    let soon = || Some(Instant::now() + Duration::from_millis(20));
    let mut queued = Vec::new();
    let error = loop {
        match connect(&path, Kind::Records, soon()) {
            Ok(connection) => queued.push(connection),
            Err(error) => break error,
        }
        assert!(queued.len() < 1000, "the queue has no end");
    };
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let client = {
        let path = path.clone();
        std::thread::spawn(move || connect(&path, Kind::Records, Some(Instant::now() + Duration::from_secs(60))))
    };
    for _ in 0..50 {
        // SAFETY: the thread has not been joined, so its handle is valid.
        unsafe { libc::pthread_kill(client.as_pthread_t(), libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!client.is_finished(), "it waits");
    while accept(listener.as_fd()).is_ok() {}
    client.join().unwrap().unwrap();
}

//! An application whose calls are interrupted by a timer all the time.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use towpath_client::{Config, Frame, Socket, Umem};
use towpath_packet::port::{Port, Queues, RxQueue, Start, TxQueue};
use towpath_packet::{Backing, Batch, Offloads, Pool, PoolConfig};
use towpath_ports::sock;

/// Sets the flag when it is dropped: the scope joins a thread that nothing else stops.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

extern "C" fn ignore(_signal: libc::c_int) {}

/// Lets this thread receive the timer's signals, or not.
fn set_blocked(blocked: bool) {
    // SAFETY: the set lives across the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGALRM);
        let how = if blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
    }
}

/// Interrupts the calls of the threads that don't block the signal, at this interval; zero for no
/// more.
fn set_timer(interval: Duration) {
    let time = libc::timeval { tv_sec: 0, tv_usec: interval.subsec_micros().into() };
    // SAFETY: the handler does nothing; without SA_RESTART, the signal interrupts calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        let timer = libc::itimerval { it_interval: time, it_value: time };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()), 0);
    }
}

/// One thread is interrupted: that of the application.
#[test]
fn a_timer_interrupts_neither_connections_nor_waits() {
    set_blocked(true);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let port = sock::open(sock::Config::new(&path)).unwrap();
    let pool = Pool::new(PoolConfig::default().capacity(64).backing(Backing::Anonymous)).unwrap();
    let Queues { mut rx, mut tx } = port.start(Start { pool, queues: 1, accept: Offloads::ALL }).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let mut batch = Batch::new();
                rx.iter_mut().for_each(|queue| _ = queue.rx(&mut batch));
                tx.iter_mut().for_each(|queue| _ = queue.reclaim());
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let app = scope.spawn(|| {
            set_blocked(false);
            set_timer(Duration::from_micros(100));
            let umem = Umem::new(16, 2048).unwrap();
            for i in 0..300 {
                let config = Config::default().rules(Vec::new());
                let mut socket = Socket::connect(&umem, &path, &config).unwrap_or_else(|e| panic!("connect {i}: {e}"));
                assert!(socket.is_open(), "session {i}");
                if i % 10 == 0 {
                    // No byte comes: the wait takes all of its time.
                    let (begin, time) = (Instant::now(), Duration::from_millis(5));
                    assert!(!socket.wait(Some(time)).unwrap() && begin.elapsed() >= time, "wait {i}");
                    // The completion of a frame ends a wait without a limit.
                    let mut frames: Vec<Frame> = umem.alloc().into_iter().collect();
                    assert!(frames[0].put(&[0; 60]));
                    socket.tx(&mut frames).unwrap();
                    while socket.completions(&mut frames).unwrap() == 0 {
                        assert!(socket.wait(None).unwrap(), "wait {i}");
                    }
                }
            }
        });
        app.join().unwrap();
        set_timer(Duration::ZERO);
    });
}

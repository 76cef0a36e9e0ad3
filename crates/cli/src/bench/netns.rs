//! A private network namespace and sockets in it: the receiving end of traffic through the kernel.
//!
//! A namespace lives as long as the thread that made it. It has no name and leaves nothing behind.

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGroSegment;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace.
pub(crate) struct Namespace {
    path: String,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Makes a namespace and a thread in it; the thread is pinned if a core is given.
    pub(crate) fn new(core: Option<usize>) -> Result<Namespace, Box<dyn Error>> {
        let (jobs, todo) = channel::<Job>();
        let (ready, made) = channel();
        let thread = std::thread::spawn(move || {
            if let Some(core) = core {
                let mut set = nix::sched::CpuSet::new();
                let _ = set.set(core).and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
            }
            let result = unshare(CloneFlags::CLONE_NEWNET).map(|()| nix::unistd::gettid());
            let failed = result.is_err();
            if ready.send(result).is_err() || failed {
                return;
            }
            while let Ok(job) = todo.recv() {
                job();
            }
        });
        let thread_id =
            made.recv()?.map_err(|error| format!("a network namespace can't be made ({error}): run as root"))?;
        let path = format!("/proc/{}/task/{thread_id}/ns/net", std::process::id());
        Ok(Namespace { path, jobs: Some(jobs), thread: Some(thread) })
    }

    /// A path that names the namespace while it lives.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Runs `f` in the namespace and waits for it.
    pub(crate) fn run<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> std::io::Result<R> {
        self.start(|| Ok(f())).recv().map_err(std::io::Error::other)?
    }

    /// Runs `f` in the namespace without waiting for it.
    fn start<R: Send + 'static>(
        &self,
        f: impl FnOnce() -> std::io::Result<R> + Send + 'static,
    ) -> std::sync::mpsc::Receiver<std::io::Result<R>> {
        let (send, receive) = channel();
        let job: Job = Box::new(move || {
            let _ = send.send(f());
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
        receive
    }

    /// Datagrams of `payload` bytes that a socket on `port` receives in `time` after a warm-up.
    pub(crate) fn count_datagrams(
        &self,
        port: u16,
        payload: usize,
        warm_up: Duration,
        time: Duration,
    ) -> Result<u64, Box<dyn Error>> {
        let count = self.start(move || {
            let socket = UdpSocket::bind(("0.0.0.0", port))?;
            setsockopt(&socket, UdpGroSegment, &true)?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            let mut buffer = vec![0; 65536];
            let start = Instant::now();
            let (mut bytes, mut before) = (0u64, None);
            while start.elapsed() < warm_up + time {
                if let Ok(n) = socket.recv(&mut buffer) {
                    bytes += n as u64;
                }
                if before.is_none() && start.elapsed() >= warm_up {
                    before = Some(bytes);
                }
            }
            Ok((bytes - before.unwrap_or(0)) / payload.max(1) as u64)
        });
        Ok(count.recv()??)
    }

    /// Bytes that a TCP connection from `sender` to `address` carries in `time`.
    pub(crate) fn receive_stream_from(
        &self,
        sender: &Namespace,
        address: SocketAddr,
        time: Duration,
    ) -> Result<u64, Box<dyn Error>> {
        let (listening, go) = channel();
        let received = self.start(move || {
            let listener = TcpListener::bind(address)?;
            let _ = listening.send(());
            let (mut stream, _) = listener.accept()?;
            let mut buffer = vec![0; 1 << 17];
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < time {
                match stream.read(&mut buffer)? {
                    0 => break,
                    n => bytes += n as u64,
                }
            }
            Ok(bytes)
        });
        go.recv_timeout(Duration::from_secs(5))?;
        let sent = sender.start(move || {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            let buffer = vec![7; 1 << 17];
            while stream.write_all(&buffer).is_ok() {}
            Ok(())
        });
        let bytes = received.recv_timeout(time + Duration::from_secs(10))??;
        // The sender ends once the receiver has closed the connection.
        let _ = sent.recv_timeout(Duration::from_secs(5));
        Ok(bytes)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

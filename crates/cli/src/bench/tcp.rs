//! TCP between two namespaces: a stream, and requests with responses (`TCP_RR`).

use super::netns::Namespace;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Time in which a connection must be made.
const CONNECT: Duration = Duration::from_secs(5);
/// Milliseconds after which a waiting loop looks at the clock.
const LOOK: u16 = 50;

impl Namespace {
    /// Bytes that a TCP connection from `sender` to `address` carries in `time`, and that the
    /// receiver reads, 128 KiB at a time.
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
            while bytes == 0 || start.elapsed() < time {
                match stream.read(&mut buffer)? {
                    0 => break,
                    n => bytes += n as u64,
                }
            }
            Ok(bytes)
        });
        go.recv_timeout(CONNECT)?;
        let sent = sender.start(move || {
            let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
            let buffer = vec![7; 1 << 17];
            while stream.write_all(&buffer).is_ok() {}
            Ok(())
        });
        let bytes = received.recv_timeout(time + 2 * CONNECT)??;
        // The sender ends once the receiver has closed the connection.
        let _ = sent.recv_timeout(CONNECT);
        Ok(bytes)
    }

    /// Transactions of `connections` from `client` to `address` in `time`, after a tenth of it as a
    /// warm-up: one byte there, one byte back, one transaction at a time on each. One thread
    /// answers all, and one asks all, by epoll.
    pub(crate) fn transactions_from(
        &self,
        client: &Namespace,
        address: SocketAddr,
        connections: usize,
        time: Duration,
    ) -> Result<u64, Box<dyn Error>> {
        let (listening, go) = channel();
        let served = self.start(move || {
            let listener = TcpListener::bind(address)?;
            let _ = listening.send(());
            let accept = || listener.accept().map(|(stream, _)| stream);
            let mut loops = Loop::new((0..connections).map(|_| accept()).collect::<io::Result<_>>()?)?;
            let until = Instant::now() + 2 * time + CONNECT;
            while loops.open > 0 && Instant::now() < until {
                loops.answer()?;
            }
            Ok(())
        });
        go.recv_timeout(CONNECT)?;
        let outcome = client.start(move || {
            let connect = || TcpStream::connect_timeout(&address, CONNECT);
            let mut loops = Loop::new((0..connections).map(|_| connect()).collect::<io::Result<_>>()?)?;
            for stream in &mut loops.streams {
                stream.write_all(&[1])?;
            }
            let mut run = |time| -> io::Result<u64> {
                let (start, mut done) = (Instant::now(), 0);
                while start.elapsed() < time || (done == 0 && start.elapsed() < CONNECT) {
                    done += loops.answer()?;
                }
                Ok(done)
            };
            run(time / 10)?;
            run(time)
        });
        let done = outcome.recv_timeout(time * 2 + 2 * CONNECT)??;
        served.recv_timeout(CONNECT)??;
        Ok(done)
    }
}

/// Connections whose every byte is answered with a byte.
struct Loop {
    epoll: Epoll,
    streams: Vec<TcpStream>,
    open: usize,
}

impl Loop {
    fn new(streams: Vec<TcpStream>) -> io::Result<Loop> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (number, stream) in streams.iter().enumerate() {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll.add(stream, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
        }
        Ok(Loop { open: streams.len(), epoll, streams })
    }

    /// Waits for bytes and answers them; returns how many.
    fn answer(&mut self) -> io::Result<u64> {
        let mut events = [EpollEvent::empty(); 64];
        let ready = match self.epoll.wait(&mut events, LOOK) {
            Ok(n) => n,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut answered = 0;
        for event in &events[..ready] {
            let Some(stream) = self.streams.get_mut(event.data() as usize) else { continue };
            let mut byte = [0];
            let result = stream.read(&mut byte).and_then(|n| if n == 0 { Ok(0) } else { stream.write(&byte) });
            match result {
                Ok(0) => {
                    self.epoll.delete(&*stream)?;
                    self.open -= 1;
                }
                Ok(_) => answered += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    self.epoll.delete(&*stream)?;
                    self.open -= 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(answered)
    }
}

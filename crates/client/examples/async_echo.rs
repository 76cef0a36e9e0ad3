//! Returns every packet that matches to its sender, as `echo` does, in a task of tokio.
//!
//! ```sh
//! sudo towpath fwd sock:/run/towpath.sock 'tap:tp0?addr=10.0.0.1/24' &
//! sudo cargo run -p towpath-client --example async_echo -- /run/towpath.sock 'udp dport 7'
//! ```

use std::error::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use towpath_client::{Config, Frame, Socket, Umem};

type Failure = Box<dyn Error + Send + Sync>;

/// A socket, its frames, and its descriptor in the runtime: one value without a borrow.
pub struct Echo {
    socket: AsyncFd<Socket>,
    empty: Vec<Frame>,
    frames: Vec<Frame>,
}

impl Echo {
    /// Connects to a datapath.
    pub fn new(path: &str, rules: &str) -> Result<Echo, Failure> {
        let umem = Umem::new(4096, 2048)?;
        let config = Config::default().rules(rules.split(',').map(str::to_owned).collect());
        let socket = Socket::connect(&umem, path, &config)?;
        // SAFETY: a socket has the same descriptor until it is dropped, and this one is not
        // replaced.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
        let socket = socket.map_err(std::io::Error::from)?;
        let empty = std::iter::from_fn(|| umem.alloc()).take(1024).collect();
        Ok(Echo { socket, empty, frames: Vec::new() })
    }

    /// Waits until frames come in or back.
    async fn wait(&mut self) -> Result<(), Failure> {
        if self.socket.get_mut().arm() {
            let mut guard = self.socket.readable_mut().await?;
            // It reads all wake-ups, so the descriptor is no longer readable.
            guard.get_inner_mut().disarm()?;
            guard.clear_ready();
        } else {
            self.socket.get_mut().disarm()?;
        }
        Ok(())
    }

    /// Returns packets until the session ends.
    pub async fn run(mut self) -> Result<(), Failure> {
        loop {
            let socket = self.socket.get_mut();
            socket.completions(&mut self.empty)?;
            socket.fill(&mut self.empty)?;
            let begin = self.frames.len();
            let received = socket.rx(&mut self.frames)?;
            for frame in &mut self.frames[begin..] {
                swap_addresses(frame.bytes_mut());
                frame.forward();
            }
            socket.tx(&mut self.frames)?;
            if received == 0 {
                self.wait().await?;
            } else {
                // Other tasks have their turn.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Swaps the addresses of Ethernet, IPv4 and UDP; the checksums stay right.
fn swap_addresses(bytes: &mut [u8]) {
    let mut swap = |a: usize, b: usize, n: usize| {
        if let Some((front, back)) = bytes.get_mut(..b + n).and_then(|bytes| bytes.split_at_mut_checked(b)) {
            front[a..a + n].swap_with_slice(back);
        }
    };
    swap(0, 6, 6);
    swap(26, 30, 4);
    swap(34, 36, 2);
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "/run/towpath.sock".to_owned());
    let rules = args.next().unwrap_or_else(|| "udp dport 7".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let echo = Echo::new(&path, &rules)?;
        tokio::spawn(echo.run()).await?
    })
}

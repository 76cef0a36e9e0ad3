//! Returns every packet that matches to its sender, with the addresses of Ethernet, IPv4 and UDP
//! swapped.
//!
//! ```sh
//! sudo towpath fwd sock:/run/towpath.sock 'tap:tp0?addr=10.0.0.1/24' &
//! sudo cargo run -p towpath-client --example echo -- /run/towpath.sock 'udp dport 7'
//! ```

use towpath_client::{Config, Error, Socket, Umem};

/// Swaps the `n` bytes at `a` with those at `b`, if there are as many behind `b`.
fn swap(bytes: &mut [u8], a: usize, b: usize, n: usize) {
    if let Some((front, back)) = bytes.get_mut(..b + n).and_then(|bytes| bytes.split_at_mut_checked(b)) {
        front[a..a + n].swap_with_slice(back);
    }
}

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "/run/towpath.sock".to_owned());
    let rules = args.next().unwrap_or_else(|| "udp dport 7".to_owned());
    let umem = Umem::new(4096, 2048)?;
    let config = Config::default().rules(rules.split(',').map(str::to_owned).collect());
    let mut socket = Socket::connect(&umem, &path, &config)?;
    eprintln!("session {} at {path}", socket.welcome().session);
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).take(1024).collect();
    let mut frames = Vec::new();
    loop {
        socket.completions(&mut empty)?;
        socket.fill(&mut empty)?;
        let begin = frames.len();
        if socket.rx(&mut frames)? == 0 && frames.is_empty() {
            socket.wait(None)?;
        }
        for frame in &mut frames[begin..] {
            frame.forward();
            let bytes = frame.bytes_mut();
            swap(bytes, 0, 6, 6);
            if bytes.get(12..15) == Some(&[8, 0, 0x45]) {
                swap(bytes, 26, 30, 4);
                if bytes[23] == 17 {
                    swap(bytes, 34, 36, 2);
                }
            }
        }
        socket.tx(&mut frames)?;
    }
}

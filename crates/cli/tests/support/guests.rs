//! Hostile guests, and hostile processes with a guest: front ends of a `vhost:` port.
//!
//! | role | what it does until it is ended |
//! |---|---|
//! | `wild` | writes random words to descriptors and rings, and starts the rings anew |
//! | `endless` | offers chains without a frame, as fast as they are used |
//! | `kicks` | kicks without end, with nothing in its ring |
//! | `calls` | makes the counter of its calls blocking, and fills it |
//! | `truncates` | frees its memory under rings that run |
//! | `connects` | connects, starts its rings, and leaves |
//! | `silent` | connects and leaves, without a word |
//! | `tables` | sends its table of memory over and over |
//! | `stops` | stops its rings and starts them, over and over |

use super::front_end::{FrontEnd, MEMORY, RX, SIZE, TX, available, descriptors};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use towpath_sys::unix_socket::{self, Kind};
use towpath_testing::sealed_memory;
use towpath_virtio::vhost_user::ChannelError;

/// What a role does once. An error ends its connection.
type Deed = fn(&mut FrontEnd) -> Result<(), ChannelError>;

/// Plays a role. `ready` is called once it is in its state.
pub(crate) fn play(role: &str, path: &Path, ready: impl FnOnce()) {
    let mut ready = Some(ready);
    let deed: Deed = match role {
        "wild" => wild,
        "endless" => endless,
        "kicks" => kicks,
        "calls" => calls,
        "truncates" => truncates,
        "connects" => |_| Err(ChannelError::Closed),
        "tables" => |front| front.set_memory().map(drop),
        "stops" => stops,
        "silent" => return silent(path, ready),
        other => panic!("{other}"),
    };
    // Once it was found out, it is left waiting.
    if role == "calls"
        && let Some(ready) = ready.take()
    {
        ready();
    }
    for n in 0u64.. {
        let front = if role == "truncates" { open_ended(path) } else { FrontEnd::start(path) };
        if let Ok(mut front) = front {
            front.set_frame(&[0xff; 60]);
            while deed(&mut front).is_ok() {
                if let Some(ready) = ready.take() {
                    ready();
                }
            }
        }
        if n == 4
            && let Some(ready) = ready.take()
        {
            ready();
        }
    }
}

/// A front end whose memory can be truncated.
fn open_ended(path: &Path) -> Result<FrontEnd, ChannelError> {
    let file = tempfile::tempfile_in("/dev/shm")?;
    file.set_len(MEMORY)?;
    let mut front = FrontEnd::with_memory(path, file.into())?;
    front.set_memory()?;
    [RX, TX].into_iter().try_for_each(|index| front.start_ring(index))?;
    Ok(front)
}

/// Restarts the rings, with words that have no meaning in between.
fn wild(front: &mut FrontEnd) -> Result<(), ChannelError> {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let mut random = SEED.load(Relaxed);
    for index in [RX, TX] {
        for _ in 0..64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let area = if random & 1 << 20 == 0 { descriptors(index) } else { available(index) };
            let at = (random >> 32) as usize % 64 * 8;
            front.memory.set(area + at, (random >> 8).to_ne_bytes());
            front.rings[index].kick.signal();
        }
        SEED.store(random, Relaxed);
        front.stop_ring(index)?;
        front.start_ring(index)?;
    }
    Ok(())
}

/// Heads that are all good, and chains that are not: they hold a header alone.
fn endless(front: &mut FrontEnd) -> Result<(), ChannelError> {
    front.rings[TX].used();
    front.send(0, SIZE.into());
    front.rings[TX].kick.signal();
    Ok(())
}

fn kicks(front: &mut FrontEnd) -> Result<(), ChannelError> {
    for _ in 0..64 {
        front.rings.iter().for_each(|ring| ring.kick.signal());
    }
    Ok(())
}

/// The next call blocks, as long as nothing empties the counter.
fn calls(front: &mut FrontEnd) -> Result<(), ChannelError> {
    let counter = front.rings[TX].call.as_fd().as_raw_fd();
    let most = (u64::MAX - 1).to_ne_bytes();
    // SAFETY: no pointer, and eight bytes that live across the call.
    unsafe {
        libc::fcntl(counter, libc::F_SETFL, libc::O_NONBLOCK);
        libc::write(counter, most.as_ptr().cast(), most.len());
        libc::fcntl(counter, libc::F_SETFL, 0);
    }
    front.rings[TX].used();
    let _ = front.rings[TX].driver.enable_calls();
    front.send(60, 16);
    std::thread::sleep(Duration::from_micros(200));
    match front.channel.receive()? {
        None => Ok(()),
        Some(_) => Err(ChannelError::Closed),
    }
}

fn truncates(front: &mut FrontEnd) -> Result<(), ChannelError> {
    front.send(60, 16);
    // SAFETY: no pointer.
    unsafe { libc::ftruncate(front.file.as_fd().as_raw_fd(), 0) };
    front.rings.iter().for_each(|ring| ring.kick.signal());
    std::thread::sleep(Duration::from_micros(200));
    Err(ChannelError::Closed)
}

fn stops(front: &mut FrontEnd) -> Result<(), ChannelError> {
    front.stop_ring(TX)?;
    front.start_ring(TX)
}

fn silent(path: &Path, ready: Option<impl FnOnce()>) {
    let connect = || unix_socket::connect(path, Kind::Stream, Some(Instant::now() + Duration::from_secs(1)));
    ready.into_iter().for_each(|ready| ready());
    loop {
        let _ = connect();
    }
}

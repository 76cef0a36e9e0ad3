//! The application: sends bursts of frames, cycling through its memory as fast as frames complete.

use super::worker::Worker;
use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use towpath_client::{Config, Frame, Sizes, Socket, Umem};

/// Frames in a burst.
pub(super) const BURST: usize = 64;
/// Number of frames in the memory, and bytes of each.
const FRAMES: (u32, u32) = (4096, 2048);

/// The application's memory.
pub(super) fn memory() -> Result<Umem, towpath_client::Error> {
    Umem::new(FRAMES.0, FRAMES.1)
}

/// An application that is stepped explicitly.
pub(super) struct App {
    socket: Socket,
    /// Free frames, least recently sent first.
    free: VecDeque<Frame>,
    back: Vec<Frame>,
    burst: Vec<Frame>,
    size: u32,
    write: bool,
}

impl App {
    pub(super) fn new(umem: &Umem, path: &Path, size: u32, write: bool) -> Result<App, Box<dyn Error>> {
        let config = Config::default().rings(Sizes::all(2048)).rules(Vec::new());
        let socket = Socket::connect(umem, path, &config)?;
        let mut free = VecDeque::with_capacity(FRAMES.0 as usize);
        while let Some(mut frame) = umem.alloc() {
            if !frame.set_range(0, size) {
                return Err(format!("a frame of {size} bytes does not fit in a chunk of {}", FRAMES.1).into());
            }
            fill(frame.bytes_mut());
            free.push_back(frame);
        }
        let (back, burst) = (Vec::with_capacity(FRAMES.0 as usize), Vec::with_capacity(BURST));
        Ok(App { socket, free, back, burst, size, write })
    }

    /// Takes completions and sends a burst; returns the number of frames sent.
    pub(super) fn step(&mut self) -> Result<usize, Box<dyn Error>> {
        self.socket.completions(&mut self.back)?;
        self.free.extend(self.back.drain(..));
        while self.burst.len() < BURST
            && let Some(mut frame) = self.free.pop_front()
        {
            // The range was valid when the frame was first sent.
            let _ = frame.set_range(0, self.size);
            if self.write {
                fill(frame.bytes_mut());
            }
            self.burst.push(frame);
        }
        Ok(self.socket.tx(&mut self.burst)?)
    }
}

/// Writes a frame to the broadcast address with a local experimental ethertype (IEEE 802, 0x88b5).
fn fill(bytes: &mut [u8]) {
    bytes.fill(7);
    for (byte, header) in bytes.iter_mut().zip([0xff; 6].into_iter().chain([2, 0, 0, 0, 0, 1, 0x88, 0xb5])) {
        *byte = header;
    }
}

/// An application with a thread of its own.
pub(super) fn spawn(path: PathBuf, size: u32, write: bool, core: Option<usize>) -> Worker {
    Worker::new("the application", core, move |worker| {
        let umem = memory()?;
        let mut app = App::new(&umem, &path, size, write)?;
        worker.turns(|| app.step())
    })
}

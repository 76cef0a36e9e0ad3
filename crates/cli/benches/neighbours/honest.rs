//! The honest application: a process of a user of its own, which measures when it is asked to.
//!
//! ```text
//!   sender   ──► first socket ──► datapath ──► second socket, where no session wants the frames
//!   client   ──► first socket ──► datapath ──► second socket ──► server
//!            ◄── first socket ◄── datapath ◄── second socket ◄──
//! ```
//!
//! Or it is a [`guest`](crate::guest), whose frames come back by a rule.
//!
//! The sender offers a rate, and skips what it could not send in time: it catches up with at most
//! 512 frames. Client and server sleep whenever they wait.

use crate::guest::Guest;
use crate::support::strangers::become_user;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use towpath_client::{Config, Frame, Sizes, Socket, Umem};

/// The environment variable that makes a process of this binary the honest application: a [`Plan`].
const HONEST: &str = "TOWPATH_HONEST";

/// Frames of the sender.
const FRAMES: u32 = 512;
/// The UDP port of the server and of the client.
const PORT: u16 = 7;
/// Time before each request in which all fall asleep.
pub(crate) const PAUSE: Duration = Duration::from_micros(300);

/// What the process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) user: u32,
    pub(crate) core: usize,
    pub(crate) sockets: [String; 2],
    /// It is a guest at the first socket.
    pub(crate) guest: bool,
    /// Frames a second.
    pub(crate) rate: f64,
}

/// A slice of a measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Frames a second that were sent and completed.
    pub(crate) rate: f64,
    /// Round trips in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Requests without a reply.
    pub(crate) lost: u64,
}

/// The process. It ends when this is dropped.
pub(crate) struct Honest {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Honest {
    pub(crate) fn start(plan: &Plan) -> Honest {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(HONEST, serde_json::to_string(plan).unwrap()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Honest { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Measures the rate for a time, and then the latency for the same time.
    pub(crate) fn measure(&mut self, time: Duration) -> Result<Sample, String> {
        writeln!(self.stdin, "{}", time.as_micros()).map_err(|error| error.to_string())?;
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(|error| error.to_string())?;
        serde_json::from_str(&line).map_err(|_| "the honest application failed".to_owned())
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the honest application, if this process was started as such: does not return then.
pub(crate) fn play() {
    let Ok(plan) = std::env::var(HONEST) else { return };
    let plan: Plan = serde_json::from_str(&plan).unwrap();
    crate::pin(plan.core);
    become_user(plan.user);
    let [near, far] = &plan.sockets;
    if plan.guest {
        let mut guest = Guest::start(near.as_ref());
        answer(|time| guest.measure(plan.rate, time));
    }
    let memory = [FRAMES, 64, 64].map(|frames| Umem::new(frames, 2048).unwrap());
    let connect = |umem, path: &str, rules: Vec<String>| {
        Socket::connect(umem, path, &Config::default().rings(Sizes::all(FRAMES)).rules(rules)).unwrap()
    };
    let wants = || vec![format!("udp dport {PORT}")];
    let [of_sender, of_client, of_server] = &memory;
    let mut sender = connect(of_sender, near, Vec::new());
    let mut client = connect(of_client, near, wants());
    let mut server = connect(of_server, far, wants());
    std::thread::scope(|scope| {
        scope.spawn(move || serve(of_server, &mut server));
        answer(|time| {
            let rate = send(of_sender, &mut sender, plan.rate, time);
            ask(of_client, &mut client, time).sample(rate)
        })
    });
}

/// Measures for each time that is asked for, until the end of the input.
fn answer(mut measure: impl FnMut(Duration) -> Sample) -> ! {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let sample = measure(Duration::from_micros(line.parse().unwrap()));
        println!("{}", serde_json::to_string(&sample).unwrap());
    }
    std::process::exit(0);
}

/// Round trips.
pub(crate) struct Latency {
    ns: Histogram<u64>,
    lost: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { ns: Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap(), lost: 0 }
    }
}

impl Latency {
    /// The time of a round trip; `None` without a reply.
    pub(crate) fn note(&mut self, time: Option<Duration>) {
        match time {
            Some(time) => self.ns.saturating_record(time.as_nanos() as u64),
            None => self.lost += 1,
        }
    }

    pub(crate) fn sample(&self, rate: f64) -> Sample {
        let us = |quantile| self.ns.value_at_quantile(quantile) as f64 / 1e3;
        Sample { rate, p50: us(0.5), p99: us(0.99), lost: self.lost }
    }
}

/// Offers frames at a rate; returns the rate of those that were completed.
fn send(umem: &Umem, socket: &mut Socket, rate: f64, time: Duration) -> f64 {
    let (mut done, mut given) = (0, 0.0_f64);
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let mut free: Vec<Frame> = std::iter::from_fn(|| umem.alloc()).collect();
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::thread::sleep(PAUSE);
        done += socket.completions(&mut back).unwrap();
        free.append(&mut back);
        let now = begun.elapsed().as_secs_f64() * rate;
        given = given.max(now - f64::from(FRAMES));
        while given < now
            && let Some(mut frame) = free.pop()
        {
            assert!(frame.put(&[0xff; 60]));
            out.push(frame);
            given += 1.0;
        }
        socket.tx(&mut out).unwrap();
    }
    let (rate, end) = (done as f64 / begun.elapsed().as_secs_f64(), Instant::now() + Duration::from_secs(5));
    // The next slice begins with all frames; a datapath that has stopped gives none back.
    while free.len() < FRAMES as usize && Instant::now() < end {
        socket.tx(&mut out).unwrap();
        let _ = socket.wait(Some(Duration::from_millis(1)));
        socket.completions(&mut free).unwrap();
    }
    rate
}

/// A datagram to the server, or to the client.
pub(crate) fn datagram() -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    (bytes[14], bytes[17], bytes[22], bytes[23]) = (0x45, 46, 64, 17);
    bytes[36..38].copy_from_slice(&PORT.to_be_bytes());
    bytes[39] = 26;
    bytes
}

/// Posts all free frames to receive into, but for a few to send.
fn post(umem: &Umem, socket: &mut Socket) {
    let mut empty: Vec<_> = std::iter::from_fn(|| umem.alloc()).collect();
    empty.truncate(empty.len().saturating_sub(16));
    socket.fill(&mut empty).unwrap();
}

/// Asks, and waits for the reply, for a time.
fn ask(umem: &Umem, socket: &mut Socket, time: Duration) -> Latency {
    let (mut latency, begun, mut got) = (Latency::default(), Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let _ = socket.completions(&mut Vec::new());
        post(umem, socket);
        std::thread::sleep(PAUSE);
        let Some(mut frame) = umem.alloc() else { continue };
        assert!(frame.put(&datagram()));
        let asked = Instant::now();
        socket.tx(&mut vec![frame]).unwrap();
        let end = asked + Duration::from_secs(1);
        while got.is_empty() && Instant::now() < end {
            if socket.rx(&mut got).unwrap() == 0 {
                socket.wait(Some(end.saturating_duration_since(Instant::now()))).unwrap();
                socket.completions(&mut Vec::new()).unwrap();
            }
        }
        latency.note((!got.is_empty()).then(|| asked.elapsed()));
        got.clear();
    }
    latency
}

/// Returns every frame, until the session ends.
fn serve(umem: &Umem, socket: &mut Socket) {
    let mut got = Vec::new();
    loop {
        let _ = socket.completions(&mut Vec::new());
        post(umem, socket);
        if socket.rx(&mut got).unwrap() == 0 && socket.wait(None).is_err() {
            return;
        }
        socket.tx(&mut got).unwrap();
    }
}

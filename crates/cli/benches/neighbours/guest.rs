//! The honest guest: a front end of a `vhost:` port, in the honest application's place.
//!
//! ```text
//!   frames     ──► TX ring ──► datapath, which drops them; used chains are counted
//!   datagram   ──► TX ring ──► datapath ──► RX ring: by a rule, it leaves by the port it came from
//! ```

use crate::honest::{Latency, PAUSE, Sample, datagram};
use crate::support::front_end::{FrontEnd, RX, SIZE, TX};
use std::path::Path;
use std::time::{Duration, Instant};

/// The guest, whose rings run.
pub(crate) struct Guest(FrontEnd);

impl Guest {
    pub(crate) fn start(path: &Path) -> Guest {
        Guest(FrontEnd::start(path).unwrap())
    }

    /// Measures the rate for a time, and then the latency for the same time.
    pub(crate) fn measure(&mut self, rate: f64, time: Duration) -> Sample {
        let rate = self.send(rate, time);
        self.ask(time).sample(rate)
    }

    /// Offers frames at a rate; returns the rate of those that were used.
    fn send(&mut self, rate: f64, time: Duration) -> f64 {
        let Guest(front) = self;
        let frame = [0xff; 60];
        front.set_frame(&frame);
        let (mut done, mut given, begun) = (0, 0.0_f64, Instant::now());
        while begun.elapsed() < time {
            std::thread::sleep(PAUSE);
            done += front.rings[TX].used();
            let now = begun.elapsed().as_secs_f64() * rate;
            given = given.max(now - f64::from(SIZE));
            given += front.send(frame.len(), (now - given).ceil().max(0.0) as usize) as f64;
        }
        let (rate, end) = (done as f64 / begun.elapsed().as_secs_f64(), Instant::now() + Duration::from_secs(5));
        // The next slice begins with an empty ring.
        while front.rings[TX].driver.in_flight() > 0 && Instant::now() < end {
            front.rings[TX].wait(Instant::now() + Duration::from_millis(1));
            front.rings[TX].used();
        }
        rate
    }

    /// Sends a datagram and waits until it is back, for a time.
    fn ask(&mut self, time: Duration) -> Latency {
        let Guest(front) = self;
        let (mut latency, begun) = (Latency::default(), Instant::now());
        front.set_frame(&datagram());
        while begun.elapsed() < time {
            front.rings[TX].used();
            front.rings[RX].used();
            front.post();
            std::thread::sleep(PAUSE);
            let asked = Instant::now();
            if front.send(datagram().len(), 1) == 0 {
                continue;
            }
            let end = asked + Duration::from_secs(1);
            let mut back = front.rings[RX].used();
            while back == 0 && Instant::now() < end {
                front.rings[RX].wait(end);
                back = front.rings[RX].used();
            }
            latency.note((back > 0).then(|| asked.elapsed()));
        }
        latency
    }
}

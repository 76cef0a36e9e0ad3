//! Configuration of an AF_XDP port.

use crate::kind::{Kind, NETNS, PortOption, SWITCH, WANT};
use crate::uri::{Options, Uri, Want};
use std::ops::RangeInclusive;
use std::time::Duration;
use towpath_engine::filter::steering_matches;
use towpath_engine::rules::Match;
use towpath_packet::port::PortError;
use towpath_sys::netdev::valid_name;

/// Queues of one port, and the highest number that a queue may have.
const MAX_QUEUES: u64 = 64;
/// Entries of a ring.
const RING: RangeInclusive<u64> = 64..=32768;
/// Time of one busy poll; the kernel counts microseconds.
const BUSY_POLL: RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_secs(1);
/// Shortest time without a completion that counts as a stall.
const STALL: Duration = Duration::from_millis(10);
/// Most flows of `match`.
const MAX_MATCHES: usize = 16;

/// What the port is, and its options.
pub const KIND: Kind = Kind {
    name: "xdp",
    example: "xdp:eth1",
    what: "any interface that exists, by AF_XDP: its frames, or the flows of match= (root); rx=off: to send only",
    options: &[
        NETNS,
        PortOption::new("queue", "0–63", "0", "first queue of the interface", "queue=2"),
        PortOption::new("queues", "1–64", "1", "queues from that one on", "queues=4"),
        PortOption::new(
            "rx",
            SWITCH,
            "on, unless the port only sends",
            "receive; off attaches no program and leaves the host its traffic",
            "rx=off",
        ),
        PortOption::new(
            "tx",
            "socket|live|prefer-live|template",
            "socket",
            "the way of packets to the kernel; live: as frames of a program that it runs",
            "tx=live",
        ),
        PortOption::new(
            "match",
            "FLOW, several with +",
            "everything",
            "what is received, in the words of rules; the rest goes to the host",
            "match=udp dport 4789",
        ),
        PortOption::new(
            "mode",
            "auto|native|generic",
            "auto",
            "where the program runs: in the driver, or in the stack",
            "mode=native",
        ),
        PortOption::new("native", WANT, "prefer", "run the program in the driver", "native=require"),
        PortOption::new("generic", WANT, "prefer", "run the program in the stack", "generic=off"),
        PortOption::new("zerocopy", WANT, "prefer", "the driver uses this process's memory", "zerocopy=require"),
        PortOption::new("copy", WANT, "prefer", "the kernel copies, where zero copy is not possible", "copy=off"),
        PortOption::new("wakeup", WANT, "prefer", "wake the kernel only if a ring needs it", "wakeup=off"),
        PortOption::new("frags", WANT, "prefer", "packets of several fragments", "frags=off"),
        PortOption::new(
            "csum",
            WANT,
            "prefer",
            "the kernel or the device completes checksums of sent packets",
            "csum=off",
        ),
        PortOption::new("timestamps", WANT, "off", "measure the delays of sent packets", "timestamps=prefer"),
        PortOption::new(
            "partial",
            "auto|on|off",
            "auto",
            "received frames may have partial checksums; auto: on a veth",
            "partial=on",
        ),
        PortOption::new("ring", "2^n, 64–32768", "2048", "entries of each ring", "ring=4096"),
        PortOption::new("burst", "FRAMES, 1–4096", "256", "frames of one call with tx=live", "tx=live,burst=64"),
        PortOption::new("busypoll", "TIME, 1us–1s", "0s", "time of one busy poll of the driver", "busypoll=20us"),
        PortOption::new(
            "busybudget",
            "FRAMES, 1–65535",
            "64",
            "frames of one busy poll",
            "busypoll=20us,busybudget=32",
        ),
        PortOption::new(
            "txbudget",
            "FRAMES, 32–ring",
            "64",
            "frames that one wakeup sends in copy mode",
            "txbudget=128",
        ),
        PortOption::new(
            "sndbuf",
            "BYTES, 64Ki–512Mi",
            "4 MiB",
            "bytes that may wait to be sent in copy mode",
            "sndbuf=8M",
        ),
        PortOption::new("promisc", SWITCH, "on", "receive frames for any address", "promisc=off"),
        PortOption::new(
            "stall",
            "TIME from 10ms",
            "1s",
            "time without a completion after which a queue is opened again",
            "stall=500ms",
        ),
        PortOption::new(
            "selftest",
            "off|wake|frame",
            "wake",
            "test of the driver at the start: wake it once, or send one frame to its own address",
            "selftest=frame",
        ),
    ],
};

/// How packets are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transmit {
    /// Through the socket.
    #[default]
    Socket,
    /// As frames of a program that the kernel runs, see [`live`](super::live).
    Live,
    /// As `Live`; through the socket if that does not work.
    PreferLive,
    /// The port itself makes the frames of a generator.
    Template,
}

/// Whether received frames may have partial checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Partial {
    /// On a veth, whose peer is a stack of this machine.
    #[default]
    Auto,
    /// They may.
    On,
    /// They never do.
    Off,
}

/// The test of the driver at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SelfTest {
    /// Nothing.
    Off,
    /// The driver is woken once without a frame: some drivers always refuse that.
    #[default]
    Wake,
    /// A frame is sent to the interface's own address, and must be completed. The peer sees it.
    Frame,
}

/// Configuration of an AF_XDP port.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Name of the interface: 1 to 15 bytes.
    pub interface: String,
    /// Network namespace of the interface: a name of `ip netns`, or a path.
    pub netns: Option<String>,
    /// First queue of the interface.
    pub queue: u16,
    /// Number of queues from that one on.
    pub queues: u16,
    /// Whether to receive; `None`: unless the port is opened as an egress only. A port that does
    /// not receive attaches no program, and leaves the host its traffic.
    pub receive: Option<bool>,
    /// Run the program in the driver.
    pub native: Want,
    /// Run the program in the stack, if it can't run in the driver.
    pub generic: Want,
    /// Zero-copy mode: the driver uses the UMEM itself.
    pub zero_copy: Want,
    /// Copy mode, if zero-copy mode is not possible.
    pub copy: Want,
    /// Wake the kernel only if a ring needs it (`XDP_USE_NEED_WAKEUP`).
    pub wakeup: Want,
    /// Packets of several fragments, both ways.
    pub frags: Want,
    /// The kernel or the device completes partial checksums of transmitted packets.
    pub csum: Want,
    /// Measure the delays of transmitted packets.
    pub timestamps: Want,
    /// How packets are sent.
    pub transmit: Transmit,
    /// Frames that `tx=live` gathers for one call.
    pub burst: u16,
    /// Whether received frames may have partial checksums.
    pub partial: Partial,
    /// Flows to receive; empty for all. The rest goes to the host.
    pub matches: Vec<Match>,
    /// Time of one busy poll of the driver; zero for none.
    pub busy_poll: Duration,
    /// Frames of one busy poll.
    pub busy_budget: u16,
    /// Entries of each ring, a power of two.
    pub ring: u16,
    /// Frames that one wakeup sends in copy mode.
    pub tx_budget: u16,
    /// Bytes of frames that may wait to be transmitted in copy mode.
    pub send_buffer: i32,
    /// Whether to receive frames for any address.
    pub promiscuous: bool,
    /// Time without a completion after which the queue is reopened, at the second look behind it:
    /// up to 100 ms later.
    pub stall: Duration,
    /// The test at the start.
    pub self_test: SelfTest,
}

impl Default for Config {
    /// Everything that the kernel and the driver can do, rings for 2 ms at a million packets/s.
    fn default() -> Config {
        Config {
            interface: String::new(),
            netns: None,
            queue: 0,
            queues: 1,
            receive: None,
            native: Want::Prefer,
            generic: Want::Prefer,
            zero_copy: Want::Prefer,
            copy: Want::Prefer,
            wakeup: Want::Prefer,
            frags: Want::Prefer,
            csum: Want::Prefer,
            timestamps: Want::Off,
            transmit: Transmit::Socket,
            burst: 256,
            partial: Partial::Auto,
            matches: Vec::new(),
            busy_poll: Duration::ZERO,
            busy_budget: 64,
            ring: 2048,
            tx_budget: 64,
            send_buffer: 4 << 20,
            promiscuous: true,
            stall: Duration::from_secs(1),
            self_test: SelfTest::Wake,
        }
    }
}

impl Config {
    /// Parses `xdp:IF?…`.
    ///
    /// # Errors
    /// [`PortError::Option`] names the option, its value and the rule.
    pub fn from_uri(uri: &Uri) -> Result<Config, PortError> {
        let mut o = uri.options(KIND.options);
        let d = Config::default();
        let mut want = |name, default| Ok::<_, PortError>(o.want(name)?.unwrap_or(default));
        let mut config = Config {
            interface: uri.target().to_owned(),
            native: want("native", d.native)?,
            generic: want("generic", d.generic)?,
            zero_copy: want("zerocopy", d.zero_copy)?,
            copy: want("copy", d.copy)?,
            wakeup: want("wakeup", d.wakeup)?,
            frags: want("frags", d.frags)?,
            csum: want("csum", d.csum)?,
            timestamps: want("timestamps", d.timestamps)?,
            ..d
        };
        if let Some(mode) = o.choice("mode", &MODES)? {
            if (config.native, config.generic) != (d.native, d.generic) {
                let word = MODES.iter().find(|(_, known)| *known == mode).map_or("", |(word, _)| word);
                return Err(o.error("mode", word, "stands for native= and generic=: give it, or them"));
            }
            (config.native, config.generic) = mode;
        }
        config.netns = o.text("netns");
        config.queue = o.number("queue", 0..=MAX_QUEUES - 1)?.map_or(config.queue, |n| n as u16);
        config.queues = o.number("queues", 1..=MAX_QUEUES)?.map_or(config.queues, |n| n as u16);
        config.receive = o.switch("rx")?;
        config.transmit = o.choice("tx", &TRANSMIT)?.unwrap_or_default();
        config.burst = o.number("burst", 1..=4096)?.map_or(config.burst, |n| n as u16);
        config.partial = o.choice("partial", &PARTIAL)?.unwrap_or_default();
        config.matches = matches(&mut o)?;
        config.busy_poll = o.duration("busypoll")?.unwrap_or_default();
        config.busy_budget = o.number("busybudget", 1..=65535)?.map_or(config.busy_budget, |n| n as u16);
        config.ring = o.number("ring", RING)?.map_or(config.ring, |n| n as u16);
        config.tx_budget = o.number("txbudget", 32..=32768)?.map_or(config.tx_budget, |n| n as u16);
        config.send_buffer = o.number("sndbuf", 65536..=1 << 29)?.map_or(config.send_buffer, |n| n as i32);
        config.promiscuous = o.switch("promisc")?.unwrap_or(config.promiscuous);
        config.stall = o.duration("stall")?.unwrap_or(config.stall);
        config.self_test = o.choice("selftest", &SELF_TEST)?.unwrap_or_default();
        o.finish()?;
        config.check()?;
        Ok(config)
    }

    /// The configuration of a port that is opened to send only: it does not receive, unless an
    /// option that is about receiving or about its program is given.
    #[must_use]
    pub fn for_egress(self) -> Config {
        let receive = self.receive.or_else(|| self.receive_option().is_none().then_some(false));
        Config { receive, ..self }
    }

    /// The configuration of a port that is opened to receive only.
    ///
    /// # Errors
    /// [`PortError::Option`] for `rx=off`.
    pub fn for_ingress(self) -> Result<Config, PortError> {
        if self.receives() {
            return Ok(self);
        }
        Err(self.error("rx", "off", "can't be given where packets are received from the port: leave it out"))
    }

    /// Whether the port receives.
    pub fn receives(&self) -> bool {
        self.receive != Some(false)
    }

    /// An option that has a meaning only if the port receives or attaches a program, and is not at
    /// its default.
    fn receive_option(&self) -> Option<&'static str> {
        let d = Config::default();
        let given = [
            (self.native != d.native || self.generic != d.generic, "native=, generic= or mode="),
            (self.transmit != d.transmit, "tx="),
            (self.partial != d.partial, "partial="),
            (!self.matches.is_empty(), "match="),
            (!self.busy_poll.is_zero(), "busypoll="),
        ];
        given.into_iter().find(|(given, _)| *given).map(|(_, option)| option)
    }

    /// The port's name.
    pub(super) fn port(&self) -> String {
        format!("xdp:{}", self.interface)
    }

    /// An error about one option.
    pub(super) fn error(&self, option: &str, value: impl ToString, rule: impl Into<String>) -> PortError {
        PortError::Option { port: self.port(), option: option.to_owned(), value: value.to_string(), rule: rule.into() }
    }

    /// Checks every field against its rule.
    pub(super) fn check(&self) -> Result<(), PortError> {
        let rule = |ok: bool, option: &str, value: String, rule: &str| {
            if ok { Ok(()) } else { Err(self.error(option, value, rule)) }
        };
        let name = &self.interface;
        rule(valid_name(name), "interface", format!("'{name}'"), "must have 1 to 15 bytes, no slash, colon or blank")?;
        let named = self.netns.as_ref().is_none_or(|netns| !netns.is_empty());
        rule(named, "netns", String::new(), "must be a name that ip netns list shows, or a path")?;
        let last = u64::from(self.queue) + u64::from(self.queues);
        let queues = self.queues > 0 && last <= MAX_QUEUES;
        rule(queues, "queues", self.queues.to_string(), "must be from 1 on, and the last queue below 64")?;
        let ring = self.ring.is_power_of_two() && RING.contains(&self.ring.into());
        rule(ring, "ring", self.ring.to_string(), "must be a power of two from 64 to 32768")?;
        let budget = (32..=self.ring).contains(&self.tx_budget);
        let range = format!("must be from 32 to the size of the ring, {}", self.ring);
        rule(budget, "txbudget", self.tx_budget.to_string(), &range)?;
        let poll = self.busy_poll.is_zero() || BUSY_POLL.contains(&self.busy_poll);
        rule(poll, "busypoll", format!("{:?}", self.busy_poll), "must be 0, or from 1us to 1s")?;
        let stall = self.stall >= STALL;
        rule(
            stall,
            "stall",
            format!("{:?}", self.stall),
            "must be at least 10ms, or all that is on its way has stalled",
        )?;
        if let Some(option) = self.receive_option().filter(|_| !self.receives()) {
            let why =
                format!("attaches no program and receives nothing, so {option} has no meaning: leave one of them out");
            return Err(self.error("rx", "off", why));
        }
        for (one, other, option, word) in
            [(self.native, self.generic, "native", "generic"), (self.zero_copy, self.copy, "zerocopy", "copy")]
        {
            let both = one == Want::Require && other == Want::Require;
            rule(!both, option, "require".to_owned(), &format!("can't be required together with {word}"))?;
            let none = one == Want::Off && other == Want::Off;
            rule(!none, option, "off".to_owned(), &format!("can't be off together with {word}"))?;
        }
        rule(self.matches.len() <= MAX_MATCHES, "match", self.matches.len().to_string(), "must name at most 16 flows")
    }
}

const MODES: [(&str, (Want, Want)); 3] = [
    ("auto", (Want::Prefer, Want::Prefer)),
    ("native", (Want::Require, Want::Off)),
    ("generic", (Want::Off, Want::Require)),
];
const TRANSMIT: [(&str, Transmit); 4] = [
    ("socket", Transmit::Socket),
    ("live", Transmit::Live),
    ("prefer-live", Transmit::PreferLive),
    ("template", Transmit::Template),
];
const PARTIAL: [(&str, Partial); 3] = [("auto", Partial::Auto), ("on", Partial::On), ("off", Partial::Off)];
const SELF_TEST: [(&str, SelfTest); 3] = [("off", SelfTest::Off), ("wake", SelfTest::Wake), ("frame", SelfTest::Frame)];

/// Flows in the syntax of rules, or as expressions of pcap-filter(7), joined by `+`.
fn matches(options: &mut Options) -> Result<Vec<Match>, PortError> {
    let Some(text) = options.text("match") else { return Ok(Vec::new()) };
    let one = |flow: &str| match steering_matches(flow.trim()) {
        Ok(flows) if flows.contains(&Match::default()) => {
            Err(options.error("match", &text, "any is what is received without match=: leave it out"))
        }
        Ok(flows) => Ok(flows),
        Err(error) => {
            let word = error.word.map(|word| format!("'{word}' ")).unwrap_or_default();
            Err(options.error("match", &text, format!("{word}{}", error.problem)))
        }
    };
    text.split('+').map(one).collect::<Result<Vec<_>, _>>().map(|flows| flows.concat())
}

#[cfg(test)]
mod tests;

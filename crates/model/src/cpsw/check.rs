//! The rules for drivers, and the first violation.
//!
//! Each descriptor that passes through a ring has a shadow here:
//!
//! ```text
//!   Free (host) ──doorbell──► Pushed ──fetch──► Fetched ──write status──► Done ──pop──► Free
//! ```
//!
//! The shadow holds an image of the descriptor at the time of its doorbell. A store of the host
//! before the descriptor is free again is detected at the descriptor's next step, on either side.

use super::descriptor::{ADDRESS, Image, MAX_CHAIN, SLOT, asel};
use super::dma_view::DmaView;
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// Events in the report of a violation.
const HISTORY: usize = 48;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// A rule for drivers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            /// The number of the rule in the model's specification.
            pub fn number(self) -> &'static str {
                match self { $(Rule::$name => $number,)* }
            }
        }
    };
}

rules! {
    /// The bits of a doorbell beside the count are neither zero nor its sign.
    DoorbellBits = "M1",
    /// Teardown was acknowledged together with a count, which can lose the marker of a teardown.
    AckWithCount = "M1",
    /// Teardown was acknowledged before its end was shown.
    AckWithoutTeardown = "M1",
    /// More elements were pushed than the ring has free slots.
    Overflow = "M2",
    /// More elements were popped than there are, or elements were pushed on a side of hardware.
    Underflow = "M3",
    /// Elements were popped from a submission ring whose channel runs.
    PopWhileRunning = "M3",
    /// A slot was stored to between its doorbell and its pop.
    SlotRewritten = "M4",
    /// A descriptor was stored to between its doorbell and its completion.
    DescriptorRewritten = "M4",
    /// A ring element is zero or not aligned, has another tag than its ring, or leads to no
    /// descriptor.
    BadElement = "M5",
    /// A descriptor was announced that the device owns.
    DoubleUse = "M5",
    /// A ring was configured or reset while its channel runs.
    ConfigWhileRunning = "M6",
    /// A doorbell was written for a ring that is not configured.
    Unconfigured = "M6",
    /// A doorbell was written for a ring in message mode.
    MessageDoorbell = "M6",
    /// Elements of a ring in message mode were stored to its memory.
    MessageMemory = "M6",
    /// A FIFO window was accessed, but not by eight bytes at its end.
    FifoAccess = "M6",
    /// An element was pushed to a full ring in message mode.
    FifoOverflow = "M6",
    /// The device found a completion ring full.
    CompletionOverflow = "M6",
    /// A descriptor in a packet is not of host type.
    DescriptorType = "M11",
    /// The packet length differs from the sum of its buffers.
    LengthMismatch = "M11",
    /// A chain is endless, loops, or leaves the descriptors.
    BrokenChain = "M11",
    /// The return ring of a packet is not its channel's.
    ReturnRing = "M11",
    /// A buffer is not mapped for the device, or has another tag than its ring.
    BadBuffer = "M11",
    /// A frame took several descriptors from an exposed ring, to which hardware can't push them
    /// back.
    ExposedChain = "M13",
    /// A channel was disabled with packets in flight.
    DisabledInFlight = "M16",
    /// A channel was enabled before it was paired, or set up to pass packets by reference.
    NotReady = "M16",
    /// The address space tag of a channel differs from that of its ring.
    ChannelTag = "M18",
    /// A ring was set up with a bus order or a virtual id, which belong to board configuration.
    BusOrder = "M18",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} ({})", self.number())
    }
}

/// An event, for the history of a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Doorbell { ring: u16, value: u32 },
    Reverse { ring: u16, value: u32 },
    Pushed { ring: u16, index: u32, element: u64 },
    Fetched { ring: u16, index: u32, element: u64 },
    Completed { ring: u16, index: u32, element: u64 },
    Popped { ring: u16, index: u32, element: u64 },
    Control { channel: u16, rx: bool, value: u32 },
    Config { ring: u16 },
    Marker { ring: u16 },
}

/// A violation of a rule.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What happened.
    pub what: String,
    /// The ring.
    pub ring: Option<u16>,
    /// The slot.
    pub index: Option<u32>,
    /// The device address of the descriptor.
    pub descriptor: Option<u64>,
    /// The events before it, oldest first.
    pub history: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)?;
        if let Some(ring) = self.ring {
            write!(f, ", ring {ring}")?;
        }
        if let Some(index) = self.index {
            write!(f, ", slot {index}")?;
        }
        if let Some(descriptor) = self.descriptor {
            write!(f, ", descriptor {descriptor:#x}")?;
        }
        self.history.iter().try_for_each(|event| write!(f, "\n  {event}"))
    }
}

/// The place of a violation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct At {
    pub(crate) ring: Option<u16>,
    pub(crate) index: Option<u32>,
    pub(crate) descriptor: Option<u64>,
}

impl At {
    pub(crate) fn ring(ring: u16) -> At {
        At { ring: Some(ring), ..At::default() }
    }

    pub(crate) fn slot(ring: u16, index: u32, element: u64) -> At {
        At { ring: Some(ring), index: Some(index), descriptor: Some(element & ADDRESS) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Free,
    Pushed,
    Fetched,
    Done,
}

impl Owner {
    /// Whether the device may access the buffer.
    fn is_device(self) -> bool {
        matches!(self, Owner::Pushed | Owner::Fetched)
    }
}

#[derive(Debug)]
struct Shadow {
    owner: Owner,
    image: Image,
    /// The buffer, at the time of the doorbell.
    buffer: (u64, usize),
    /// In the first descriptor of a packet: the others.
    rest: Vec<u64>,
}

/// Checks the rules.
#[derive(Debug)]
pub(crate) struct Checker {
    strict: bool,
    first: Option<Violation>,
    count: u64,
    history: VecDeque<Event>,
    shadows: HashMap<u64, Shadow>,
}

impl Checker {
    pub(crate) fn new(strict: bool) -> Checker {
        Checker { strict, first: None, count: 0, history: VecDeque::with_capacity(HISTORY), shadows: HashMap::new() }
    }

    pub(crate) fn strict(&self) -> bool {
        self.strict
    }

    pub(crate) fn first(&self) -> Option<&Violation> {
        self.first.as_ref()
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Number of descriptors that the device owns, or that were not popped yet.
    pub(crate) fn owned(&self) -> usize {
        self.shadows.values().filter(|s| s.owner != Owner::Free).count()
    }

    #[inline]
    pub(crate) fn record(&mut self, event: Event) {
        if self.strict {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(event);
        }
    }

    #[cold]
    pub(crate) fn report(&mut self, rule: Rule, at: At, what: impl Into<String>) {
        if !self.strict {
            return;
        }
        self.count += 1;
        if self.first.is_none() {
            let history = self.history.iter().map(|event| format!("{event:x?}")).collect();
            let At { ring, index, descriptor } = at;
            self.first = Some(Violation { rule, what: what.into(), ring, index, descriptor, history });
        }
    }

    /// Why an element is no descriptor of a ring with the tag `tag`.
    pub(crate) fn invalid(element: u64, tag: u8, view: &DmaView<'_>) -> Option<&'static str> {
        let address = element & ADDRESS;
        if element == 0 {
            Some("element is zero")
        } else if !address.is_multiple_of(16) {
            Some("element is not aligned to 16 bytes")
        } else if asel(element) != tag {
            Some("element has another address tag than its ring")
        } else if !address.is_multiple_of(SLOT) || !view.holds_descriptors(address, SLOT as usize) {
            Some("element leads to no descriptor slot")
        } else {
            None
        }
    }

    /// An element was announced: the device owns the packet's descriptors.
    pub(crate) fn pushed(&mut self, ring: u16, index: u32, element: u64, tag: u8, view: &DmaView<'_>) {
        if !self.strict {
            return;
        }
        self.record(Event::Pushed { ring, index, element });
        let sop = element & ADDRESS;
        let (mut at, mut chain) = (element, Vec::new());
        // An element that is no descriptor is reported when it is fetched.
        while Checker::invalid(at, tag, view).is_none() && chain.len() < MAX_CHAIN {
            let address = at & ADDRESS;
            if chain.contains(&address) {
                break;
            }
            let Some(image) = Image::fetch(view, address, 24) else { break };
            let known = self.shadows.get(&address).map(|s| s.owner).filter(|&owner| owner != Owner::Free);
            if let Some(owner) = known {
                let what = format!("descriptor {address:#x} announced while it is {owner:?}");
                self.report(Rule::DoubleUse, At::slot(ring, index, at), what);
                break;
            }
            let buffer = (image.buffer() & ADDRESS, image.buffer_len());
            view.set_owned(buffer, true);
            self.shadows.insert(address, Shadow { owner: Owner::Pushed, image, buffer, rest: Vec::new() });
            chain.push(address);
            at = image.next();
            if at == 0 {
                break;
            }
        }
        if let Some(first) = self.shadows.get_mut(&sop).filter(|first| first.owner == Owner::Pushed) {
            first.rest = chain.split_off(chain.len().min(1));
        }
    }

    /// The device linked descriptors that were announced one by one: they complete with the first.
    pub(crate) fn link(&mut self, first: u64, others: &[Image]) {
        if others.is_empty() {
            return;
        }
        for other in others {
            if let Some(shadow) = self.shadows.get_mut(&other.address) {
                shadow.owner = Owner::Fetched;
            }
        }
        if let Some(first) = self.shadows.get_mut(&(first & ADDRESS)) {
            first.rest = others.iter().map(|other| other.address).collect();
        }
    }

    /// Sets the owner of a packet's descriptors; with `compare`, compares them with their images.
    pub(crate) fn set_owner(&mut self, element: u64, to: Owner, compare: bool, at: At, view: &DmaView<'_>) {
        if !self.strict {
            return;
        }
        let sop = element & ADDRESS;
        let Some(first) = self.shadows.get(&sop) else { return };
        let chain: Vec<u64> = std::iter::once(sop).chain(first.rest.iter().copied()).collect();
        for address in chain {
            let Some(shadow) = self.shadows.get_mut(&address) else { continue };
            let (had, has) = (shadow.owner.is_device(), to.is_device());
            if had && !has {
                view.set_owned(shadow.buffer, false);
            }
            shadow.owner = to;
            if compare && Image::fetch(view, address, 24) != Some(shadow.image) {
                let what = format!("descriptor {address:#x} changed while the device had it");
                self.report(Rule::DescriptorRewritten, At { descriptor: Some(address), ..at }, what);
            }
        }
    }

    /// The device itself wrote to a descriptor.
    pub(crate) fn update_image(&mut self, image: &Image, view: &DmaView<'_>) {
        if let Some(shadow) = self.shadows.get_mut(&image.address)
            && let Some(now) = Image::fetch(view, image.address, 24)
        {
            shadow.image = now;
        }
    }
}

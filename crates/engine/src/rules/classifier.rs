//! Classifiers, and the dissection that verdicts rest on.

use super::Verdict;
use towpath_packet::Packet;
use towpath_wire::{Dissected, LinkKind, dissect};

/// Gives packets a verdict, on one thread.
///
/// Implemented by [`Rules`](super::Rules) and by closures with explicit parameter types:
///
/// ```
/// use towpath_engine::rules::{Classifier, Verdict};
/// use towpath_packet::Packet;
/// use towpath_wire::Dissected;
///
/// fn install(classify: impl Classifier + 'static) -> Box<dyn Classifier> {
///     Box::new(classify)
/// }
/// let mut seen = 0u64;
/// install(move |packet: &Packet, found: &Dissected| {
///     seen += packet.len() as u64;
///     if found.flow.dst_port == 53 { Verdict::Lane(0) } else { Verdict::Pass }
/// });
/// ```
pub trait Classifier: Send {
    /// The verdict on `packet`, whose headers are in `found` (see [`dissect_packet`]). Called for
    /// every packet: must neither block nor allocate nor panic.
    fn classify(&mut self, packet: &Packet, found: &Dissected) -> Verdict;

    /// Called before each burst: the place to take a new configuration.
    #[inline]
    fn begin_burst(&mut self) {}

    /// The verdict of all packets, if it is known without dissection.
    #[inline]
    fn constant(&self) -> Option<Verdict> {
        None
    }
}

impl<F> Classifier for F
where
    F: FnMut(&Packet, &Dissected) -> Verdict + Send,
{
    #[inline]
    fn classify(&mut self, packet: &Packet, found: &Dissected) -> Verdict {
        self(packet, found)
    }
}

/// Bytes that are searched for headers in a packet of fragments: two tags, IPv6 and TCP with all
/// options (122 bytes), or IPv6 with 66 bytes of extension headers and ports.
pub const DISSECT_LEN: usize = 128;

/// Dissects a packet. If its linear part is shorter than [`DISSECT_LEN`] and it has fragments, its
/// first bytes are copied out once.
///
/// For a packet of fragments, [`end`](Dissected::end) is the end of the dissected bytes, not of the
/// packet.
#[inline]
pub fn dissect_packet(packet: &Packet, link: LinkKind) -> Dissected {
    let linear = packet.linear();
    if linear.len() >= DISSECT_LEN || packet.frags() == 0 {
        dissect(linear, link)
    } else {
        dissect_pieces(packet, link)
    }
}

/// The hash that both directions of a packet's flow share: that of [`dissect_packet`] with seed 0,
/// with less work.
#[inline]
pub(crate) fn symmetric_hash(packet: &Packet, link: LinkKind) -> u32 {
    let linear = packet.linear();
    if linear.len() >= DISSECT_LEN || packet.frags() == 0 {
        dissect::symmetric_hash(linear, link, 0)
    } else {
        dissect_pieces(packet, link).symmetric_hash(0)
    }
}

#[inline(never)]
fn dissect_pieces(packet: &Packet, link: LinkKind) -> Dissected {
    let mut bytes = [0; DISSECT_LEN];
    let len = packet.copy_to(0, &mut bytes);
    dissect(bytes.get(..len).unwrap_or_default(), link)
}

/// Classifies a batch: writes the verdict on each packet to the same index of `out`. If the lengths
/// differ, the rest of the longer slice is ignored.
///
/// Callers that need more of the headers than the verdict (the hash, for example) use
/// [`dissect_packet`] and [`Classifier::classify`].
#[inline]
pub fn classify_batch<J: Classifier + ?Sized>(classify: &mut J, batch: &[Packet], link: LinkKind, out: &mut [Verdict]) {
    let out = out.iter_mut().zip(batch);
    match classify.constant() {
        Some(constant) => out.for_each(|(verdict, _)| *verdict = constant),
        None => out.for_each(|(verdict, packet)| *verdict = classify.classify(packet, &dissect_packet(packet, link))),
    }
}

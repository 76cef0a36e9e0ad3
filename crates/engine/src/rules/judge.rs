//! Who decides, and the look at the headers that the decision rests on.

use super::Verdict;
use towpath_packet::Packet;
use towpath_wire::{Dissected, LinkKind, dissect};

/// Decides what becomes of packets, on one thread.
///
/// Implemented by [`Rules`](super::Rules) and by closures, which name the types of what they are given:
///
/// ```
/// use towpath_engine::rules::{Judge, Verdict};
/// use towpath_packet::Packet;
/// use towpath_wire::Dissected;
///
/// fn install(judge: impl Judge + 'static) -> Box<dyn Judge> {
///     Box::new(judge)
/// }
/// let mut seen = 0u64;
/// install(move |packet: &Packet, found: &Dissected| {
///     seen += packet.len() as u64;
///     if found.flow.dst_port == 53 { Verdict::Lane(0) } else { Verdict::Pass }
/// });
/// ```
pub trait Judge: Send {
    /// What becomes of `packet`, in which [`dissect_packet`] found `found`. Called for every packet: must neither block nor
    /// allocate nor panic.
    fn judge(&mut self, packet: &Packet, found: &Dissected) -> Verdict;

    /// The verdict that every packet gets, if it is known without a look at any.
    #[inline]
    fn constant(&self) -> Option<Verdict> {
        None
    }
}

impl<F> Judge for F
where
    F: FnMut(&Packet, &Dissected) -> Verdict + Send,
{
    #[inline]
    fn judge(&mut self, packet: &Packet, found: &Dissected) -> Verdict {
        self(packet, found)
    }
}

/// How far into a packet in pieces headers are looked for: two tags, IPv6 and TCP with all their options (122 bytes), or
/// IPv6 with 66 bytes of extension headers and ports.
pub const LOOK: usize = 128;

/// Finds the headers of a packet, also where its first bytes are in fragments: those of a packet in pieces whose linear
/// part is shorter than [`LOOK`] are copied out, once.
///
/// Of a packet in pieces [`end`](Dissected::end) says where the bytes that were looked at end, not where the packet does.
#[inline]
pub fn dissect_packet(packet: &Packet, link: LinkKind) -> Dissected {
    let linear = packet.linear();
    if linear.len() >= LOOK || packet.frags() == 0 { dissect(linear, link) } else { dissect_pieces(packet, link) }
}

#[inline(never)]
fn dissect_pieces(packet: &Packet, link: LinkKind) -> Dissected {
    let mut bytes = [0; LOOK];
    let len = packet.copy_to(0, &mut bytes);
    dissect(bytes.get(..len).unwrap_or_default(), link)
}

/// Judges a batch: writes the verdict on each packet to the same place of `out`, which is as long. (Of two that differ, the
/// end of the longer is left alone.)
///
/// Who needs more of the headers than the verdict, the hash for example, calls [`dissect_packet`] and [`Judge::judge`].
#[inline]
pub fn verdicts<J: Judge + ?Sized>(judge: &mut J, batch: &[Packet], link: LinkKind, out: &mut [Verdict]) {
    let out = out.iter_mut().zip(batch);
    match judge.constant() {
        Some(constant) => out.for_each(|(verdict, _)| *verdict = constant),
        None => out.for_each(|(verdict, packet)| *verdict = judge.judge(packet, &dissect_packet(packet, link))),
    }
}

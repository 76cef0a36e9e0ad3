//! The answer of a datapath.

use super::{Fields, MAGIC, Malformed, Rings};
use towpath_packet::xsk_ring::Layout;

/// The session that the application gets. Two descriptors come with it: the memfd of the rings, and
/// the kick, an eventfd or the socket of [`one_descriptor`](super::Hello::one_descriptor).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Number of the session.
    pub session: u64,
    /// The queue of the port that the session belongs to.
    pub queue: u16,
    /// Longest frame that may be sent, in bytes with its Ethernet header.
    pub longest: u32,
    /// Bytes of chunks that may be in flight.
    pub budget: u64,
    /// Bytes of the memory that the rings lie in.
    pub memory: u64,
    /// The places of the rings.
    pub rings: Rings,
}

/// Why the application gets no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why} ({code:?})")]
pub struct Refusal {
    /// The kind of reason.
    pub code: Code,
    /// A sentence for people.
    pub why: String,
}

/// A kind of reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Code {
    /// The message breaks the protocol.
    Protocol = 1,
    /// The memory can't be used: it is not sealed, too short or too large, or pages are missing.
    Memory = 2,
    /// The rules can't be read, are more than one application may have, are not allowed to the
    /// user, or another application has the default.
    Rules = 3,
    /// A limit of the user, or of all, is reached: sessions, rules, memory or metadata. Or a
    /// resource is missing.
    Full = 4,
}

/// The answer of a datapath to a [`Hello`](super::Hello).
///
/// ```text
///   magic u64 │ code u32 = 0 │ longest u32 │ session, queue, budget, memory u64
///             │ producer, consumer, desc, flags u64 of rx, tx, fill, completion, statistics
///   magic u64 │ code u32     │ 0 u32       │ why
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The session is open.
    Welcome(Welcome),
    /// There is no session.
    Refusal(Refusal),
}

impl Answer {
    /// Bytes of the longest answer.
    pub const LONGEST: usize = 512;

    /// Reads an answer.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Answer, Malformed> {
        let mut fields = Fields(bytes);
        if fields.u64()? != MAGIC {
            return Err(Malformed::Magic);
        }
        let (code, longest) = (fields.u32()?, fields.u32()?);
        let code = match code {
            0 => {
                let (session, queue) = (fields.u64()?, fields.u64()? as u16);
                let (budget, memory) = (fields.u64()?, fields.u64()?);
                let mut layout = || -> Result<Layout, Malformed> {
                    let (producer, consumer) = (fields.u64()?, fields.u64()?);
                    Ok(Layout { producer, consumer, desc: fields.u64()?, flags: fields.u64()? })
                };
                let (rx, tx, fill, completion) = (layout()?, layout()?, layout()?, layout()?);
                let rings = Rings { rx, tx, fill, completion, statistics: layout()? };
                return Ok(Answer::Welcome(Welcome { session, queue, longest, budget, memory, rings }));
            }
            1 => Code::Protocol,
            2 => Code::Memory,
            3 => Code::Rules,
            4 => Code::Full,
            other => return Err(Malformed::Flags(other)),
        };
        Ok(Answer::Refusal(Refusal { code, why: String::from_utf8_lossy(fields.0).into_owned() }))
    }
}

//! What the datapath says to that.

use super::{Fields, MAGIC, Malformed, Rings};
use towpath_packet::xsk_ring::Layout;

/// What the application gets; with it come two descriptors: the memfd of the rings, and the eventfd, or the socket, to kick
/// the datapath with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Number of the session, for people.
    pub session: u64,
    /// The queue of the port that the session lives on.
    pub queue: u16,
    /// Longest frame that may be sent, in bytes with its Ethernet header.
    pub longest: u32,
    /// Bytes of chunks that may be on their way.
    pub budget: u64,
    /// Bytes of the memory that the rings lie in.
    pub memory: u64,
    /// Where they lie.
    pub rings: Rings,
}

/// Why the application gets nothing.
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
pub enum Code {
    /// The message breaks the protocol.
    Protocol = 1,
    /// The memory can't be used: it is not sealed, too short, too large.
    Memory = 2,
    /// The rules can't be read, are more than one application may have, or somebody else has the default.
    Rules = 3,
    /// There are as many sessions, or rules of all of them, as there may be, or no resources for one more.
    Full = 4,
}

/// What a datapath says to a [`Hello`](super::Hello).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It goes well.
    Welcome(Welcome),
    /// It does not.
    Refusal(Refusal),
}

impl Answer {
    /// Bytes of the longest answer.
    pub const LONGEST: usize = 512;

    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_le_bytes().to_vec();
        match self {
            Answer::Welcome(welcome) => {
                [0, welcome.longest].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
                let Rings { rx, tx, fill, completion, statistics } = welcome.rings;
                let each =
                    [rx, tx, fill, completion, statistics].map(|at| [at.producer, at.consumer, at.desc, at.flags]);
                let first = [welcome.session, welcome.queue.into(), welcome.budget, welcome.memory];
                first.iter().chain(each.iter().flatten()).for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            }
            Answer::Refusal(Refusal { code, why }) => {
                let most =
                    (0..=why.len().min(Answer::LONGEST - 16)).rev().find(|&n| why.is_char_boundary(n)).unwrap_or(0);
                [*code as u32, 0].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
                out.extend_from_slice(&why.as_bytes()[..most]);
            }
        }
        out
    }

    /// Reads what was sent.
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

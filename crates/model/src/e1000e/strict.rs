//! The rules for descriptors and registers, which strict models check (82574 datasheet §3.2, §7.1,
//! §7.2, §10.2).

use super::env::Env;
use super::register_file::canonical;
use super::regs::*;
use super::ring::{DescriptorRing, Fetched};
use crate::iommu::Transfer;
use crate::violation::{Ring, Violation};

/// Checks what the driver leaves when it closes the device.
#[cold]
pub(crate) fn closed(env: &Env) {
    // What does not answer can't be given back.
    if env.absence().is_none() && env.registers.get(CTRL_EXT) & CTRL_EXT_DRV_LOAD != 0 {
        let rule = "DRV_LOAD is given back at the end";
        env.violations.report(Violation::Register { at: CTRL_EXT as u32, value: CTRL_EXT_DRV_LOAD, rule });
    }
}

/// Checks a fetched descriptor, and records the buffer that the device owns through it.
#[cold]
pub(crate) fn fetched(env: &Env, ring: Ring, fetched: &mut Fetched, buffer: usize) {
    let [address, second] = fetched.words;
    let index = fetched.index;
    let report = |violation| env.violations.report(violation);
    match ring {
        Ring::Rx(_) => {
            fetched.owned = (address, buffer);
            // The driver must write zeros: the word held status and length before.
            if second != 0 && env.registers.get(RFCTL) & RFCTL_EXTEN != 0 {
                report(Violation::ReservedBits { ring, index, bits: second });
            }
        }
        Ring::Tx(_) => {
            let extended = second & txd::DEXT != 0;
            let context = extended && second & txd::TYPE == 0;
            if context {
                return context_rules(env, ring, fetched);
            }
            let len = if extended { second & txd::LEN } else { second & 0xffff };
            fetched.owned = (address, len as usize);
            let reserved = match extended {
                // All status bits, and options 7:2.
                true => 0xfc0f_u64 << 32,
                false => 0x0f << 32,
            };
            if second & reserved != 0 {
                report(Violation::ReservedBits { ring, index, bits: second & reserved });
            }
            if extended && second & txd::TYPE != txd::TYPE_DATA {
                report(Violation::Transmit {
                    ring,
                    index,
                    rule: "an extended descriptor is a context (0) or data (1)",
                });
            }
            if len == 0 {
                report(Violation::Transmit { ring, index, rule: "a data descriptor has a length" });
            }
            if len > 16 << 10 {
                report(Violation::Transmit { ring, index, rule: "a descriptor's data is at most 16 KiB long" });
            }
        }
    }
    if address == 0 {
        report(Violation::AddressZero { ring, index });
        fetched.owned = (0, 0);
    }
}

fn context_rules(env: &Env, ring: Ring, fetched: &Fetched) {
    let (second, index) = (fetched.words[1], fetched.index);
    let context = super::offload::Context::new(fetched.words);
    let rule = if second & txd::TSE != 0 && context.mss == 0 {
        "segmentation needs an MSS"
    } else if second & txd::TSE != 0 && !(14..=240).contains(&context.header) {
        "the header of a segmented frame is at most 240 bytes long"
    } else if second & txd::TSE != 0 && context.payload == 0 {
        "segmentation needs a payload length"
    } else if context.l4_start != 0 && context.l4_at < context.l4_start {
        "the checksum field lies behind its header's start"
    } else if second & 0xf << 32 != 0 {
        return env.violations.report(Violation::ReservedBits { ring, index, bits: second & 0xf << 32 });
    } else {
        return;
    };
    env.violations.report(Violation::Transmit { ring, index, rule });
}

/// Checks that a descriptor in memory is as it was fetched.
#[cold]
pub(crate) fn unchanged(env: &Env, ring: &DescriptorRing, transfer: &mut Transfer<'_>, fetched: &Fetched) {
    let mut now = [[0; 2]];
    if env.checks_owned
        && transfer.descriptors(ring.address(fetched.index), &mut now).is_ok()
        && now[0] != fetched.words
    {
        let (was, is) = (fetched.words, now[0]);
        env.violations.report(Violation::OwnedDescriptorWritten { ring: ring.which, index: fetched.index, was, is });
    }
}

/// Checks a descriptor before it is used, when the device owns it for the last time.
#[cold]
pub(crate) fn used(env: &Env, ring: &DescriptorRing, transfer: &mut Transfer<'_>, fetched: &Fetched) {
    unchanged(env, ring, transfer, fetched);
    transfer.disown(fetched.owned.0, fetched.owned.1);
}

/// Checks a tail write. The tail was `from`.
#[cold]
pub(crate) fn tail(env: &Env, at: usize, from: u32, tail: u32) {
    let base = at - TAIL;
    let number = u8::from(base & QUEUE != 0);
    let ring = if base & !QUEUE == RDBAL { Ring::Rx(number) } else { Ring::Tx(number) };
    let len = (env.registers.get(base + LEN) & 0xf_ff80) / 16;
    let head = env.registers.get(base + HEAD) & 0xffff;
    if tail >= len && tail != 0 {
        env.violations.report(Violation::TailOutsideRing { ring, tail, len });
    } else if len > 0 {
        // The head may have advanced meanwhile, which leaves more room, never less.
        let (outstanding, more) = ((from + len - head % len) % len, (tail + len - from % len) % len);
        if outstanding + more >= len {
            env.violations.report(Violation::RingOverrun { ring, from, tail, head, len });
        }
    }
}

/// Checks a write of a register other than a tail.
#[cold]
pub(crate) fn register(env: &Env, at: usize, value: u32) {
    if let Some(rule) = env.order.broken(&env.registers, at, value) {
        env.violations.report(Violation::Register { at: at as u32, value, rule });
    }
    let get = |at| env.registers.get(at);
    let (rx, tx) = (get(RCTL) & RCTL_EN != 0, get(TCTL) & TCTL_EN != 0);
    let queue = at & !QUEUE;
    let within = |base: usize, offsets: &[usize]| offsets.iter().any(|o| queue == base + o);
    let rule = if canonical(at) == CTRL && value & CTRL_BIT29 != 0 {
        "bit 29 must be 0"
    } else if at == EIAC && value & !0x01f0_0000 != 0 {
        "only the causes of MSI-X are cleared by their messages"
    } else if matches!(at, MDIC | EERD) && get(EXTCNF_CTRL) & EXTCNF_SOFTWARE == 0 {
        "PHY and NVM are accessed by the owner of their semaphore"
    } else if matches!(at, MANC | MANC2H) || MDEF.contains(&at) {
        "frames for management are firmware's"
    } else if rx && within(RDBAL, &[0, BAH, LEN, HEAD]) {
        "a receive ring must not be moved while reception is enabled"
    } else if tx && within(TDBAL, &[0, BAH, LEN, HEAD]) {
        "a transmit ring must not be moved while transmission is enabled"
    } else if within(RDBAL, &[0]) || within(TDBAL, &[0]) {
        if value & 0x7f == 0 { return } else { "a ring begins at a multiple of 128 bytes" }
    } else if within(RDBAL, &[LEN]) || within(TDBAL, &[LEN]) {
        if value & 0x7f == 0 && value >> 4 <= 1 << 16 { return } else { "a ring's length is a multiple of 128 bytes" }
    } else if within(TDBAL, &[DCTL]) && value & TXDCTL_BIT22 == 0 {
        "TXDCTL bit 22 must be 1"
    } else if rx && at == RFCTL && (value ^ get(RFCTL)) & RFCTL_EXTEN != 0 {
        "the descriptor format must not change while reception is enabled"
    } else if at == RCTL
        && rx
        && value & RCTL_EN != 0
        && (value ^ get(RCTL)) & (RCTL_BSIZE | RCTL_BSEX | RCTL_FLXBUF | RCTL_DTYP) != 0
    {
        "buffer sizes must not change while reception is enabled"
    } else if at == RCTL && value & RCTL_EN != 0 && value & RCTL_BSEX != 0 && value & RCTL_BSIZE == 0 {
        "buffer size 0 with BSEX is reserved"
    } else if at == TCTL && value & TCTL_RRTHRESH != TCTL_RRTHRESH_RESET {
        "the threshold of read requests stays as it is after reset"
    } else if at == TCTL && value & TCTL_EN != 0 && value & TCTL_MULR == 0 {
        "several read requests at once (MULR)"
    } else if at == TCTL && value & TCTL_EN != 0 && !is_arbitrated(env) {
        "TARC must have its erratum bits, and for two queues the same in both"
    } else if at == TCTL && value & TCTL_EN != 0 && !tx && get(TDBAL + DCTL) != get(TDBAL + QUEUE + DCTL) {
        "TXDCTL of both queues must be alike"
    } else if at == TCTL
        && value & TCTL_EN != 0
        && !tx
        && get(TDBAL + DCTL) >> 16 & 0x3f != 0
        && get(TDBAL + DELAY) == 0
    {
        "TXDCTL.WTHRESH needs TIDV"
    } else if at == RCTL && value & RCTL_EN != 0 && !rx && get(RDBAL + DCTL) >> 16 & 0x3f > 1 && get(RDBAL + DELAY) == 0
    {
        "RXDCTL.WTHRESH above 1 needs RDTR"
    } else {
        return;
    };
    env.violations.report(Violation::Register { at: at as u32, value, rule });
}

/// Whether TARC of both queues is as the erratum of arbitration asks for (Linux:
/// `e1000_initialize_hw_bits_82571`), and with two rings that of two queues (FreeBSD:
/// `em_initialize_transmit_unit`).
fn is_arbitrated(env: &Env) -> bool {
    let get = |at| env.registers.get(at);
    let [first, second] = [get(TDBAL + TARC), get(TDBAL + QUEUE + TARC)];
    let one = first & (TARC_ZERO | TARC_ONE) == TARC_ONE;
    let both = get(TDBAL + LEN) != 0 && get(TDBAL + QUEUE + LEN) != 0;
    one && (!both || first == second && first & TARC_TWO_QUEUES == TARC_TWO_QUEUES)
}

//! The XDP program of received frames: redirects to the queue's socket, or passes to the host.
//!
//! ```text
//!   without match=:   redirect to the socket of the queue; PASS without a socket
//!
//!   with match=:      dissect the headers    ──► key on the stack ──► flow 1? flow 2? … ──► redirect
//!                     └ truncated, or no IP: noted in the key                   └ none ──► PASS
//! ```
//!
//! The key has a 32-bit word in host order for each field, or [`NONE`], which no field can have. So
//! a flow is a sequence of compares. Headers are read as by the [rules](towpath_engine::rules): up
//! to two tags, IPv4 options and four extension headers of IPv6 are skipped; fragments have no
//! ports; tunnels are not entered.

use std::io;
use std::net::IpAddr;
use towpath_engine::rules::{Match, Prefix, Span};
use towpath_sys::bpf::asm::{Alu, Asm, Call, If, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg, STACK, Size};

/// `XDP_PASS`.
const PASS: i32 = 2;

/// The value of a field that the packet does not have.
const NONE: i32 = 0x0100_0000;

/// Offsets of the key's words from the frame pointer.
mod key {
    pub(super) const ETHERTYPE: i16 = -4;
    pub(super) const TAG_1: i16 = -8;
    pub(super) const TAG_2: i16 = -12;
    pub(super) const PROTOCOL: i16 = -16;
    pub(super) const FRAGMENT: i16 = -20;
    pub(super) const SRC_PORT: i16 = -24;
    pub(super) const DST_PORT: i16 = -28;
    /// 4 or 6; 0 if not IP.
    pub(super) const VERSION: i16 = -32;
    /// Sixteen bytes; IPv4 uses the first four.
    pub(super) const SRC: i16 = -48;
    pub(super) const DST: i16 = -64;
    /// Two halves: four bytes, two bytes.
    pub(super) const DST_MAC: i16 = -72;
    pub(super) const SRC_MAC: i16 = -80;
}

/// All frames to the sockets of `map`.
pub(super) fn all_frames(map: i32) -> io::Result<Vec<u64>> {
    let mut a = Asm::default();
    a.load(Size::B4, R2, R1, 16);
    redirect(&mut a, map);
    a.finish()
}

/// The flows of `matches` to the sockets of `map`, the rest to the host.
pub(super) fn flows(map: i32, matches: &[Match]) -> io::Result<Vec<u64>> {
    let mut a = Asm::default();
    let (ready, pass, taken) = (a.label(), a.label(), a.label());
    a.reg(Alu::Mov, R6, R1);
    a.load(Size::B4, R7, R1, 0);
    a.load(Size::B4, R8, R1, 4);
    dissect(&mut a, ready, pass);
    a.place(ready);
    for flow in matches {
        let next = a.label();
        compare(&mut a, flow, next);
        a.jump(taken);
        a.place(next);
    }
    a.place(pass);
    a.imm(Alu::Mov, R0, PASS);
    a.exit();
    a.place(taken);
    a.load(Size::B4, R2, R6, 16);
    redirect(&mut a, map);
    a.finish()
}

/// Ends the program with the result of `bpf_redirect_map` for the queue in `R2`: `PASS` if the
/// queue has no socket.
fn redirect(a: &mut Asm, map: i32) {
    a.map(R1, map);
    a.imm(Alu::Mov, R3, PASS);
    a.call(Call::RedirectMap);
    a.exit();
}

/// Jumps to `short` unless the frame has `n` bytes at `R7`.
fn need(a: &mut Asm, n: i32, short: Label) {
    a.reg(Alu::Mov, R4, R7);
    a.imm(Alu::Add, R4, n);
    a.jump_reg(If::Greater, R4, R8, short);
}

/// Makes the key. `R7` walks over the headers, `R8` is the end of the frame, `R9` the next type or
/// protocol. Jumps to `ready` at the last known header; to `pass` if the frame is shorter than an
/// Ethernet header.
fn dissect(a: &mut Asm, ready: Label, pass: Label) {
    for word in [key::ETHERTYPE, key::TAG_1, key::TAG_2, key::PROTOCOL, key::SRC_PORT, key::DST_PORT] {
        a.store_imm(Size::B4, STACK, word, NONE);
    }
    for words in [key::FRAGMENT, key::VERSION] {
        a.store_imm(Size::B4, STACK, words, 0);
    }
    for word in [key::SRC, key::DST] {
        for half in [0, 8] {
            a.store_imm(Size::B8, STACK, word + half, 0);
        }
    }
    need(a, 14, pass);
    for (from, to) in [(0, key::DST_MAC), (6, key::SRC_MAC)] {
        a.load(Size::B4, R5, R7, from);
        a.store(Size::B4, STACK, to, R5);
        a.load(Size::B2, R5, R7, from + 4);
        a.store(Size::B4, STACK, to + 4, R5);
    }
    a.load(Size::B2, R9, R7, 12);
    a.be_to_host(R9, 16);
    a.imm(Alu::Add, R7, 14);
    let untagged = a.label();
    for tag in [key::TAG_1, key::TAG_2] {
        let tagged = a.label();
        a.jump_imm(If::Equal, R9, 0x8100, tagged);
        a.jump_imm(If::Differs, R9, 0x88a8, untagged);
        a.place(tagged);
        need(a, 4, ready);
        a.load(Size::B2, R5, R7, 0);
        a.be_to_host(R5, 16);
        a.imm(Alu::And, R5, 0xfff);
        a.store(Size::B4, STACK, tag, R5);
        a.load(Size::B2, R9, R7, 2);
        a.be_to_host(R9, 16);
        a.imm(Alu::Add, R7, 4);
    }
    a.place(untagged);
    a.store(Size::B4, STACK, key::ETHERTYPE, R9);
    let (v6, transport) = (a.label(), a.label());
    a.jump_imm(If::Equal, R9, 0x86dd, v6);
    a.jump_imm(If::Differs, R9, 0x0800, ready);
    ipv4(a, ready);
    a.jump(transport);
    a.place(v6);
    ipv6(a, ready, transport);
    a.place(transport);
    ports(a, ready);
}

/// Leaves `R7` at the transport header, and the protocol in the key.
fn ipv4(a: &mut Asm, ready: Label) {
    need(a, 20, ready);
    a.load(Size::B1, R5, R7, 0);
    a.reg(Alu::Mov, R9, R5);
    a.imm(Alu::Right, R9, 4);
    a.jump_imm(If::Differs, R9, 4, ready);
    a.imm(Alu::And, R5, 15);
    a.jump_imm(If::Less, R5, 5, ready);
    a.store_imm(Size::B4, STACK, key::VERSION, 4);
    for (from, to) in [(12, key::SRC), (16, key::DST)] {
        a.load(Size::B4, R4, R7, from);
        a.store(Size::B4, STACK, to, R4);
    }
    a.load(Size::B1, R4, R7, 9);
    a.store(Size::B4, STACK, key::PROTOCOL, R4);
    // A fragment: more follow, or its offset is not 0.
    a.load(Size::B2, R4, R7, 6);
    a.be_to_host(R4, 16);
    a.imm(Alu::And, R4, 0x3fff);
    a.imm(Alu::Left, R5, 2);
    a.reg(Alu::Add, R7, R5);
    let whole = a.label();
    a.jump_imm(If::Equal, R4, 0, whole);
    a.store_imm(Size::B4, STACK, key::FRAGMENT, 1);
    a.jump(ready);
    a.place(whole);
}

/// As [`ipv4`].
fn ipv6(a: &mut Asm, ready: Label, transport: Label) {
    need(a, 40, ready);
    a.store_imm(Size::B4, STACK, key::VERSION, 6);
    for (from, to) in [(8, key::SRC), (24, key::DST)] {
        for part in [0, 4, 8, 12] {
            a.load(Size::B4, R4, R7, from + part);
            a.store(Size::B4, STACK, to + part, R4);
        }
    }
    a.load(Size::B1, R9, R7, 6);
    a.imm(Alu::Add, R7, 40);
    let known = a.label();
    for _ in 0..4 {
        let (sized, fragment, next) = (a.label(), a.label(), a.label());
        a.jump_imm(If::Equal, R9, 44, fragment);
        for header in [0, 43, 60] {
            a.jump_imm(If::Equal, R9, header, sized);
        }
        a.jump(known);
        a.place(fragment);
        need(a, 8, known);
        a.load(Size::B1, R9, R7, 0);
        a.load(Size::B2, R4, R7, 2);
        a.be_to_host(R4, 16);
        a.imm(Alu::And, R4, 0xfff9);
        a.imm(Alu::Add, R7, 8);
        a.jump_imm(If::Equal, R4, 0, next);
        a.store_imm(Size::B4, STACK, key::FRAGMENT, 1);
        a.store(Size::B4, STACK, key::PROTOCOL, R9);
        a.jump(ready);
        a.place(sized);
        need(a, 8, known);
        a.load(Size::B1, R9, R7, 0);
        a.load(Size::B1, R5, R7, 1);
        a.imm(Alu::Add, R5, 1);
        a.imm(Alu::Left, R5, 3);
        a.reg(Alu::Add, R7, R5);
        a.place(next);
    }
    a.place(known);
    a.store(Size::B4, STACK, key::PROTOCOL, R9);
    a.jump(transport);
}

/// Ports of TCP, UDP and SCTP at `R7`.
fn ports(a: &mut Asm, ready: Label) {
    let has = a.label();
    a.load(Size::B4, R5, STACK, key::PROTOCOL);
    for protocol in [6, 17, 132] {
        a.jump_imm(If::Equal, R5, protocol, has);
    }
    a.jump(ready);
    a.place(has);
    need(a, 4, ready);
    for (from, to) in [(0, key::SRC_PORT), (2, key::DST_PORT)] {
        a.load(Size::B2, R5, R7, from);
        a.be_to_host(R5, 16);
        a.store(Size::B4, STACK, to, R5);
    }
}

/// Jumps to `other` unless the key matches the flow.
fn compare(a: &mut Asm, flow: &Match, other: Label) {
    let number = |a: &mut Asm, word, value: Option<u32>| {
        if let Some(value) = value {
            a.load(Size::B4, R5, STACK, word);
            wide(a, R4, value);
            a.jump_reg(If::Differs, R5, R4, other);
        }
    };
    number(a, key::ETHERTYPE, flow.ethertype.map(u32::from));
    number(a, key::PROTOCOL, flow.protocol.map(u32::from));
    number(a, key::FRAGMENT, flow.fragment.then_some(1));
    for (word, mac) in [(key::SRC_MAC, flow.src_mac), (key::DST_MAC, flow.dst_mac)] {
        if let Some([b0, b1, b2, b3, b4, b5]) = mac {
            number(a, word, Some(u32::from_ne_bytes([b0, b1, b2, b3])));
            number(a, word + 4, Some(u32::from(u16::from_ne_bytes([b4, b5]))));
        }
    }
    for (word, span) in [(key::SRC_PORT, flow.src_port), (key::DST_PORT, flow.dst_port)] {
        if let Some(span) = span {
            a.load(Size::B4, R5, STACK, word);
            outside(a, span, other);
        }
    }
    if let Some(span) = flow.vlan {
        let (second, holds) = (a.label(), a.label());
        a.load(Size::B4, R5, STACK, key::TAG_1);
        outside(a, span, second);
        a.jump(holds);
        a.place(second);
        a.load(Size::B4, R5, STACK, key::TAG_2);
        outside(a, span, other);
        a.place(holds);
    }
    for (word, prefix) in [(key::SRC, flow.src), (key::DST, flow.dst)] {
        if let Some(prefix) = prefix {
            address(a, word, &prefix, other);
        }
    }
}

/// `dst = value`, without the sign extension of an immediate value.
fn wide(a: &mut Asm, dst: Reg, value: u32) {
    a.imm(Alu::Mov, dst, value as i32);
    for op in [Alu::Left, Alu::Right] {
        a.imm(op, dst, 32);
    }
}

/// Jumps to `to` unless `R5` is in the span.
fn outside(a: &mut Asm, span: Span, to: Label) {
    a.jump_imm(If::Less, R5, span.first().into(), to);
    a.jump_imm(If::Greater, R5, span.last().into(), to);
}

/// Jumps to `other` unless the address at `word` is in the prefix.
fn address(a: &mut Asm, word: i16, prefix: &Prefix, other: Label) {
    let (version, bytes) = match prefix.address() {
        IpAddr::V4(v4) => (4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (6, v6.octets().to_vec()),
    };
    a.load(Size::B4, R5, STACK, key::VERSION);
    a.jump_imm(If::Differs, R5, version, other);
    for (i, part) in bytes.chunks_exact(4).enumerate() {
        let bits = usize::from(prefix.len()).saturating_sub(32 * i).min(32);
        if bits == 0 {
            break;
        }
        let mask = u32::MAX << (32 - bits);
        a.load(Size::B4, R5, STACK, word + 4 * i as i16);
        a.be_to_host(R5, 32);
        a.imm(Alu::Mov, R4, mask as i32);
        a.reg(Alu::And, R5, R4);
        let wanted = u32::from_be_bytes([part[0], part[1], part[2], part[3]]);
        wide(a, R4, wanted);
        a.jump_reg(If::Differs, R5, R4, other);
    }
}

//! A BPF program chooses the queue of a packet from the host: the same one for all packets of a
//! flow.
//!
//! ```text
//!   the host's stack ──► program: hash of addresses and ports, % queues ──► queue ──► read
//! ```
//!
//! Without a program the kernel sends a flow to the queue to which the last packet of the *other*
//! direction was written; by a hash until there is one, and after three seconds without one
//! (`tun_flow_update`, `tun_automq_select_queue` and `TUN_FLOW_EXPIRE` in `drivers/net/tun.c`). So
//! it moves a flow while packets of it wait in the old queue: at the flow's start, and whenever the
//! other direction moves to another queue. Packets of the new queue may then be received first. A
//! steering program (`TUNSETSTEERINGEBPF`, since Linux 4.16) prevents that.
//!
//! The hash is the same for both directions of a flow. Fragments and packets without ports are
//! hashed by their addresses. Other packets, and IP behind more than two VLAN tags, go to the first
//! queue.

use crate::config::Kind;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use towpath_sys::bpf::asm::{Alu, Asm, If, Label, R0, R1, R2, R6, R7, R8, R9, Reg, Size};
use towpath_sys::bpf::{self, Program};
use towpath_sys::tun;

/// A device whose queues are chosen by a program, until this is dropped.
#[derive(Debug)]
pub struct Steering(File);

impl Steering {
    /// Attaches the program to the device of a descriptor, for all its queues.
    ///
    /// # Errors
    /// The error of `bpf(2)` (`EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`) or of the ioctl.
    pub fn attach(queue: &File, kind: Kind) -> io::Result<Steering> {
        let program = Program::load(bpf::ProgramType::SocketFilter, &program(kind)?, "towpath_steer")?;
        // The device holds the program, so its descriptor can be closed.
        tun::set_steering(queue, program.as_raw_fd())?;
        Ok(Steering(queue.try_clone()?))
    }
}

impl Drop for Steering {
    /// Detaches the program: a persistent device outlives the process.
    fn drop(&mut self) {
        let _ = tun::set_steering(&self.0, -1);
    }
}

/// Protocols that begin with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [i32; 5] = [6, 17, 33, 132, 136];
/// Odd, and without a pattern: the golden ratio, and a prime of xxHash.
const MIX: [u32; 2] = [0x9e37_79b1, 0x85eb_ca77];

/// The offset of the IP header, then of the transport header.
const AT: Reg = R7;
const HASH: Reg = R8;
const PROTOCOL: Reg = R9;

/// The program: returns the packet's hash, of 32 bits.
fn program(kind: Kind) -> io::Result<Vec<u64>> {
    let mut a = Asm::default();
    let (v4, v6, mix) = (a.label(), a.label(), a.label());
    a.reg(Alu::Mov, R6, R1);
    match kind {
        Kind::Tun => {
            a.imm(Alu::Mov, AT, 0);
            a.packet(Size::B1, AT, 0);
            a.imm(Alu::Right, R0, 4);
            a.jump_imm(If::Equal, R0, 4, v4);
            a.jump_imm(If::Equal, R0, 6, v6);
        }
        Kind::Tap => ethernet(&mut a, v4, v6),
    }
    a.imm(Alu::Mov, R0, 0);
    a.exit();

    let transport = a.label();
    a.place(v4);
    a.packet(Size::B4, AT, 12);
    a.reg32(Alu::Mov, HASH, R0);
    mix_in(&mut a, 16);
    a.packet(Size::B1, AT, 9);
    a.reg(Alu::Mov, PROTOCOL, R0);
    // A fragment: more follow, or its offset is not 0.
    a.packet(Size::B2, AT, 6);
    a.jump_imm(If::AnyBit, R0, 0x3fff, mix);
    a.packet(Size::B1, AT, 0);
    a.imm(Alu::And, R0, 15);
    a.imm(Alu::Left, R0, 2);
    a.reg(Alu::Add, AT, R0);
    a.jump(transport);

    a.place(v6);
    a.imm(Alu::Mov, HASH, 0);
    (8..40).step_by(4).for_each(|word| mix_in(&mut a, word));
    a.packet(Size::B1, AT, 6);
    a.reg(Alu::Mov, PROTOCOL, R0);
    a.imm(Alu::Add, AT, 40);

    a.place(transport);
    let ports = a.label();
    for protocol in WITH_PORTS {
        a.jump_imm(If::Equal, PROTOCOL, protocol, ports);
    }
    a.jump(mix);
    a.place(ports);
    a.packet(Size::B4, AT, 0);
    a.reg32(Alu::Mov, R2, R0);
    a.imm32(Alu::Right, R2, 16);
    a.reg32(Alu::Xor, R0, R2);
    a.imm32(Alu::And, R0, 0xffff);
    a.imm32(Alu::Mul, HASH, MIX[0]);
    a.reg32(Alu::Add, HASH, R0);

    a.place(mix);
    a.reg32(Alu::Mov, R0, HASH);
    a.imm32(Alu::Right, R0, 16);
    a.reg32(Alu::Xor, R0, HASH);
    a.imm32(Alu::Mul, R0, MIX[1]);
    a.imm32(Alu::Right, R0, 16);
    a.exit();
    a.finish()
}

/// Moves `AT` to the IP header behind an Ethernet header and up to two tags; jumps to `v4` or `v6`.
fn ethernet(a: &mut Asm, v4: Label, v6: Label) {
    let untagged = a.label();
    a.imm(Alu::Mov, AT, 14);
    a.packet(Size::B2, AT, -2);
    for _ in 0..2 {
        let tagged = a.label();
        a.jump_imm(If::Equal, R0, 0x8100, tagged);
        a.jump_imm(If::Differs, R0, 0x88a8, untagged);
        a.place(tagged);
        a.imm(Alu::Add, AT, 4);
        a.packet(Size::B2, AT, -2);
    }
    a.place(untagged);
    a.jump_imm(If::Equal, R0, 0x0800, v4);
    a.jump_imm(If::Equal, R0, 0x86dd, v6);
}

/// Mixes a word of the IP header into the hash.
fn mix_in(a: &mut Asm, word: i32) {
    a.packet(Size::B4, AT, word);
    a.reg32(Alu::Xor, HASH, R0);
}

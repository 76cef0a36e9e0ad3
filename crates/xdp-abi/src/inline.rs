//! The header's inline helpers as functions, which libxdp exports too: for languages that can't
//! inline C, and for compilers that don't.
//!
//! # Safety
//!
//! For all of them: `ring` points to a ring that
//! [`xsk_umem__create`](crate::umem::xsk_umem__create) or the creation of a socket wrote, whose
//! socket has not been deleted. A producer's function gets a ring that the program produces for, a
//! consumer's function one that it consumes from. `idx` may be written to. One thread at a time
//! uses a ring. As in the header nothing is checked: these run for every packet.

#![allow(clippy::missing_safety_doc, reason = "the module's documentation is that of all")]

use crate::abi::{Desc, Ring};
use libc::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// A shared counter.
///
/// # Safety
/// It is one of a ring's, as above.
unsafe fn word<'a>(at: *mut u32) -> &'a AtomicU32 {
    // SAFETY: aligned, mapped as long as the ring is, and accessed by both sides as an atomic only.
    unsafe { AtomicU32::from_ptr(at) }
}

/// The entry at a counter.
///
/// # Safety
/// As above.
unsafe fn entry<T>(ring: *const Ring, idx: u32) -> *mut T {
    // SAFETY: the mask keeps the index inside of the ring.
    unsafe { (*ring).ring.cast::<T>().add((idx & (*ring).mask) as usize) }
}

/// The entry of a FILL ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_prod__fill_addr(ring: *mut Ring, idx: u32) -> *mut u64 {
    // SAFETY: as the caller promises.
    unsafe { entry(ring, idx) }
}

/// The entry of a COMPLETION ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_cons__comp_addr(ring: *const Ring, idx: u32) -> *const u64 {
    // SAFETY: as the caller promises.
    unsafe { entry(ring, idx) }
}

/// The entry of a TX ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_prod__tx_desc(ring: *mut Ring, idx: u32) -> *mut Desc {
    // SAFETY: as the caller promises.
    unsafe { entry(ring, idx) }
}

/// The entry of an RX ring.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_cons__rx_desc(ring: *const Ring, idx: u32) -> *const Desc {
    // SAFETY: as the caller promises.
    unsafe { entry(ring, idx) }
}

/// Whether the other side sleeps and needs a kick.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_prod__needs_wakeup(ring: *const Ring) -> c_int {
    // SAFETY: as the caller promises.
    let flags = unsafe { word((*ring).flags) };
    // The header leaves the fence of [`towpath_packet::notify`] out; a function can afford it.
    std::sync::atomic::fence(Ordering::SeqCst);
    (flags.load(Ordering::Relaxed) & 1) as c_int
}

/// Entries that can be reserved. Reads the shared counter only if there are fewer than `nb`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_prod_nb_free(ring: *mut Ring, nb: u32) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        let free = (*ring).cached_cons.wrapping_sub((*ring).cached_prod);
        if free >= nb {
            return free;
        }
        // Acquire: the other side read the entries before it counted them.
        (*ring).cached_cons = word((*ring).consumer).load(Ordering::Acquire).wrapping_add((*ring).size);
        (*ring).cached_cons.wrapping_sub((*ring).cached_prod)
    }
}

/// Entries that can be peeked, up to `nb`. Reads the shared counter only if the cached one shows
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_cons_nb_avail(ring: *mut Ring, nb: u32) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        if (*ring).cached_prod == (*ring).cached_cons {
            // Acquire: the other side wrote the entries before it counted them.
            (*ring).cached_prod = word((*ring).producer).load(Ordering::Acquire);
        }
        (*ring).cached_prod.wrapping_sub((*ring).cached_cons).min(nb)
    }
}

/// Reserves `nb` entries from `*idx` on; 0 if there are fewer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_prod__reserve(ring: *mut Ring, nb: u32, idx: *mut u32) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        if xsk_prod_nb_free(ring, nb) < nb {
            return 0;
        }
        idx.write((*ring).cached_prod);
        (*ring).cached_prod = (*ring).cached_prod.wrapping_add(nb);
    }
    nb
}

/// Submits `nb` entries that were reserved and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_prod__submit(ring: *mut Ring, nb: u32) {
    // SAFETY: as the caller promises.
    let producer = unsafe { word((*ring).producer) };
    // Release: the entries come before the counter that covers them.
    producer.store(producer.load(Ordering::Relaxed).wrapping_add(nb), Ordering::Release);
}

/// Peeks up to `nb` entries, from `*idx` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_cons__peek(ring: *mut Ring, nb: u32, idx: *mut u32) -> u32 {
    // SAFETY: as the caller promises.
    unsafe {
        let entries = xsk_cons_nb_avail(ring, nb);
        if entries > 0 {
            idx.write((*ring).cached_cons);
            (*ring).cached_cons = (*ring).cached_cons.wrapping_add(entries);
        }
        entries
    }
}

/// Cancels the peek of the last `nb` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_cons__cancel(ring: *mut Ring, nb: u32) {
    // SAFETY: as the caller promises.
    unsafe { (*ring).cached_cons = (*ring).cached_cons.wrapping_sub(nb) };
}

/// Releases `nb` entries that were read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_ring_cons__release(ring: *mut Ring, nb: u32) {
    // SAFETY: as the caller promises.
    let consumer = unsafe { word((*ring).consumer) };
    // Release: the reads of the entries come before the other side's next writes to them.
    consumer.store(consumer.load(Ordering::Relaxed).wrapping_add(nb), Ordering::Release);
}

/// The bytes at an address of the UMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xsk_umem__get_data(umem_area: *mut c_void, addr: u64) -> *mut c_void {
    umem_area.cast::<c_char>().wrapping_add(addr as usize).cast()
}

/// Bits of an unaligned address that hold the beginning of its chunk.
const BASE: u32 = 48;

/// The beginning of an address's chunk.
#[unsafe(no_mangle)]
pub extern "C" fn xsk_umem__extract_addr(addr: u64) -> u64 {
    addr & ((1 << BASE) - 1)
}

/// The offset of an address.
#[unsafe(no_mangle)]
pub extern "C" fn xsk_umem__extract_offset(addr: u64) -> u64 {
    addr >> BASE
}

/// Beginning of the chunk plus offset.
#[unsafe(no_mangle)]
pub extern "C" fn xsk_umem__add_offset_to_addr(addr: u64) -> u64 {
    xsk_umem__extract_addr(addr) + xsk_umem__extract_offset(addr)
}

//! `towpath_gro_split`: a super-packet in, ordinary packets out.

use crate::abi::{Offload, TakeSegment};
use crate::buffer::offload;
use crate::engine::{INVALID, link};
use std::ffi::{c_int, c_void};
use towpath_gro::{Checksums, Split};

/// `-EMSGSIZE`.
const TOO_LONG: c_int = -90;

/// Splits a super-packet.
///
/// # Safety
/// `packet` points to `len` bytes, `buffer` to `room` others, `described` to an offload; `segment`
/// is a function as the header has it, which does not write to either. Null pointers are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_split(
    packet: *const u8,
    len: usize,
    link_number: u8,
    described: *const Offload,
    partial: c_int,
    buffer: *mut u8,
    room: usize,
    segment: Option<TakeSegment>,
    context: *mut c_void,
) -> c_int {
    const MOST: usize = isize::MAX as usize;
    // SAFETY: the caller's promise.
    let described = unsafe { described.as_ref() };
    let (Some(described), Some(segment), Some(link)) = (described, segment, link(link_number)) else {
        return INVALID;
    };
    if packet.is_null() || buffer.is_null() || len > MOST || room > MOST {
        return INVALID;
    }
    // SAFETY: the caller's promise; both are not null.
    let (packet, buffer) =
        unsafe { (std::slice::from_raw_parts(packet, len), std::slice::from_raw_parts_mut(buffer, room)) };
    let checksums = if partial != 0 { Checksums::Partial } else { Checksums::Complete };
    let split = offload(*described, len)
        .and_then(|offload| Split::new(std::iter::once(packet), link, &offload, checksums).ok());
    let Some(mut split) = split else { return INVALID };
    // The first segment is the longest.
    if split.next_len().is_some_and(|len| len > room) {
        return TOO_LONG;
    }
    let mut count = 0;
    while let Some(len) = split.next_len()
        && let Some(out) = buffer.get_mut(..len)
        && let Some(offload) = split.write(out)
    {
        let header = offload.to_virtio(len).unwrap_or_default();
        // SAFETY: the function is the program's; the bytes and the header live across the call.
        unsafe { segment(context, out.as_ptr(), len, &header) };
        count += 1;
    }
    count
}

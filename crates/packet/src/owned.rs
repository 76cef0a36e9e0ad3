//! Owned buffers: packets of bytes that the process already has, in a `Vec`, a `Bytes`, a mapping.
//!
//! ```text
//!   one allocation:  │ Meta │ how to free it │ the owner of the bytes │
//!                       └─ data ──────────────────────► bytes, wherever they are
//! ```
//!
//! Nothing is copied, and no pool is needed: the packet brings its Meta. Such a packet is a single
//! [external buffer](Packet::is_extbuf), and every part of the datapath treats it as one. It
//! differs from a piece of an [`ExtBufPool`](crate::ExtBufPool) in two things: its bytes are
//! trusted, because nothing can write to them while the owner is alive, and it lies in no region.
//! A device can map regions only, so its driver copies the packet.

use crate::meta::Meta;
use crate::packet::Packet;
use crate::pool::{Kind, PoolConfig, PoolShared};
use std::ptr::NonNull;
use std::sync::LazyLock;

/// The pool of all owned buffers. It has no chunks: each buffer is an allocation of its own, to
/// which it returns.
static POOL: LazyLock<PoolShared> =
    LazyLock::new(|| PoolShared::build(&PoolConfig::default().capacity(0).max_caches(0), Kind::Owned, None, None));

/// The allocation of an owned buffer. The first two fields lie at the same place for every `T`.
#[repr(C)]
struct Owned<T> {
    meta: Meta,
    free: unsafe fn(NonNull<Meta>),
    owner: T,
}

/// Frees an owned buffer, and drops its owner.
///
/// # Safety
/// `meta` is the first field of an `Owned<T>` that came from a box. The caller owns it, and gives
/// it up.
unsafe fn free<T>(meta: NonNull<Meta>) {
    // SAFETY: by contract. The pointer was made of that of the box, so it may access all of it.
    drop(unsafe { Box::from_raw(meta.cast::<Owned<T>>().as_ptr()) });
}

/// Frees linked owned buffers.
///
/// # Safety
/// The caller owns `first ..= last`, linked, of the pool of owned buffers, and gives them up.
#[cold]
pub(crate) unsafe fn free_run(first: NonNull<Meta>, last: NonNull<Meta>) {
    let mut at = Some(first);
    while let Some(meta) = at {
        // SAFETY: every Meta of this pool is the first field of an `Owned`, of which the prefix
        // does not depend on the type. The successor is read before the buffer is freed.
        unsafe {
            at = if meta == last { None } else { NonNull::new(meta.as_ref().next) };
            (meta.cast::<Owned<()>>().as_ref().free)(meta);
        }
    }
}

/// Bytes that a packet can't be made of, because there are none or too many. Nothing was copied,
/// and the owner is returned.
#[non_exhaustive]
pub struct BadLength<T> {
    /// The owner of the bytes.
    pub owner: T,
    /// Their number.
    pub len: usize,
}

impl<T> std::fmt::Display for BadLength<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "packet of {} bytes: must be from 1 to 65535; longer data is given as fragments", self.len)
    }
}

impl<T> std::fmt::Debug for BadLength<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BadLength").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<T> std::error::Error for BadLength<T> {}

impl Packet {
    /// A packet of bytes that the process already has, without a copy: a `Vec<u8>`, a `Box<[u8]>`,
    /// an `Arc<[u8]>`, a `&'static [u8]`, a `Bytes`.
    ///
    /// The packet is a single [external buffer](Packet::is_extbuf): it has no linear part, no
    /// headroom, and its bytes are read only. [`Cache::ensure_head`](crate::Cache::ensure_head)
    /// puts a head with room for headers in front of it, and [`append`](Packet::append) chains it
    /// behind a head that has some. The kernel sends it from where it lies; for a device it is
    /// copied, and [counted](crate::Counters::copied) as such.
    ///
    /// It costs one allocation of 128 bytes, with an owner of up to 56 bytes. The owner is dropped
    /// with the packet, on the thread that drops it: it should not block there, and the process
    /// ends if it panics. `as_ref` is called once.
    ///
    /// ```
    /// use towpath_packet::Packet;
    ///
    /// let frame = vec![0u8; 60];
    /// let at = frame.as_ptr();
    /// let packet = Packet::from_owner(frame)?;
    /// assert_eq!(packet.chunks().next().map(|piece| piece.as_ptr()), Some(at));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BadLength`], with the owner, for no bytes or more than 65535.
    pub fn from_owner<T: AsRef<[u8]> + Send + 'static>(owner: T) -> Result<Packet, BadLength<T>> {
        let mut meta = Meta::free(NonNull::from(&*POOL), std::ptr::null_mut(), 0);
        meta.set_extbuf_head(NonNull::dangling(), 0);
        let owned = NonNull::from(Box::leak(Box::new(Owned { meta, free: free::<T>, owner })));
        // SAFETY: the Meta was prepared as an external buffer, for now without bytes. From here on
        // the packet owns the allocation, also if `as_ref` panics.
        let packet = unsafe { Packet::from_meta(owned.cast()) };
        // SAFETY: the packet is alive, and nothing refers to its owner but this.
        let bytes = unsafe { &(*owned.as_ptr()).owner }.as_ref();
        let (at, len) = (NonNull::from(bytes).cast(), bytes.len());
        match u16::try_from(len) {
            Ok(short) if short > 0 => {
                // SAFETY: the packet owns its Meta, and lives as long as the owner of the bytes.
                unsafe { (*packet.as_ptr()).set_extbuf_head(at, short) };
                Ok(packet)
            }
            _ => {
                let meta = packet.into_meta();
                // SAFETY: the packet owned the allocation, which came from this box.
                let owned = unsafe { Box::from_raw(meta.cast::<Owned<T>>().as_ptr()) };
                Err(BadLength { owner: owned.owner, len })
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;

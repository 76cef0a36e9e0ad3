//! What the ports backed by the kernel's interfaces share.
//!
//! ```text
//!   crafted   packets that find out what the kernel takes
//!   landing   the buffers that a packet of unknown length is read into
//!   link      is the interface up, down, gone?
//!   ability   what was asked for, what was found, what is used
//! ```

pub(crate) mod ability;
pub(crate) mod crafted;
pub(crate) mod landing;
pub(crate) mod link;

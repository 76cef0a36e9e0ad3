//! Packet headers as views, one-pass dissection, flow hashes and Internet checksums.

//! Packet memory: regions, buffers, pools, rings, and the traits that ports implement.

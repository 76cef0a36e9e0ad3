//! Ports, workers and counters: the part of towpath that moves packets.

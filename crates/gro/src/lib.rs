//! A standalone GRO/GSO engine: coalescing and splitting of TCP, UDP and tunnels.

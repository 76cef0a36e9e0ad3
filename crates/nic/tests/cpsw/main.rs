//! The CPSW driver on its model: each frame is stamped, a seed decides each step, and the model is
//! strict.
//!
//! # Claims and tests
//!
//! | | claim | tests |
//! |---|---|---|
//! | T1 | a descriptor is in one place | `t1_…` in `conservation` |
//! | T2 | frames keep their order, content and number, with any prefetch | `t2_…` in `order` |
//! | T3 | few descriptors turn over; the wire shows no difference to a `gen_pool` | `t3_…` in `order` |
//! | T4 | a recycled descriptor carries nothing over | `t4_…` in `stale` |
//! | T5 | batch and ring sizes, wrap at each slot, accesses by the formulas | `t5_…` in `batches` |
//! | T6 | full and starved rings | `t6_…` in `stalls` |
//! | T7 | teardown after every step | `t7_…` in `teardown` |
//! | T8 | faults at every call | `t8_…` in `faults` and `protection` |
//! | T9 | ports that share | `t9_…` in `stalls` |
//! | T10 | threads | `t10_…` in `threads`, and by loom in `src/cpsw/rx/demux.rs`; independent channels: `waits` |
//! | T11 | seeded defects | the list `mutants`, see below |
//! | T12 | both families, exposed and message mode, with and without tags | each test over `Variant::ALL`; `t12_…` in `order` |
//! | T13 | accesses by batch size, with and without batches | `t13_…` in `batches`; times: `towpath bench batch` |
//!
//! # Defects and the tests that catch them
//!
//! `mutants` lists these defects for `.ci/mutants`, which fails unless the test fails. The
//! lettered defects were found by reading the Linux series that recycles and batches CPPI
//! descriptors; the others violate rules of the model.
//!
//! | defect | mutant | caught by |
//! |---|---|---|
//! | a | a doorbell of 128 is one of −128 | `t13_reception_costs…` |
//! | b | a pop whose count is not masked acknowledges teardown | `t2_frames_arrive…` |
//! | c | a descriptor is freed while the device has it | `t2_frames_arrive…` |
//! | d | credits that ignore staged packets | `staged_packets_have_their_slots…` |
//! | e | descriptors lost with a packet that was refused | `t8_a_packet_of_memory…` |
//! | f | stranded when the ring is full; at the end of a burst | `packets_staged_before…`, `a_burst_that_is_shorter…` |
//! | g | two locks taken in two orders | `t10_four_threads…` (it hangs) |
//! | h | a channel used by two threads at once | `t10_four_threads…` |
//! | i | descriptors freed twice | `t7_teardown…` |
//! | j | doorbells for a ring in message mode | `t2_frames_arrive…` |
//! | k | one lock for all channels | `a_queue_in_the_middle_of_a_doorbell…` |
//! | l | a port with nothing in flight never gets the slots that others freed | `t9_a_port_that_has_nothing_in_flight…` |
//! | m | a stale control word | `t4_checksums…` |
//! | M2 | one slot too many | `t6_a_stalled_port_takes…` |
//! | M3 | one popped too many; popped while the channel runs | `t2_frames_arrive…`, `t7_teardown…` |
//! | M4 | slot stored to again, or after its doorbell; descriptor after its doorbell | `t2_frames_arrive…` |
//! | M5 | element zero, out of line, beside its slot, behind the descriptors, without tag, announced twice | `t2_frames_arrive…` |
//! | M6 | ring reset while its channel runs | `everything_can_be_brought_up…` |
//! | M6 | ring not set up; elements of message mode stored to memory, in halves, elsewhere in the window, too many | `t2_frames_arrive…` |
//! | M8 | 0 returned with completions left: the receiver sleeps for ever | `m8_a_burst_of_damaged_frames…` |
//! | M13 | a frame longer than its buffers is accepted | `a_frame_that_claims_to_be_longer…` |
//! | policy | unmapped while the device has it; not synchronised, in either direction; one wait per packet | `frames_pass_under_every_policy…`, `a_device_that_works_on_copies…`, `a_burst_waits_once…` |
//! | policy | handed over before the invalidation, or without it | `late` |
//! | M14 | channels contend by fixed priority | `no_channel_starves…` |
//! | M18 | no selector of the input port, another tag, another SoC's ring | `t2_two_ports…`, `t2_frames_arrive…`, `traffic_passes_with…` |
//! | M19 | a MAC that goes on without a link, at another speed, or past a short loss | `without_a_link…`, `a_link_that_comes_back…` |
//! | M20 | a short preamble on the management bus; a PHY left without power | `a_phy_that_negotiates…`, `a_phy_without_power…` |
//! | M15 | the marker accepted before the last completions | `t7_teardown…` |
//! | M15 | no room for the marker on a full completion ring | `the_end_of_a_teardown_shows…` |
//! | M16 | channel disabled without teardown | `t7_teardown…` |
//!
//! `crates/model/tests/cpsw` shows that the model detects each violation of M1 to M17 by itself.

mod batches;
mod chains;
mod conservation;
mod extbuf;
mod faults;
mod interrupts;
mod late;
mod link;
mod numbers;
mod order;
mod protection;
mod rig;
mod stale;
mod stalls;
mod teardown;
mod threads;
mod waits;

//! The CPSW driver on its model: every frame stamped, every step decided by a seed, the model strict.
//!
//! # What is shown, and where
//!
//! | | claim | tests |
//! |---|---|---|
//! | T1 | a descriptor is in one place | `t1_…` in `conservation` |
//! | T2 | frames keep order, content and number, with every prefetch | `t2_…` in `order` |
//! | T3 | few descriptors turn over; the wire sees no difference to a pool | `t3_…` in `order` |
//! | T4 | nothing stale in a descriptor that is used again | `t4_…` in `stale` |
//! | T5 | sizes of batches and rings, wrapping at every slot, accesses by the formulas | `t5_…` in `batches` |
//! | T6 | full and starved rings | `t6_…` in `stalls` |
//! | T7 | teardown after every step | `t7_…` in `teardown` |
//! | T8 | faults at every call | `t8_…` in `faults` and `protection` |
//! | T9 | ports that share | `t9_…` in `stalls` |
//! | T10 | threads | `t10_…` in `threads`, and by loom in `src/cpsw/exchange.rs`; who waits for whom: `waits` |
//! | T11 | seeded defects | the script `mutants`, see below |
//! | T12 | both families, exposed rings and messages, tagged and not | every test that runs over `Way::ALL`; `t12_…` in `order` |
//! | T13 | accesses against batch size, before and after | `t13_…` in `batches`; times: `towpath bench batch` |
//!
//! # Defects, and the tests that catch them
//!
//! `mutants` puts each of these into the driver, and fails unless the test does. The letters are the defects that were found by reading
//! Linux' series that recycles and batches CPPI descriptors; the others are violations of the model's rules.
//!
//! | defect | mutant | caught by |
//! |---|---|---|
//! | a | a doorbell of 128 is one of −128 | `t13_reception_costs…` |
//! | b | a pop whose count is not masked acknowledges teardown | `t2_frames_arrive…` |
//! | c | a descriptor is given back before the device is through with it | `t2_frames_arrive…` |
//! | d | credits that forget what is staged | `what_is_staged_has_its_slots…` |
//! | e | descriptors lost with a packet that was refused | `t8_a_packet_of_memory…` |
//! | f | stranded when the ring is full; at the end of a burst | `what_was_staged_before…`, `a_burst_that_is_shorter…` |
//! | g | two locks taken in two orders | `t10_four_threads…` (it hangs) |
//! | h | a channel used by two threads at once | `t10_four_threads…` |
//! | i | descriptors given back twice | `t7_teardown…` |
//! | j | doorbells for a ring of messages | `t2_frames_arrive…` |
//! | k | one lock for all channels | `a_queue_that_is_in_the_middle_of_a_doorbell…` |
//! | l | a port with nothing under way never gets what others gave back | `t9_a_port_that_has_nothing_under_way…` |
//! | m | a control word left from the packet before | `t4_checksums…` |
//! | n | credits from the forward count | `t6_a_stalled_port_takes…` |
//! | M2 | one slot too many | `t6_a_stalled_port_takes…` |
//! | M3 | one popped too many; popped while the channel runs | `t2_frames_arrive…`, `t7_teardown…` |
//! | M4 | slot stored to again, or after its doorbell; descriptor after its doorbell | `t2_frames_arrive…` |
//! | M5 | element zero, out of line, beside its slot, beyond the descriptors, without tag, announced twice | `t2_frames_arrive…` |
//! | M6 | ring reset while its channel runs | `everything_can_be_brought_up…` |
//! | M6 | ring not set up; messages stored to memory, in halves, elsewhere in the window, too many | `t2_frames_arrive…` |
//! | M8 | nothing returned, and something left: asleep for good | `m8_a_burst_of_damaged_frames…` |
//! | M13 | a frame said to be longer than its buffers is believed | `a_frame_that_is_said_to_be_longer…` |
//! | policy | unmapped while the device has it; not synchronised either way; a wait a packet | `frames_pass_under_every_policy…`, `a_device_that_works_on_copies…`, `a_burst_waits_once…` |
//! | M15 | the marker believed before the last completions | `t7_teardown…` |
//! | M15 | no room for the marker on a full ring of completions | `the_end_of_a_teardown_shows…` |
//! | M16 | off without teardown | `t7_teardown…` |
//!
//! That the model notices each violation of M1 to M17 by itself is shown in `crates/model/tests/cpsw`.

mod batches;
mod chains;
mod conservation;
mod faults;
mod interrupts;
mod order;
mod pages;
mod protection;
mod rig;
mod stale;
mod stalls;
mod teardown;
mod threads;
mod waits;

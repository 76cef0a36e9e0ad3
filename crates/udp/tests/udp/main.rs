//! Batches on sockets of this machine: on its loopback, and between namespaces.

mod common;
mod loopback;
mod losses;
mod paths;
mod refusals;

use towpath_testing::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

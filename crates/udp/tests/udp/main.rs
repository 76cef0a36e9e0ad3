//! Batches on sockets of this machine: on its loopback, and between namespaces.
//!
//! | module | what |
//! |---|---|
//! | `loopback` | runs, messages and datagrams |
//! | `losses` | buffers, and what they lose |
//! | `paths` | addresses, interfaces and traffic classes |
//! | `refusals` | devices and paths that refuse a message of several datagrams |
//! | `common` | what several of them use |

mod common;
mod loopback;
mod losses;
mod paths;
mod refusals;

use towpath_testing::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

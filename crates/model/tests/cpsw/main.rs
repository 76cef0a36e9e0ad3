//! A hand-written host violates each rule of the CPSW model, and the model names the rule.
//!
//! | module | what |
//! |---|---|
//! | `rules` | one rule violated by each test |
//! | `switch`, `mac` | where frames go; MACs and the management bus of the PHYs |
//! | `teardown` | the teardown of a channel |
//! | `firmware` | messages that firmware refuses |
//! | `host` | the host, without a driver |

mod firmware;
mod host;
mod mac;
mod rules;
mod switch;
mod teardown;

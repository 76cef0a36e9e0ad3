//! Every rule of the CPSW model broken by a host written by hand, and named.

mod host;
mod rules;
mod switch;
mod teardown;

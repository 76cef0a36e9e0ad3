//! A hand-written host violates each rule of the CPSW model, and the model names the rule.

mod firmware;
mod host;
mod mac;
mod rules;
mod switch;
mod teardown;

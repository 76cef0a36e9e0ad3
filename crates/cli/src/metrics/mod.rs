//! `--metrics`: the state of a running `towpath` by HTTP.
//!
//! ```text
//!   GET /metrics   OpenMetrics text, or Prometheus' own format   a scraper
//!   GET /state     the document as JSON                          the page, scripts
//!   GET /          the page                                      a browser
//! ```
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`Metrics`], the server |
//! | `address` | [`Address`]: where it listens |
//! | `http` | requests and responses; headers are parsed by `httparse` |
//! | `table` | the metrics: name, type, unit, help, and what they are read from |
//! | `format` | the two text formats |
//! | `page.html` | the page; it shows what `/state` answers |
//!
//! One thread serves a bounded number of clients (`server`), whose requests are at most 8 KiB long.
//! Nothing can be changed by HTTP. There is no authentication: the address decides what can
//! connect, and is that of the loopback unless another one is named.

mod address;
mod format;
mod http;
mod table;

pub(crate) use address::{Address, Metrics};

//! The log: `tracing` events, as text, as JSON, or to the journal.
//!
//! It has what units, their ports (`events`) and reloads do.

use clap::ValueEnum;
use std::io;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// To the journal if systemd connected standard error to it, otherwise as text
    Auto,
    /// Lines for people
    Text,
    /// An object per line
    Json,
    /// To the journal's socket
    Journald,
}

/// Has events of this level and above written.
///
/// # Errors
/// The journal's socket can't be opened.
pub(crate) fn start(level: LevelFilter, format: Format) -> io::Result<()> {
    let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let ended = |error: TryInitError| io::Error::other(error);
    let lines = || tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(false);
    let all = tracing_subscriber::registry();
    match format {
        Format::Journald => all.with(tracing_journald::layer()?.with_filter(level)).try_init().map_err(ended),
        Format::Json => all.with(lines().json().flatten_event(true).with_filter(level)).try_init().map_err(ended),
        Format::Auto if is_journal => match tracing_journald::layer() {
            Ok(journal) => all.with(journal.with_filter(level)).try_init().map_err(ended),
            Err(_) => all.with(lines().without_time().with_ansi(false).with_filter(level)).try_init().map_err(ended),
        },
        Format::Auto | Format::Text => {
            let colours = console::colors_enabled_stderr();
            all.with(lines().with_ansi(colours).with_filter(level)).try_init().map_err(ended)
        }
    }
}

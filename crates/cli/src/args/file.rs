//! Options of `run` and `reload`.

use super::{SandboxArg, span};
use crate::metrics::Address;
use crate::run::log::Format;
use clap::{Args as ClapArgs, ValueHint};
use std::path::PathBuf;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// `towpath run`. A key of the file outside of units is one of these options; the command line goes
/// before it.
#[derive(Debug, ClapArgs)]
pub(crate) struct RunFile {
    /// The file: units, each with its ports and options (docs/run.md)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Read and check the file, and end: exit code 2 and all that is wrong, with line and column
    #[arg(long)]
    pub(crate) check: bool,
    /// Stop after this time: 10s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = span, overrides_with = "duration")]
    pub(crate) duration: Option<Duration>,
    /// Make a socket at this path for 'towpath reload', 'state', 'top', 'tee', 'set', 'fdb',
    /// 'route' and 'neigh'
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, overrides_with = "control")]
    pub(crate) control: Option<PathBuf>,
    /// Serve HTTP at PORT of the loopback, ADDRESS:PORT or unix:PATH: a page at /, OpenMetrics at
    /// /metrics, JSON at /state. There is no authentication: what can connect can read
    #[arg(long, value_name = "ADDRESS", overrides_with = "metrics")]
    pub(crate) metrics: Option<Address>,
    /// Whether each unit's threads give up the rights that its ports no longer need, once they are
    /// open; the thread that opens ports at a reload keeps them
    #[arg(long, value_enum, default_value_t = SandboxArg::Prefer, env = "TOWPATH_SANDBOX", value_name = "LEVEL", overrides_with = "sandbox", help_heading = "Rights")]
    pub(crate) sandbox: SandboxArg,
    /// What is logged: error, warn, info, debug, off
    #[arg(long, value_name = "LEVEL", default_value = "info", overrides_with = "log", help_heading = "Output")]
    pub(crate) log: LevelFilter,
    /// How it is logged, on standard error: text or json; journald: to the journal's socket, with
    /// fields; auto: to the journal if systemd connected it
    #[arg(long, value_enum, default_value_t = Format::Auto, overrides_with = "log_format", help_heading = "Output")]
    pub(crate) log_format: Format,
    /// JSON on standard output: a line per interval, and the summary of each unit
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Time between live updates
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1s", overrides_with = "interval", help_heading = "Output")]
    pub(crate) interval: Duration,
    /// No live updates, only the summaries
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// `towpath reload`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Reload {
    /// The socket that the running towpath was given
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: PathBuf,
    /// One line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

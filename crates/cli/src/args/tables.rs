//! Options of `fdb`, `route` and `neigh`: the tables of a running instance.

use super::{number, time};
use crate::control::tables::Target;
use clap::{Args as ClapArgs, ValueHint};
use std::path::PathBuf;
use std::time::Duration;
use towpath::wire::ethernet::{MacText, parse_mac};

/// Which table, and how much of it.
#[derive(Debug, ClapArgs)]
pub(crate) struct TableArgs {
    /// The socket that the running towpath was given
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) control: PathBuf,
    /// The unit of 'towpath run'; all without it
    #[arg(long, value_name = "NAME")]
    pub(crate) unit: Option<String>,
    /// Only what is behind this port, as 'towpath state' names it
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<String>,
    /// The first lines alone
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) limit: Option<u64>,
    /// One line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl TableArgs {
    /// Most lines.
    pub(crate) fn limit(&self) -> usize {
        self.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
    }
}

/// `towpath fdb`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Fdb {
    /// This address alone
    #[arg(value_name = "MAC", value_parser = mac)]
    pub(crate) mac: Option<String>,
    /// Only addresses of this VLAN
    #[arg(long, value_name = "VLAN", value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub(crate) vlan: Option<u16>,
    /// Forget the addresses behind this port first
    #[arg(long, value_name = "PORT")]
    pub(crate) flush: Option<String>,
    /// Set how long an address without a packet stays; 0s: for ever
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) ageing: Option<Duration>,
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// `towpath route`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Route {
    /// Routes to an address, the one that is used first; routes in a prefix; or 'default'
    #[arg(value_name = "ADDRESS|PREFIX")]
    pub(crate) to: Option<Target>,
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// `towpath neigh`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Neigh {
    /// This address, those in a prefix, or those with a MAC address
    #[arg(value_name = "ADDRESS|PREFIX|MAC")]
    pub(crate) to: Option<Target>,
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

fn mac(text: &str) -> Result<String, &'static str> {
    let found = parse_mac(text).map(|mac| MacText(mac).to_string());
    found.ok_or("must be a MAC address such as 02:00:00:00:00:01")
}

//! `fdb`, `route` and `neigh`: the tables of a running bridge or router.

use crate::args::{Fdb, Neigh, Route, TableArgs};
use crate::control::fdb::{self, Addresses};
use crate::control::request::{Answer, Request};
use crate::control::tables::{HopLine, NeighbourLine, Query, RouteLine, Target};
use crate::control::{answer, unexpected};
use crate::output::outln;
use crate::units::grouped;
use std::error::Error;
use std::process::ExitCode;

/// A note that there is more than what is shown.
fn note(shown: usize, matching: Option<usize>) {
    match matching {
        Some(matching) if matching <= shown => {}
        Some(matching) => {
            eprintln!("note: {} of {} (--limit, or a filter)", grouped(shown as u64), grouped(matching as u64))
        }
        None => eprintln!("note: the first {} (--limit)", grouped(shown as u64)),
    }
}

fn query(args: &TableArgs, to: Option<Target>) -> Query {
    Query { unit: args.unit.clone(), port: args.port.clone(), to, limit: args.limit.map(|_| args.limit()) }
}

/// Lines with columns as wide as their longest value. The first line has their names.
fn print(rows: &[Vec<String>]) -> Result<(), Box<dyn Error>> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        outln!("{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// Whether the lines are of several units, which are shown then.
fn is_of_several<'a>(mut units: impl Iterator<Item = &'a str>) -> bool {
    let first = units.next();
    units.any(|unit| Some(unit) != first)
}

/// A line without its unit, unless there are several.
fn row<const N: usize>(unit: &str, several: bool, cells: [&str; N]) -> Vec<String> {
    several.then_some(unit).into_iter().chain(cells).map(str::to_owned).collect()
}

/// `towpath route`.
pub(crate) fn route(args: &Route) -> Result<ExitCode, Box<dyn Error>> {
    let control = &args.table.control;
    let Answer::Routes(found) = answer(control, &Request::Routes(query(&args.table, args.to)))? else {
        return Err(unexpected(control));
    };
    note(found.routes.len(), Some(found.matching));
    if args.table.json {
        outln!("{}", serde_json::to_string(&found)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let several = is_of_several(found.routes.iter().map(|line| line.unit.as_str()));
    let mut rows = vec![row("unit", several, ["prefix", "next hop", "port", "source"])];
    for RouteLine { unit, prefix, action, hops, mtu, source } in &found.routes {
        let source = mtu.map_or(source.clone(), |mtu| format!("{source}, mtu {mtu}"));
        if hops.is_empty() {
            rows.push(row(unit, several, [prefix, action, "-", &source]));
        }
        for (at, HopLine { via, port, weight }) in hops.iter().enumerate() {
            let via = via.map_or_else(|| "on the link".to_owned(), |via| via.to_string());
            let via = if hops.len() > 1 { format!("{via} weight {weight}") } else { via };
            let first = at == 0;
            let of = |text| if first { text } else { "" };
            rows.push(row(of(unit), several, [of(prefix), &via, port, of(&source)]));
        }
    }
    print(&rows)?;
    Ok(ExitCode::SUCCESS)
}

/// `towpath neigh`.
pub(crate) fn neigh(args: &Neigh) -> Result<ExitCode, Box<dyn Error>> {
    let control = &args.table.control;
    let Answer::Neighbours(found) = answer(control, &Request::Neighbours(query(&args.table, args.to)))? else {
        return Err(unexpected(control));
    };
    note(found.neighbours.len(), Some(found.matching));
    if args.table.json {
        outln!("{}", serde_json::to_string(&found)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let several = is_of_several(found.neighbours.iter().map(|line| line.unit.as_str()));
    let mut rows = vec![row("unit", several, ["address", "port", "mac", "state"])];
    for NeighbourLine { unit, address, port, mac, state } in &found.neighbours {
        rows.push(row(unit, several, [&address.to_string(), port, mac.as_deref().unwrap_or("-"), state]));
    }
    print(&rows)?;
    Ok(ExitCode::SUCCESS)
}

/// `towpath fdb`.
pub(crate) fn fdb(args: &Fdb) -> Result<ExitCode, Box<dyn Error>> {
    let ageing = args.ageing.map(|ageing| ageing.as_secs_f64());
    let TableArgs { control, unit, port, json, .. } = &args.table;
    let (limit, mut from) = (args.table.limit(), 0);
    let mut all: Option<Addresses> = None;
    // An answer has a page of addresses; only the first request changes anything.
    loop {
        let first = all.is_none();
        let request = fdb::Fdb {
            flush: args.flush.clone().filter(|_| first),
            ageing: ageing.filter(|_| first),
            after: all
                .as_ref()
                .and_then(|all| all.addresses.last())
                .map(|last| (last.bridge.clone(), last.vlan, last.mac.clone())),
            unit: unit.clone(),
            port: port.clone(),
            vlan: args.vlan,
            mac: args.mac.clone(),
            limit: Some(limit - from),
        };
        let Answer::Fdb(page) = answer(control, &Request::Fdb(request))? else { return Err(unexpected(control)) };
        let (more, n) = (page.more, page.addresses.len());
        match &mut all {
            None => all = Some(page),
            Some(all) => all.addresses.extend(page.addresses),
        }
        from += n;
        if !more || n == 0 || from == limit {
            break;
        }
    }
    let Some(mut all) = all else { return Ok(ExitCode::SUCCESS) };
    if std::mem::take(&mut all.more) {
        note(all.addresses.len(), None);
    }
    if *json {
        outln!("{}", serde_json::to_string(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = all.addresses.iter().map(|line| line.port.chars().count()).max().unwrap_or(0).max(4);
    if from > 0 {
        outln!("{:>4}  {:17}  {:width$}  {:>8}", "vlan", "address", "port", "age")?;
    }
    for line in &all.addresses {
        let vlan = if line.vlan == 0 { "-".to_owned() } else { line.vlan.to_string() };
        let age = if line.r#static { "static".to_owned() } else { format!("{:.0} s", line.age) };
        outln!("{vlan:>4}  {}  {:width$}  {age:>8}", line.mac, line.port)?;
    }
    for bridge in &all.bridges {
        outln!(
            "{}: {} addresses; {} learned, {} moved, {} aged, {} flushed; {} refused at a limit; ageing {} s",
            bridge.name,
            grouped(bridge.entries),
            grouped(bridge.learned),
            grouped(bridge.moved),
            grouped(bridge.aged),
            grouped(bridge.flushed),
            grouped(bridge.refused),
            bridge.ageing
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

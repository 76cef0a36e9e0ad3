//! What a driver writes to the registers of the NIC, against what towpath writes, and the tables of
//! `docs/oracles.md` that explain each difference.

use crate::trace::{Access, Registers};
use std::collections::BTreeSet;
use std::path::Path;

/// What happens from outside while a driver has the NIC.
pub(crate) const STEPS: [&str; 4] = ["bring-up", "link up", "link down", "stop"];

/// The writes of a driver in each of [`STEPS`].
#[derive(Debug, Clone)]
pub(crate) struct Recording(pub(crate) [Vec<Access>; 4]);

/// A register whose last value differs from a step on, or a step of the order that is another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    pub(crate) step: String,
    pub(crate) what: String,
    pub(crate) theirs: String,
    pub(crate) ours: String,
}

/// The registers that differ. A difference counts in the first step that has it: what was written
/// before stays.
pub(crate) fn registers(theirs: &Recording, ours: &Recording) -> Vec<Difference> {
    let (mut a, mut b) = (Registers::default(), Registers::default());
    let (mut known, mut found) = (BTreeSet::new(), Vec::new());
    for (step, (of_theirs, of_ours)) in STEPS.into_iter().zip(theirs.0.iter().zip(&ours.0)) {
        for (registers, writes) in [(&mut a, of_theirs), (&mut b, of_ours)] {
            for write in writes {
                registers.write(write);
            }
        }
        let names: BTreeSet<_> = a.names().chain(b.names()).map(str::to_owned).collect();
        for what in names {
            let (Some(theirs), Some(ours)) = (a.value(&what), b.value(&what)) else { continue };
            if theirs != ours && known.insert((what.clone(), theirs.clone(), ours.clone())) {
                found.push(Difference { step: step.to_owned(), what, theirs, ours });
            }
        }
    }
    found
}

/// A write that the order of the steps hangs on.
struct Milestone {
    name: &'static str,
    register: &'static str,
    is_it: fn(u32) -> bool,
    /// Settings count when they are written last, switches when they are first turned. On the way
    /// to a stop, what counts last counts before the reset.
    last: bool,
}

const fn switch(name: &'static str, register: &'static str, is_it: fn(u32) -> bool) -> Milestone {
    Milestone { name, register, is_it, last: false }
}

const fn setting(name: &'static str, register: &'static str) -> Milestone {
    Milestone { name, register, is_it: |_| true, last: true }
}

const CTRL_RESET: u32 = 1 << 26;
const CTRL_MASTER_DISABLE: u32 = 1 << 2;
const CTRL_EXT_DRV_LOAD: u32 = 1 << 28;
const BMCR_RESTART: u32 = 1 << 9;
const BMCR_POWER_DOWN: u32 = 1 << 11;
const RFCTL_EXTENDED: u32 = 1 << 15;
/// RCTL and TCTL.
const ENABLE: u32 = 1 << 1;

/// From the last reset until frames pass.
const START: &[Milestone] = &[
    switch("driver loaded", "CTRL_EXT", |word| word & CTRL_EXT_DRV_LOAD != 0),
    setting("PHY settings", "PHY16"),
    setting("advertisement", "PHY4"),
    Milestone { last: true, ..switch("negotiation", "PHY0", |word| word & BMCR_RESTART != 0) },
    setting("flow control", "FCRTH"),
    switch("own address", "RAH0", |word| word != 0),
    setting("TX ring", "TDLEN0"),
    setting("TX thresholds", "TXDCTL0"),
    setting("TX arbitration", "TARC0"),
    switch("TX on", "TCTL", |word| word & ENABLE != 0),
    switch("RX descriptors", "RFCTL", |word| word & RFCTL_EXTENDED != 0),
    setting("RX ring", "RDLEN0"),
    setting("RX thresholds", "RXDCTL0"),
    setting("RX checksums", "RXCSUM"),
    setting("hash", "MRQC"),
    switch("RX on", "RCTL", |word| word & ENABLE != 0),
    switch("RX buffers", "RDT0", |word| word != 0),
    switch("vectors", "IVAR", |word| word != 0),
    switch("interrupts on", "IMS", |word| word != 0),
    switch("first frame", "TDT0", |word| word != 0),
];

/// From the order to stop.
const STOP: &[Milestone] = &[
    switch("interrupts masked", "IMC", |word| word == u32::MAX),
    switch("RX off", "RCTL", |word| word & ENABLE == 0),
    switch("TX off", "TCTL", |word| word & ENABLE == 0),
    // The bit may be set all the time: resets of QEMU leave it.
    Milestone { last: true, ..switch("bus master off", "CTRL", |word| word & CTRL_MASTER_DISABLE != 0) },
    switch("reset", "CTRL", |word| word & CTRL_RESET != 0),
    switch("driver unloaded", "CTRL_EXT", |word| word & CTRL_EXT_DRV_LOAD == 0),
    switch("PHY off", "PHY0", |word| word & BMCR_POWER_DOWN != 0),
];

impl Recording {
    /// The milestones in their order.
    fn order(&self, milestones: &[Milestone]) -> Vec<&'static str> {
        let [bring_up, link_up, _, stop] = &self.0;
        let is_reset = |write: &&Access| write.register == "CTRL" && write.value & CTRL_RESET != 0;
        let (writes, before): (Vec<_>, _) = if std::ptr::eq(milestones, STOP) {
            let reset = stop.iter().position(|write| is_reset(&write));
            (stop.iter().collect(), reset.unwrap_or(stop.len()))
        } else {
            let all: Vec<_> = bring_up.iter().chain(link_up).collect();
            let reset = all.iter().rposition(is_reset);
            (all[reset.map_or(0, |at| at + 1)..].to_vec(), usize::MAX)
        };
        let mut found: Vec<_> = milestones
            .iter()
            .filter_map(|milestone| {
                let mut at = writes
                    .iter()
                    .enumerate()
                    .filter(|(_, write)| write.register == milestone.register && (milestone.is_it)(write.value))
                    .map(|(at, _)| at);
                let at = if milestone.last { at.take_while(|&at| at < before).last() } else { at.next() };
                at.map(|at| (at, milestone.name))
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, name)| name).collect()
    }
}

/// The order of the steps that matter, where it differs: each difference is one of the milestones
/// before which or behind which the other driver does something else, or which it does not have.
/// Returns pairs that a driver has the other way round, and lone milestones as pairs of the same.
fn reversed(theirs: &Recording, ours: &Recording) -> Vec<(&'static str, &'static str)> {
    let mut pairs = Vec::new();
    for milestones in [START, STOP] {
        let (theirs, ours) = (theirs.order(milestones), ours.order(milestones));
        let place = |order: &[&str], name: &str| order.iter().position(|other| *other == name);
        for (n, a) in milestones.iter().enumerate() {
            if place(&theirs, a.name).is_some() != place(&ours, a.name).is_some() {
                pairs.push((a.name, a.name));
            }
            for b in &milestones[n + 1..] {
                let before = |order: &[&str]| Some(place(order, a.name)? < place(order, b.name)?);
                if let (Some(one), Some(other)) = (before(&theirs), before(&ours))
                    && one != other
                {
                    pairs.push((a.name, b.name));
                }
            }
        }
    }
    pairs
}

/// A line of a table in the page.
#[derive(Debug)]
struct Line(Vec<String>);

/// The lines of the tables below a heading, without their heads.
fn table(page: &str, heading: &str) -> Vec<Line> {
    let section = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading '{heading}'")).1;
    let section = section.split("\n#").next().unwrap_or_default();
    let lines = section.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
    lines.skip(2).map(|line| Line(cells(line))).collect()
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/oracles.md");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Asserts that the page explains each difference, and nothing else.
#[track_caller]
pub(crate) fn assert_explained(whose: &str, theirs: &Recording, ours: &Recording) {
    let page = page();
    let complaints = [
        unexplained_registers(&table(&page, &format!("### Registers: {whose}")), &registers(theirs, ours)),
        unexplained_order(&table(&page, &format!("### Order: {whose}")), &reversed(theirs, ours)),
    ];
    let complaints = complaints.concat();
    assert!(
        complaints.is_empty(),
        "docs/oracles.md, {whose}:\n{}\n\n{whose} starts: {:?}\ntowpath starts: {:?}\n{whose} stops: {:?}\ntowpath \
         stops: {:?}",
        complaints.join("\n"),
        theirs.order(START),
        ours.order(START),
        theirs.order(STOP),
        ours.order(STOP)
    );
}

/// Columns: step, register, their value, ours, reason, source.
fn unexplained_registers(table: &[Line], differences: &[Difference]) -> Vec<String> {
    let (mut complaints, mut open) = (Vec::new(), differences.to_vec());
    for Line(cells) in table {
        let [step, what, theirs, ours, reason, source] = &cells[..] else {
            complaints.push(format!("not six columns: {cells:?}"));
            continue;
        };
        let of_line = |d: &Difference| d.step == *step && d.what == *what && d.theirs == *theirs && d.ours == *ours;
        match open.iter().position(of_line) {
            Some(_) if reason.is_empty() || source.is_empty() => {
                complaints.push(format!("no reason or source: {cells:?}"))
            }
            Some(at) => drop(open.swap_remove(at)),
            None => complaints.push(format!("nothing needs the line: {}", cells.join(" | "))),
        }
    }
    open.sort();
    let lines =
        open.iter().map(|d| format!("no line explains: | {} | {} | {} | {} |", d.step, d.what, d.theirs, d.ours));
    complaints.extend(lines);
    complaints
}

/// Columns: milestone, reason, source. A line explains all pairs with its milestone.
fn unexplained_order(table: &[Line], pairs: &[(&'static str, &'static str)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let (mut open, all) = (pairs.to_vec(), pairs);
    for Line(cells) in table {
        let [milestone, reason, source] = &cells[..] else {
            complaints.push(format!("not three columns: {cells:?}"));
            continue;
        };
        let of_line = |pair: &(&str, &str)| pair.0 == *milestone || pair.1 == *milestone;
        let alone = all.iter().filter(|pair| of_line(pair)).any(|pair| {
            let others = table.iter().filter(|line| line.0[0] != *milestone);
            !others.clone().any(|line| line.0[0] == pair.0 || line.0[0] == pair.1)
        });
        if reason.is_empty() || source.is_empty() {
            complaints.push(format!("no reason or source: {cells:?}"));
        } else if !alone {
            complaints.push(format!("nothing needs the line: {}", cells.join(" | ")));
        }
        open.retain(|pair| !of_line(pair));
    }
    complaints.extend(open.iter().map(|(a, b)| format!("no line explains the order of '{a}' and '{b}'")));
    complaints
}

/// Faults of the page itself are found without a machine.
#[cfg(test)]
mod tests {
    use super::*;

    fn write(register: &str, value: u32) -> Access {
        Access { register: register.to_owned(), index: 0, value }
    }

    fn line(cells: &str) -> Line {
        Line(cells.split('|').map(|cell| cell.trim().to_owned()).collect())
    }

    #[test]
    fn a_difference_without_a_line_and_a_line_without_a_difference_are_found() {
        let theirs = Recording([vec![write("RCTL", 2), write("AIT", 0)], vec![write("TCTL", 2)], vec![], vec![]]);
        let ours = Recording([vec![write("RCTL", 3), write("AIT", 0)], vec![write("TCTL", 2)], vec![], vec![]]);
        let found = registers(&theirs, &ours);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(unexplained_registers(&[line("bring-up | RCTL | 0x2 | 0x3 | why | where")], &found), [""; 0]);
        let other = [line("bring-up | RCTL | 0x2 | 0x4 | why | where")];
        let complaints = unexplained_registers(&other, &found);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        let unsourced = [line("bring-up | RCTL | 0x2 | 0x3 | why | ")];
        assert_eq!(unexplained_registers(&unsourced, &found).len(), 2);
    }

    #[test]
    fn an_order_that_is_reversed_needs_a_line_and_a_line_that_explains_no_pair_alone_is_too_many() {
        let start = |order: [&str; 3]| {
            let words = order.map(|register| write(register, 2));
            Recording([words.to_vec(), vec![], vec![], vec![]])
        };
        let pairs = reversed(&start(["TCTL", "RCTL", "RDT0"]), &start(["RCTL", "RDT0", "TCTL"]));
        assert_eq!(pairs, [("TX on", "RX on"), ("TX on", "RX buffers")]);
        assert_eq!(unexplained_order(&[line("TX on | why | where")], &pairs), [""; 0]);
        assert_eq!(unexplained_order(&[line("RX on | why | where")], &pairs).len(), 1);
        let too_many = [line("TX on | why | where"), line("RX on | why | where")];
        assert_eq!(unexplained_order(&too_many, &pairs).len(), 1);
    }

    #[test]
    fn a_value_is_written_once_for_the_step_that_brings_it() {
        let theirs = Recording([vec![write("CTRL", 1)], vec![write("CTRL", 1)], vec![write("CTRL", 2)], vec![]]);
        let ours = Recording([vec![write("CTRL", 3)], vec![], vec![], vec![write("CTRL", 2)]]);
        let steps: Vec<_> = registers(&theirs, &ours).into_iter().map(|d| d.step).collect();
        assert_eq!(steps, ["bring-up", "link down"]);
    }
}

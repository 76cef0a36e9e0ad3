//! The units that run, and their reload.
//!
//! A reload opens what is new before it ends what was: if that fails, nothing has changed. A unit
//! that can't be started anew is put back as it was.

use super::plan::{Change, Live, changes};
use super::unit::{Active, Ended, NotAttached, Openers, Prepared, prepare};
use crate::args::Command;
use crate::control::Service;
use crate::file::{File, Port, Unit};
use crate::{bridge, commands, router};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath::engine::report::Reading;
use towpath::engine::router::Hop;
use towpath::packet::port::{Layer, Needs};
use towpath::sandbox::Level;
use towpath::{Directions, Observer, Opener, PortControls, RouterControl, RouterRoute, Verdicts};

/// The step of waits for workers.
const STEP: Duration = Duration::from_millis(1);
/// How long packets that other units have may take to return to their pool.
const RETURN_TIME: Duration = Duration::from_millis(500);

/// The units that run.
pub(super) struct Datapath {
    units: BTreeMap<String, Active>,
    level: Level,
    /// What can be seen of them, for other threads.
    observers: Arc<Mutex<Vec<(String, Observer)>>>,
    /// Units that have ended by themselves or by a reload.
    ended: Vec<Ended>,
}

/// What a reload did.
#[derive(Debug, Default)]
pub(crate) struct Reloaded {
    /// A line for each change.
    pub(crate) changes: Vec<String>,
    /// A line for each unit or port that is not as the file says.
    pub(crate) failures: Vec<String>,
}

fn new_openers() -> Openers {
    Arc::new(Mutex::new(Opener::new()))
}

/// Prepares units; none of them is open if one fails.
fn prepare_all<'a>(
    units: impl Iterator<Item = (&'a String, &'a Unit)>,
    opener: &Openers,
    level: Level,
) -> Result<Vec<Prepared>, String> {
    let mut all = Vec::new();
    for (name, unit) in units {
        match prepare(name, unit, opener, level) {
            Ok(prepared) => all.push(prepared),
            Err(error) => {
                all.into_iter().for_each(Prepared::abandon);
                return Err(format!("{name}: {error}"));
            }
        }
    }
    Ok(all)
}

impl Datapath {
    /// Starts all units of a file, or none.
    ///
    /// # Errors
    /// The unit that can't be started, and why.
    pub(super) fn start(file: &File, level: Level) -> Result<Datapath, Box<dyn Error>> {
        let mut datapath = Datapath { units: BTreeMap::new(), level, observers: Arc::default(), ended: Vec::new() };
        let opener = new_openers();
        let prepared = prepare_all(file.units.iter(), &opener, level)?;
        if let Err(error) = opener.lock().unwrap_or_else(PoisonError::into_inner).check() {
            prepared.into_iter().for_each(Prepared::abandon);
            return Err(error.into());
        }
        for one in prepared {
            datapath.launch(one)?;
        }
        datapath.publish();
        Ok(datapath)
    }

    fn launch(&mut self, prepared: Prepared) -> Result<(), String> {
        let name = prepared.name.clone();
        for note in &prepared.notes {
            tracing::warn!(unit = name, "{note}");
        }
        let active = prepared.launch().map_err(|error| format!("{name}: {error}"))?;
        tracing::info!(unit = name, "started");
        self.units.insert(name, active);
        Ok(())
    }

    /// Tells other threads what runs.
    fn publish(&self) {
        let all = self.units.iter().map(|(name, active)| (name.clone(), active.observer().clone())).collect();
        *self.observers.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// What the sockets of `--control` and `--metrics` answer from.
    pub(super) fn service(&self, reload: Sender<std::os::unix::net::UnixStream>) -> Service {
        let observers = self.observers.clone();
        let now = move || observers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Service { observers: Arc::new(now), reload: Some(reload) }
    }

    /// What all units use of the kernel.
    pub(super) fn needs(&self) -> Needs {
        self.units.values().fold(Needs::none(), |all, active| all.and(active.needs.clone()))
    }

    pub(super) fn observers(&self) -> impl Iterator<Item = (&str, &Observer)> {
        self.units.iter().map(|(name, active)| (name.as_str(), active.observer()))
    }

    /// The counters of all units.
    pub(super) fn read(&self) -> Option<Reading> {
        self.units.values().map(|active| active.observer().meter().read()).reduce(Reading::and)
    }

    /// The ports of all units.
    pub(super) fn controls(&self) -> PortControls {
        self.units.values().map(|active| active.observer().port_controls().clone()).collect()
    }

    /// Takes out the units whose workers have ended: their ports are gone, or have nothing more to
    /// send. Returns whether there were some.
    pub(super) fn reap(&mut self) -> bool {
        let finished = |(name, active): (&String, &Active)| active.running.is_finished().then(|| name.clone());
        let names: Vec<_> = self.units.iter().filter_map(finished).collect();
        for name in &names {
            self.end(name, false);
        }
        if !names.is_empty() {
            self.publish();
        }
        !names.is_empty()
    }

    /// Whether nothing runs any more.
    pub(super) fn is_finished(&self) -> bool {
        self.units.is_empty()
    }

    /// Stops a unit; `requested`: it has not ended by itself.
    fn end(&mut self, name: &str, requested: bool) {
        let Some(active) = self.units.remove(name) else { return };
        let ended = active.stop(name.to_owned(), requested);
        let balance = ended.summary.reading.balance();
        let (received, sent, dropped) = (balance.received, balance.sent, balance.dropped());
        if ended.has_failed() {
            for failure in ended.failures() {
                tracing::error!(unit = name, received, sent, dropped, "ended: {failure}");
            }
        } else {
            tracing::info!(unit = name, received, sent, dropped, "ended");
        }
        self.ended.push(ended);
    }

    /// Stops all units; returns what each of them did, also those that ended before.
    pub(super) fn stop(mut self) -> Vec<Ended> {
        let names: Vec<_> = self.units.keys().cloned().collect();
        self.end_all(names.iter().map(String::as_str));
        std::mem::take(&mut self.ended)
    }

    /// Stops units together: none waits for another to drain, and packets of one that another holds
    /// are freed.
    fn end_all<'a>(&mut self, names: impl Iterator<Item = &'a str> + Clone) {
        let all: Vec<_> = names.clone().filter_map(|name| self.units.get(name)).collect();
        all.iter().for_each(|active| active.running.stop_signal().stop());
        // The workers end by themselves: the time that they get to drain is limited.
        while !all.iter().all(|active| active.running.is_finished()) {
            std::thread::sleep(STEP);
        }
        let end = Instant::now() + RETURN_TIME;
        while all.iter().any(|active| active.observer().meter().buffers_away() > 0) && Instant::now() < end {
            std::thread::sleep(STEP);
        }
        drop(all);
        names.for_each(|name| self.end(name, true));
    }

    /// Takes what ended so far: its summaries are printed once.
    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// Makes what runs what a file says.
    ///
    /// # Errors
    /// A unit that is new can't be started; then nothing has changed.
    pub(super) fn reload(&mut self, file: &File) -> Result<Reloaded, String> {
        let (mut done, mut anew) = (Reloaded::default(), BTreeSet::new());
        loop {
            // What a port uses can't be given to threads that have given it up: the second time
            // these units are started anew, with what is linked to them.
            match self.pass(file, &anew, &mut done) {
                Ok(confined) if confined.is_empty() => break,
                Ok(confined) => anew.extend(confined),
                Err(error) if anew.is_empty() => return Err(error),
                Err(error) => {
                    done.failures.push(error);
                    break;
                }
            }
        }
        self.publish();
        Ok(done)
    }

    /// Changes what differs; returns the units that must be started anew for their new ports.
    fn pass(&mut self, file: &File, anew: &BTreeSet<String>, done: &mut Reloaded) -> Result<BTreeSet<String>, String> {
        let current: BTreeMap<_, _> = self.units.iter().map(|(name, one)| (name.clone(), one.unit.clone())).collect();
        let changes = changes(&current, &file.units, anew);
        let opener = new_openers();
        let is_new = |name: &&String| !current.contains_key(*name);
        let freed = self.freed(&changes);
        let takes_freed = |unit: &Unit| unit.ports.iter().any(|port| freed.contains(&port.named.uri.short()));
        let (early, late): (Vec<_>, Vec<_>) =
            file.units.iter().filter(|(name, _)| is_new(name)).partition(|(_, unit)| !takes_freed(unit));
        let early = prepare_all(early.into_iter(), &opener, self.level)?;
        // First: what waits in an in-memory pair returns to the unit at its other end.
        for (name, change) in &changes {
            if let Change::Live(live) = change {
                self.detach(name, live, done);
            }
        }
        let anew = changes.iter().filter(|(_, change)| **change == Change::Restart);
        let restart: Vec<_> = anew.map(|(name, _)| name).collect();
        let gone: Vec<_> = current.keys().filter(|name| !file.units.contains_key(*name)).collect();
        self.end_all(gone.iter().chain(&restart).map(|name| name.as_str()));
        done.changes.extend(gone.iter().map(|name| format!("{name}: ended")));
        for one in early {
            self.begin(one, "started", done);
        }
        let late = late.into_iter().map(|(name, _)| (name, "started"));
        for (name, what) in restart.into_iter().map(|name| (name, "started anew")).chain(late) {
            self.start_anew(name, file, current.get(name), &opener, what, done);
        }
        let mut confined = BTreeSet::new();
        for (name, change) in &changes {
            if let (Change::Live(live), Some(unit)) = (change, file.units.get(name))
                && self.change(name, unit, live, &opener, done)
            {
                confined.insert(name.clone());
            }
        }
        if confined.is_empty()
            && let Err(error) = opener.lock().unwrap_or_else(PoisonError::into_inner).check()
        {
            done.failures.push(error.to_string());
        }
        Ok(confined)
    }

    /// The ports that the reload closes.
    fn freed(&self, changes: &BTreeMap<String, Change>) -> BTreeSet<String> {
        let mut ports = Vec::<&Port>::new();
        for (name, active) in &self.units {
            match changes.get(name) {
                Some(Change::Keep) => {}
                Some(Change::Live(live)) => ports.extend(&live.detach),
                Some(Change::Restart) | None => ports.extend(&active.unit.ports),
            }
        }
        ports.into_iter().map(|port| port.named.uri.short()).collect()
    }

    fn begin(&mut self, prepared: Prepared, what: &str, done: &mut Reloaded) {
        let name = prepared.name.clone();
        match self.launch(prepared) {
            Ok(()) => done.changes.push(format!("{name}: {what}")),
            Err(error) => done.failures.push(error),
        }
    }

    /// Starts a unit that was stopped, or puts it back as it was.
    fn start_anew(
        &mut self,
        name: &String,
        file: &File,
        before: Option<&Unit>,
        opener: &Openers,
        what: &str,
        done: &mut Reloaded,
    ) {
        let Some(unit) = file.units.get(name) else { return };
        let error = match prepare(name, unit, opener, self.level) {
            Ok(prepared) => return self.begin(prepared, what, done),
            Err(error) => error,
        };
        let Some(before) = before else {
            done.failures.push(format!("{name}: not started: {error}"));
            return;
        };
        let put_back = prepare(name, before, opener, self.level).and_then(Prepared::launch);
        match put_back {
            Ok(active) => {
                self.units.insert(name.clone(), active);
                done.failures.push(format!("{name}: started anew as it was before: {error}"));
            }
            Err(again) => done.failures.push(format!("{name}: not started: {error}; and not as before: {again}")),
        }
    }

    fn detach(&mut self, name: &str, live: &Live, done: &mut Reloaded) {
        let Some(active) = self.units.get_mut(name) else { return };
        for port in &live.detach {
            match active.detach(port) {
                Ok(()) => done.changes.push(format!("{name}: {} detached", port.name)),
                Err(error) => done.failures.push(format!("{name}: {error}")),
            }
            active.unit.ports.retain(|known| known != port);
        }
    }

    /// Changes what is changed while the unit runs; returns whether it must be started anew for a
    /// port.
    fn change(&mut self, name: &String, unit: &Unit, live: &Live, opener: &Openers, done: &mut Reloaded) -> bool {
        let Some(active) = self.units.get_mut(name) else { return false };
        for port in &live.attach {
            match active.attach(unit, port, opener, self.level) {
                Ok(()) => {
                    active.unit.ports.push(port.clone());
                    done.changes.push(format!("{name}: {} attached", port.name));
                }
                Err(NotAttached::Confined) => return true,
                Err(NotAttached::Failed(error)) => {
                    done.failures.push(format!("{name}: {} is not attached: {error}", port.name));
                }
            }
        }
        if live.moves_routes(unit)
            && let Err(error) = set(active, unit, "route")
        {
            done.failures.push(format!("{name}: routes are without those by new ports: {error}"));
        }
        for option in &live.options {
            match set(active, unit, option) {
                Ok(()) => {
                    match unit.options.get(option) {
                        Some(values) => active.unit.options.insert(option.clone(), values.clone()),
                        None => active.unit.options.remove(option),
                    };
                    done.changes.push(format!("{name}: {option} changed"));
                }
                Err(error) => done.failures.push(format!("{name}: {option} is as before: {error}")),
            }
        }
        active.unit.command = unit.command.clone();
        // In the order of the file.
        let order = |port: &Port| unit.ports.iter().position(|known| known == port);
        active.unit.ports.sort_by_key(order);
        false
    }
}

/// Routes whose hops name ports by their positions in the file, with the numbers of these ports.
/// What leads to a port that is not attached is left out.
fn numbered(routes: Vec<RouterRoute>, unit: &Unit, router: &RouterControl) -> Vec<RouterRoute> {
    let attached = router.ports();
    let number = |position: u16| {
        let name = &unit.ports.get(usize::from(position))?.name;
        Some(attached.iter().find(|port| port.interface.name == *name)?.number)
    };
    let one = |mut route: RouterRoute| {
        let had = route.hops.len();
        let hops = route.hops.into_iter().filter_map(|hop| Some(Hop { port: number(hop.port)?, ..hop }));
        route.hops = hops.collect();
        (had == 0 || !route.hops.is_empty()).then_some(route)
    };
    routes.into_iter().filter_map(one).collect()
}

/// Replaces the value of an option while the unit runs.
fn set(active: &Active, unit: &Unit, option: &str) -> Result<(), Box<dyn Error>> {
    let rules = |verdicts: &Verdicts| match verdicts {
        Verdicts::Rules(rules) => rules.clone(),
        _ => Default::default(),
    };
    match &*unit.command {
        Command::Bridge(args) => {
            let (plan, _) = bridge::plan_of(args, &unit.named())?;
            match (option, active.running.bridge(), &active.rules.at_rx) {
                ("ageing", Some(bridge), _) => bridge.set_ageing(plan.ageing),
                ("rule", _, Some(live)) => {
                    plan.check_rules()?;
                    live.replace(rules(&plan.at_rx));
                }
                _ => return Err("can't be changed while it runs".into()),
            }
        }
        Command::Router(args) => {
            let (plan, _) = router::plan_of(args, &unit.named())?;
            match (option, active.running.router(), &active.rules.at_rx) {
                ("route", Some(router), _) => router.set_routes(numbered(plan.routes, unit, router))?,
                ("rule", _, Some(live)) => {
                    plan.check_rules()?;
                    live.replace(rules(&plan.at_rx));
                }
                _ => return Err("can't be changed while it runs".into()),
            }
        }
        Command::Fwd(args) => {
            let directions = if args.oneway { Directions::OneWay } else { Directions::Both };
            let plan = commands::plan(&args.run, directions, true)?;
            let layer = active.running.infos().iter().map(|info| info.layer).find(|layer| *layer != Layer::Any);
            plan.check_rules(layer.unwrap_or(Layer::Any))?;
            let (live, verdicts) = match option {
                "lane-rule" => (&active.rules.in_lane, &plan.in_lane),
                _ => (&active.rules.at_rx, &plan.at_rx),
            };
            live.as_ref().ok_or("can't be changed while it runs")?.replace(rules(verdicts));
        }
        _ => return Err("can't be changed while it runs".into()),
    }
    Ok(())
}

//! A unit that runs: opened and confined on a thread of its own.
//!
//! ```text
//!   main thread ── prepare ──► thread of the unit: ports open, tees attached, rights given up
//!        │  ◄── Prepared ──────────┘ waits
//!        └── launch ─────────► workers, which inherit what the thread has left; it ends
//! ```
//!
//! The main thread keeps its rights, for ports that a reload opens.

use crate::args::Command;
use crate::file::{Port, Unit};
use crate::remedy;
use crate::tee::Tees;
use crate::{bridge, commands, router};
use std::error::Error;
use std::mem::take;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use towpath::engine::filter::LiveRules;
use towpath::packet::port::{Needs, Port as _};
use towpath::sandbox::{Enforced, Level, Threads, enforce_since};
use towpath::tee::TeeReport;
use towpath::{
    AnyPort, BridgePort, Directions, Failure, Observer, Opener, Ready, Role, RouterPorts, Running, StartError, Summary,
    Verdicts,
};

/// Held while a thread opens ports and gives up rights: which threads belong to them is seen by
/// what was started meanwhile.
static OPENING: Mutex<()> = Mutex::new(());

/// Has no port opened meanwhile: for a thread that starts another one.
pub(crate) fn while_nothing_opens<R>(f: impl FnOnce() -> R) -> R {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    f()
}

/// The opener of all units that are opened together, so that in-memory pairs join them.
pub(super) type Openers = Arc<Mutex<Opener>>;

/// A unit that runs.
pub(super) struct Active {
    pub(super) unit: Unit,
    pub(super) running: Running,
    pub(super) rules: Rules,
    /// What its threads may still do.
    pub(super) needs: Needs,
    enforced: Enforced,
    tees: Tees,
}

/// The rules of a unit, which can be replaced.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) at_rx: Option<LiveRules>,
    pub(super) in_lane: Option<LiveRules>,
}

/// What a unit did, once it has ended.
pub(super) struct Ended {
    pub(super) name: String,
    /// It was stopped.
    requested: bool,
    pub(super) summary: Summary,
    pub(super) tees: Vec<TeeReport>,
    pub(super) enforced: Enforced,
}

/// Whether the other end of an in-memory pair, closed before this one, is the cause.
fn is_of_pair(failure: &Failure) -> bool {
    match failure {
        Failure::Gone { port, .. } | Failure::SentNone { port, .. } => port.starts_with("veth:"),
        _ => false,
    }
}

impl Ended {
    /// What failed. In a unit that was stopped an in-memory pair whose other end was closed first
    /// is none.
    pub(super) fn failures(&self) -> Vec<Failure> {
        self.summary.failures().into_iter().filter(|failure| !(self.requested && is_of_pair(failure))).collect()
    }

    pub(super) fn has_failed(&self) -> bool {
        !self.failures().is_empty() || self.tees.iter().any(|tee| tee.failure.is_some())
    }
}

/// A unit whose ports are open. Unless it is launched, they are closed again.
pub(super) struct Prepared {
    pub(super) name: String,
    /// What the user should know.
    pub(super) notes: Vec<String>,
    go: Sender<()>,
    thread: JoinHandle<Result<Active, String>>,
}

/// An error as a sentence, with what helps.
fn sentence(error: &(dyn Error + 'static)) -> String {
    format!("{error}{}", remedy(error))
}

/// Has the rules replaced while packets move.
fn live(verdicts: &mut Verdicts) -> Option<LiveRules> {
    let rules = match take(verdicts) {
        Verdicts::Rules(rules) => LiveRules::new(rules),
        _ => LiveRules::default(),
    };
    *verdicts = Verdicts::Live(rules.clone());
    Some(rules)
}

/// Opens the ports of a unit.
fn open(unit: &Unit, opener: &mut Opener) -> Result<(Ready, Rules), Box<dyn Error>> {
    let named = unit.named();
    let mut rules = Rules::default();
    let ready = match &*unit.command {
        Command::Bridge(args) => {
            let (mut bridge, mut ports) = bridge::plan_of(args, &named)?;
            rules.at_rx = live(&mut bridge.at_rx);
            bridge.endless = true;
            ports.iter_mut().zip(&unit.ports).for_each(|(port, known)| port.name.clone_from(&known.name));
            let opened = named.iter().map(|port| opener.open(&port.uri, Role::Both)).collect::<Result<Vec<_>, _>>()?;
            bridge.prepare(ports.into_iter().zip(opened).collect())?
        }
        Command::Router(args) => {
            let (mut router, mut interfaces) = router::plan_of(args, &named)?;
            rules.at_rx = live(&mut router.at_rx);
            router.endless = true;
            interfaces.iter_mut().zip(&unit.ports).for_each(|(one, port)| one.name.clone_from(&port.name));
            let ports = router::open(&router, interfaces, &named, opener)?;
            router.prepare(ports)?
        }
        Command::Fwd(args) => {
            let directions = if args.oneway { Directions::OneWay } else { Directions::Both };
            let (from, to) = if args.oneway { (Role::Ingress, Role::Egress) } else { (Role::Both, Role::Both) };
            let mut plan = commands::plan(&args.run, directions, true)?;
            rules.at_rx = live(&mut plan.at_rx);
            if !plan.lanes.is_empty() {
                rules.in_lane = live(&mut plan.in_lane);
            }
            let port = |key: &str| unit.ports.iter().find(|port| port.key() == key).ok_or("a pair has two ports");
            let (a, b) = (port("a")?, port("b")?);
            let a = opener.open(&a.named.uri, from)?;
            commands::note_file(&b.named.uri)?;
            let b = opener.open(&b.named.uri, to)?;
            plan.prepare(a, b)?
        }
        _ => return Err("this is no unit".into()),
    };
    Ok((ready, rules))
}

/// What the thread of a unit does.
fn begin(
    unit: Unit,
    opener: &Openers,
    level: Level,
    prepared: &Sender<Result<Vec<String>, String>>,
    go: &Receiver<()>,
) -> Result<Active, String> {
    let made = while_nothing_opens(|| -> Result<_, Box<dyn Error>> {
        let before = Threads::now()?;
        let (ready, rules) = open(&unit, &mut opener.lock().unwrap_or_else(PoisonError::into_inner))?;
        let tees = Tees::new(ready.observer(), commands::run_of(&unit.command).ok_or("this is no unit")?)?;
        let needs = ready.needs().clone().and(tees.needs());
        let enforced = enforce_since(&before, &needs, level).map_err(|error| format!("--{error}"))?;
        Ok((ready, rules, tees, needs, enforced))
    });
    let (ready, rules, tees, needs, enforced) = match made {
        Ok(made) => made,
        Err(error) => {
            let text = sentence(&*error);
            let _ = prepared.send(Err(text.clone()));
            return Err(text);
        }
    };
    let missing = enforced.missing().iter().map(|part| format!("sandbox: {part}"));
    let _ = prepared.send(Ok(ready.observer().notes().iter().cloned().chain(missing).collect()));
    if go.recv().is_err() {
        return Err("it was not launched".to_owned());
    }
    let running = ready.launch().map_err(|error| sentence(&error))?;
    Ok(Active { unit, running, rules, needs, enforced, tees })
}

/// Opens the ports of a unit, and gives up the rights of its threads.
///
/// # Errors
/// Why it can't be started; then everything is undone.
pub(super) fn prepare(name: &str, unit: &Unit, opener: &Openers, level: Level) -> Result<Prepared, String> {
    let ((prepared, is_prepared), (go, goes)) = (channel(), channel());
    let (unit, opener) = (unit.clone(), opener.clone());
    let work = move || begin(unit, &opener, level, &prepared, &goes);
    let thread = std::thread::Builder::new().name(format!("towpath-{name}")).spawn(work);
    let thread = thread.map_err(|error| sentence(&error))?;
    match is_prepared.recv() {
        Ok(Ok(notes)) => Ok(Prepared { name: name.to_owned(), notes, go, thread }),
        Ok(Err(error)) => {
            // The ports are closed when it has ended.
            let _ = thread.join();
            Err(error)
        }
        Err(_) => Err("its thread has ended".to_owned()),
    }
}

impl Prepared {
    /// Starts the workers.
    pub(super) fn launch(self) -> Result<Active, String> {
        let _ = self.go.send(());
        self.thread.join().unwrap_or_else(|_| Err("its thread has ended".to_owned()))
    }

    /// Closes the ports.
    pub(super) fn abandon(self) {
        drop(self.go);
        let _ = self.thread.join();
    }
}

/// Why a port is not attached to a unit that runs.
pub(super) enum NotAttached {
    /// The sandbox of the unit lacks what the port uses.
    Confined,
    Failed(String),
}

impl Active {
    pub(super) fn observer(&self) -> &Observer {
        self.running.observer()
    }

    /// Attaches a port to a bridge or a router that runs; its threads get the port's own rights.
    pub(super) fn attach(&self, unit: &Unit, port: &Port, opener: &Openers, level: Level) -> Result<(), NotAttached> {
        let failed = |error: &(dyn Error + 'static)| NotAttached::Failed(sentence(error));
        let work = || {
            let before = Threads::now().map_err(|error| failed(&error))?;
            let opened = open_port(unit, port, &mut opener.lock().unwrap_or_else(PoisonError::into_inner));
            let opened = opened.map_err(|error| failed(&*error))?;
            let needs = opened.needs();
            if level != Level::Off && !self.needs.contains(&needs) {
                return Err(NotAttached::Confined);
            }
            match (opened, self.running.bridge(), self.running.router()) {
                (Opened::Bridge(config, port), Some(bridge), _) => bridge.attach(config, *port),
                (Opened::Router(ports), _, Some(router)) => router.attach(*ports).map(drop),
                _ => return Err(NotAttached::Failed("it is no port of this unit".into())),
            }
            .map_err(|error| failed(&error))?;
            enforce_since(&before, &needs, level).map(drop).map_err(|error| failed(&error))
        };
        std::thread::scope(|scope| {
            let work = || while_nothing_opens(work);
            let thread = std::thread::Builder::new().name("towpath-attach".into()).spawn_scoped(scope, work);
            let joined = thread.map_err(|error| failed(&error))?.join();
            joined.unwrap_or_else(|_| Err(NotAttached::Failed("its thread has ended".into())))
        })
    }

    /// Detaches a port of a bridge or a router.
    ///
    /// # Errors
    /// Packets that it had taken were not sent.
    pub(super) fn detach(&self, port: &Port) -> Result<(), StartError> {
        let of_bridge = self.running.bridge().map_or(Ok(()), |bridge| bridge.detach(&port.name));
        of_bridge.and(self.running.router().map_or(Ok(()), |router| router.detach(&port.name)))
    }

    /// Stops the workers and closes the ports. `requested`: it does not end by itself.
    pub(super) fn stop(self, name: String, requested: bool) -> Ended {
        Ended { name, requested, summary: self.running.stop(), tees: self.tees.stop(), enforced: self.enforced }
    }
}

/// A port that is open, as its unit takes it.
enum Opened {
    Bridge(BridgePort, Box<AnyPort>),
    Router(Box<RouterPorts>),
}

impl Opened {
    fn needs(&self) -> Needs {
        match self {
            Opened::Bridge(_, port) => port.needs(),
            Opened::Router(ports) => {
                let control = ports.control.as_ref().map_or_else(Needs::none, AnyPort::needs);
                ports.port.needs().and(control)
            }
        }
    }
}

/// Opens a port of a unit as its options say.
fn open_port(unit: &Unit, port: &Port, opener: &mut Opener) -> Result<Opened, Box<dyn Error>> {
    let at = unit.ports.iter().position(|known| known == port).ok_or("there is no such port")?;
    match &*unit.command {
        Command::Bridge(args) => {
            let (_, mut ports) = bridge::plan_of(args, &unit.named())?;
            let mut config = ports.swap_remove(at);
            config.name.clone_from(&port.name);
            Ok(Opened::Bridge(config, Box::new(opener.open(&port.named.uri, Role::Both)?)))
        }
        Command::Router(args) => {
            let (router, mut interfaces) = router::plan_of(args, &unit.named())?;
            let mut interface = interfaces.swap_remove(at);
            interface.name.clone_from(&port.name);
            Ok(Opened::Router(Box::new(router::open_one(&router, interface, &port.named, opener)?)))
        }
        _ => Err("its ports stay as they are".into()),
    }
}

//! The file of `towpath run`: units, each with the options of a command and with ports.
//!
//! ```text
//!   [bridge.lan]                               towpath bridge tap:a xdp:eth1 --ageing 60s \
//!   ageing = "60s"                       ≙                    --trunk xdp:eth1=10+20
//!   [bridge.lan.ports]
//!   a = "tap:a"
//!   up = { port = "xdp:eth1", trunk = "10+20" }
//! ```
//!
//! An option has one home, the command line: a key is an option without its dashes, and its value
//! is read, checked and explained as there. What a text breaks is shown with line and column, all
//! at once.
//!
//! | file | content |
//! |---|---|
//! | `mod` | [`File`] and [`Unit`] |
//! | `text` | TOML as tables of options, each with its place |
//! | `options` | tables as options of a command |

mod options;
mod text;

use crate::args::Command;
use crate::naming::Named;
use crate::{bridge, commands, router};
use options::{Grammar, Options};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use text::{Entry, Item, Problems, Table};
use towpath::{Directions, Opener, Role, StartError, Uri};

/// A file that was read.
#[derive(Debug)]
pub(crate) struct File {
    /// Options of `run` itself.
    pub(crate) process: Vec<String>,
    /// The units by name.
    pub(crate) units: BTreeMap<String, Unit>,
}

/// What a unit is: the name of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two ports, as `fwd`.
    Pair,
    Bridge,
    Router,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Pair, Kind::Bridge, Kind::Router];

    /// The table of such units.
    pub(crate) fn table(self) -> &'static str {
        match self {
            Kind::Pair => "pair",
            Kind::Bridge => "bridge",
            Kind::Router => "router",
        }
    }
}

/// A unit: ports that are joined.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) kind: Kind,
    /// Its options, by their names.
    pub(crate) options: BTreeMap<String, Vec<String>>,
    /// Its ports in the order of the file; those of a pair are `a` and `b`.
    pub(crate) ports: Vec<Port>,
    /// The options as its command has them.
    pub(crate) command: Arc<Command>,
}

/// A port of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) named: Named,
    /// Its name in the unit, and in all that is shown; no other port changes it.
    pub(crate) name: String,
    options: BTreeMap<String, Vec<String>>,
}

impl Port {
    pub(crate) fn key(&self) -> &str {
        self.named.key.as_deref().unwrap_or_default()
    }

    /// What ports of several units may share: the name of an in-memory pair, and a switch with
    /// several ports.
    pub(crate) fn link(&self) -> Option<String> {
        let uri = &self.named.uri;
        ["veth", "cpsw"].contains(&uri.scheme()).then(|| uri.short())
    }
}

impl Unit {
    /// The ports as options name them.
    pub(crate) fn named(&self) -> Vec<Named> {
        self.ports.iter().map(|port| port.named.clone()).collect()
    }
}

/// Options of `run` that a file may have.
const OF_RUN: [&str; 5] = ["control", "metrics", "sandbox", "log", "log-format"];
/// Options of commands that are those of the whole process here.
const OF_PROCESS: [&str; 7] = ["control", "metrics", "sandbox", "json", "interval", "quiet", "duration"];

impl File {
    /// Reads and checks a file. No port is opened.
    ///
    /// # Errors
    /// The file can't be read; or [`FileError`] has all that is wrong with it.
    pub(crate) fn read(path: &Path) -> Result<File, Box<dyn Error>> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut problems = Problems::new(&text);
        let file = read(&text, &mut problems);
        problems.end(path)?;
        Ok(file)
    }

    /// What the file has, in a few words.
    pub(crate) fn summary(&self) -> String {
        let count = |kind: Kind| self.units.values().filter(|unit| unit.kind == kind).count();
        let ports: usize = self.units.values().map(|unit| unit.ports.len()).sum();
        let several = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let units = Kind::ALL.into_iter().filter(|kind| count(*kind) > 0);
        let units: Vec<_> = units.map(|kind| several(count(kind), kind.table())).collect();
        format!("{}, {}", units.join(", "), several(ports, "port"))
    }
}

fn read(text: &str, problems: &mut Problems<'_>) -> File {
    let table = text::parse(text, problems);
    let mut file = File { process: Vec::new(), units: BTreeMap::new() };
    let mut own = Options::new(Grammar::of_run(), |option| OF_RUN.contains(&option));
    let (mut places, mut uses) = (BTreeMap::new(), Vec::new());
    for Entry { key, at, item } in table.0 {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.table() == key) else {
            own.add(&key, at, item, &Kind::ALL.map(Kind::table), problems);
            continue;
        };
        let Item::Table(units) = item else {
            problems.add(at, format!("must be a table with a name: [{key}.NAME]"));
            continue;
        };
        for Entry { key: name, at, item } in units.0 {
            let Item::Table(table) = item else {
                let rule = format!("'{name}' belongs to no {key}: name one, as in [{key}.NAME]");
                problems.add(at, rule);
                continue;
            };
            if !is_name(&name) {
                problems.add(at, format!("'{name}': a name has letters, digits, '_' and '-'"));
            } else if places.insert(name.clone(), at).is_some() {
                problems.add(at, format!("'{name}' is the name of another unit: give it its own"));
            } else if let Some(unit) = unit(kind, &name, at, table, &mut uses, problems) {
                file.units.insert(name, unit);
            }
        }
    }
    file.process = own.check(problems).unwrap_or_default();
    check_uses(&uses, problems);
    if file.units.is_empty() && problems.count() == 0 {
        problems.add(0, "nothing is to be done: a file has [pair.NAME], [bridge.NAME] or [router.NAME]");
    }
    file
}

/// A device has one user in the file; an in-memory pair has its two ends there.
fn check_uses(uses: &[(Uri, usize)], problems: &mut Problems<'_>) {
    const SHARED: [&str; 4] = ["null", "gen", "fault", "pcap"];
    let mut seen = BTreeMap::<&str, Vec<usize>>::new();
    for (uri, at) in uses.iter().filter(|(uri, _)| !SHARED.contains(&uri.scheme())) {
        seen.entry(uri.as_str()).or_default().push(*at);
    }
    for (text, places) in seen {
        let is_pair = text.starts_with("veth:");
        match (places.as_slice(), is_pair) {
            ([_, _], true) | ([_], false) => {}
            ([at], true) => problems.add(*at, format!("{text}: needs its other end: another port of this name")),
            ([first, .., last], _) => {
                let (line, _) = problems.place(*first);
                let most = if is_pair { "has two ends" } else { "has one user" };
                problems.add(*last, format!("{text}: {most}, and line {line} has it already"));
            }
            ([], _) => {}
        }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// Reads a unit; `None` if it has problems, which are added.
fn unit(
    kind: Kind,
    name: &str,
    at: usize,
    table: Table,
    uses: &mut Vec<(Uri, usize)>,
    problems: &mut Problems<'_>,
) -> Option<Unit> {
    let before = problems.count();
    let mut options = Options::new(Grammar::of(kind), |option| !OF_PROCESS.contains(&option));
    let mut ports = Vec::new();
    let structure: &[&str] = if kind == Kind::Pair { &["a", "b"] } else { &["ports"] };
    for Entry { key, at, item } in table.0 {
        match (structure.contains(&key.as_str()), kind, item) {
            (true, Kind::Pair, item) => ports.extend(port(key, at, item, None, problems)),
            (true, _, Item::Table(all)) => {
                for Entry { key, at, item } in all.0 {
                    ports.extend(port(key, at, item, Some(&mut options), problems));
                }
            }
            (true, ..) => problems.add(at, "must be a table of ports: a = \"tap:a\""),
            (false, _, item) => options.add(&key, at, item, structure, problems),
        }
    }
    let role = |options: &Options<'_>, key: &str| match (options.is_on("oneway"), key) {
        (false, _) => Role::Both,
        (true, "a") => Role::Ingress,
        (true, _) => Role::Egress,
    };
    for (port, at) in &ports {
        if let Err(error) = Opener::check_uri(&port.named.uri, role(&options, port.key())) {
            problems.add(*at, error.to_string());
        }
    }
    if kind == Kind::Pair && ports.len() < 2 && problems.count() == before {
        problems.add(at, format!("{name}: must have both ports: a = \"tap:a\" and b = \"tap:b\""));
    }
    if kind == Kind::Router && ports.is_empty() && problems.count() == before {
        problems.add(at, format!("{name}: must have a port: [router.{name}.ports], and a = \"tap:a\""));
    }
    // A command has so many ports at least.
    let positional: Vec<_> = ports.iter().map(|(port, _)| port.named.uri.as_str().to_owned()).collect();
    let words = ["null:".to_owned(), "null:".to_owned()].into_iter().skip(positional.len()).chain(positional).collect();
    let parsed = options.parse(words, at, problems)?;
    uses.extend(ports.iter().map(|(port, at)| (port.named.uri.clone(), *at)));
    let ports = ports.into_iter().map(|(port, _)| port).collect();
    let unit = Unit { kind, options: options.lists, ports, command: Arc::new(parsed) };
    if problems.count() == before
        && let Err(error) = plan(&unit)
    {
        let option = match error.downcast_ref() {
            Some(StartError::Value { what, .. }) => *what,
            _ if error.is::<towpath::engine::rules::RuleError>() => "rule",
            _ => "",
        };
        problems.add(options.places.get(option).copied().unwrap_or(at), error.to_string());
    }
    (problems.count() == before).then_some(unit)
}

/// Whether the options fit the ports.
fn plan(unit: &Unit) -> Result<(), Box<dyn Error>> {
    match &*unit.command {
        Command::Bridge(args) => bridge::plan_of(args, &unit.named()).map(drop),
        Command::Router(args) => router::plan_of(args, &unit.named()).map(drop),
        Command::Fwd(args) => Ok(commands::plan(&args.run, Directions::Both, true).map(drop)?),
        _ => Ok(()),
    }
}

/// The name of a port: that of its device, which may be in another namespace; a port without a
/// device has its key there.
fn shown(uri: &Uri, key: &str) -> String {
    match (uri.target(), uri.option("netns")) {
        ("", _) => format!("{}:{key}", uri.scheme()),
        (_, Some(netns)) => format!("{}?netns={netns}", uri.short()),
        _ => uri.short(),
    }
}

/// Reads a port, whose options become options of the unit.
fn port(
    key: String,
    at: usize,
    item: Item,
    options: Option<&mut Options<'_>>,
    problems: &mut Problems<'_>,
) -> Option<(Port, usize)> {
    if !is_name(&key) {
        problems.add(at, format!("'{key}': a name has letters, digits, '_' and '-'"));
        return None;
    }
    let (mut uri, mut own) = (None, BTreeMap::new());
    match (item, options) {
        (Item::Values(mut values), _) if values.len() == 1 => uri = values.pop(),
        (Item::Table(table), Some(options)) => {
            for Entry { key: option, at, item } in table.0 {
                match item {
                    Item::Values(mut values) if option == "port" && values.len() == 1 => uri = values.pop(),
                    item => own.extend(options.add_of_port(&key, &option, at, item, problems)),
                }
            }
        }
        _ => {}
    }
    let Some((text, at)) = uri else {
        problems.add(at, format!("{key}: must be a port: \"tap:a\", or {{ port = \"tap:a\", … }}"));
        return None;
    };
    match text.parse::<Uri>() {
        Ok(uri) => {
            let name = shown(&uri, &key);
            Some((Port { named: Named { key: Some(key), uri }, name, options: own }, at))
        }
        Err(error) => {
            problems.add(at, error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn problems(text: &str) -> Result<(), String> {
        let mut problems = Problems::new(text);
        read(text, &mut problems);
        problems.end(Path::new("x")).map_err(|error| error.to_string())
    }

    /// A line of a file, right or wrong.
    fn line() -> impl Strategy<Value = String> {
        let table = "\\[(pair|bridge|router|x)(\\.[ab]){0,2}(\\.ports)?\\]";
        let value = "(1|-1|true|'[a-z]{0,3}(:[ab])?'|\\[1, 'x'\\]|\\{ port = 'tap:[ab]', (access|address|x) = ('9'|10) \\}|\\[\\[\\]\\]|1979-05-27)";
        let entry = format!("(a|b|c|rule|route|ageing|workers|oneway|control|trunk|gro) = {value}");
        prop_oneof![2 => table, 5 => proptest::string::string_regex(&entry).unwrap(), 1 => "\\PC{0,12}"]
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_at_places_that_it_has(lines in proptest::collection::vec(line(), 0..12)) {
            let text = lines.join("\n");
            if let Err(error) = problems(&text) {
                for line in error.lines().filter_map(|line| line.strip_prefix("x:")) {
                    let mut place = line.split(':').map(|part| part.parse::<usize>().unwrap_or(0));
                    let (row, column) = (place.next().unwrap(), place.next().unwrap());
                    let length = text.split('\n').nth(row - 1).map(|line| line.chars().count());
                    prop_assert!(length.is_some_and(|length| column <= length + 1), "{text:?}: {line}");
                }
            }
        }
    }
}

//! Tables as options of a command: a key is an option without its dashes.
//!
//! The grammar of a command is made once: a file may have many units, and is read again.

use super::Kind;
use super::text::{Item, Problems};
use crate::args::{Bridge, Command, Fwd, Router, RunFile};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, FromArgMatches};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::LazyLock;
use towpath::ports::kind::did_you_mean;

/// The options of a command, and what they make.
pub(super) struct Grammar {
    command: clap::Command,
    made: fn(&clap::ArgMatches) -> clap::error::Result<Command>,
}

impl Grammar {
    fn new<A: Args>(name: &'static str, made: fn(&clap::ArgMatches) -> clap::error::Result<Command>) -> Grammar {
        let mut command = A::augment_args(clap::Command::new(name));
        command.build();
        Grammar { command, made }
    }

    /// Those of a unit.
    pub(super) fn of(kind: Kind) -> &'static Grammar {
        static PAIR: LazyLock<Grammar> =
            LazyLock::new(|| Grammar::new::<Fwd>("fwd", |found| Fwd::from_arg_matches(found).map(Command::Fwd)));
        static BRIDGE: LazyLock<Grammar> = LazyLock::new(|| {
            Grammar::new::<Bridge>("bridge", |found| Bridge::from_arg_matches(found).map(Command::Bridge))
        });
        static ROUTER: LazyLock<Grammar> = LazyLock::new(|| {
            Grammar::new::<Router>("router", |found| Router::from_arg_matches(found).map(Command::Router))
        });
        match kind {
            Kind::Pair => &PAIR,
            Kind::Bridge => &BRIDGE,
            Kind::Router => &ROUTER,
        }
    }

    /// Those of the process.
    pub(super) fn of_run() -> &'static Grammar {
        static RUN: LazyLock<Grammar> = LazyLock::new(|| {
            Grammar::new::<RunFile>("run", |found| RunFile::from_arg_matches(found).map(Command::Run))
        });
        &RUN
    }
}

/// Options that were found in a table.
pub(super) struct Options<'a> {
    grammar: &'a Grammar,
    arguments: Vec<&'a Arg>,
    /// As the command line has them.
    words: Vec<String>,
    /// Those of the unit itself, without those of its ports.
    pub(super) lists: BTreeMap<String, Vec<String>>,
    /// Where each was found first.
    pub(super) places: BTreeMap<String, usize>,
}

/// Whether an option is one of a port: `--access PORT=VLAN`.
fn is_of_port(argument: &Arg) -> bool {
    argument.get_value_names().is_some_and(|names| names.iter().any(|name| name.starts_with("PORT=")))
}

impl<'a> Options<'a> {
    /// Options of a command that are `allowed`.
    pub(super) fn new(grammar: &'a Grammar, allowed: impl Fn(&str) -> bool) -> Options<'a> {
        let is_allowed = |argument: &&Arg| argument.get_long().is_some_and(&allowed);
        let arguments = grammar.command.get_arguments().filter(is_allowed).collect();
        Options { grammar, arguments, words: Vec::new(), lists: BTreeMap::new(), places: BTreeMap::new() }
    }

    fn find(
        &self,
        key: &str,
        of_port: bool,
        more: &[&'static str],
        at: usize,
        problems: &mut Problems<'_>,
    ) -> Option<&'a Arg> {
        let all = || self.arguments.iter().filter(|argument| is_of_port(argument) == of_port);
        let found = all().find(|argument| argument.get_long() == Some(key)).copied();
        if found.is_none() {
            let names: Vec<_> = all().filter_map(|argument| argument.get_long()).chain(more.iter().copied()).collect();
            let meant = did_you_mean(key, names.iter().copied());
            let known = if meant.is_empty() { format!("; there are: {}", names.join(", ")) } else { meant };
            let what = match self.arguments.iter().find(|argument| argument.get_long() == Some(key)) {
                Some(_) if of_port => format!("{key}: is an option of the unit, and not of one port"),
                Some(_) => format!("{key}: is an option of a port: a = {{ port = \"tap:a\", {key} = … }}"),
                None => format!("there is no '{key}' here{known}"),
            };
            problems.add(at, what);
        }
        found
    }

    /// Adds an option. `more`: keys besides options that the table may have.
    pub(super) fn add(&mut self, key: &str, at: usize, item: Item, more: &[&'static str], problems: &mut Problems<'_>) {
        let Some(argument) = self.find(key, false, more, at, problems) else { return };
        let takes = argument.get_action().takes_values();
        match item {
            Item::Switch(is_on) if !takes => {
                if is_on {
                    self.words.push(format!("--{key}"));
                    self.lists.insert(key.to_owned(), vec!["true".to_owned()]);
                }
                self.places.insert(key.to_owned(), at);
            }
            Item::Values(values) if takes => {
                let is_list = matches!(argument.get_action(), ArgAction::Append);
                if let Some((_, second)) = values.get(1).filter(|_| !is_list) {
                    problems.add(*second, format!("{key}: must be one value"));
                    return;
                }
                self.places.insert(key.to_owned(), values.first().map_or(at, |(_, at)| *at));
                self.words.extend(values.iter().map(|(value, _)| format!("--{key}={value}")));
                self.lists.insert(key.to_owned(), values.into_iter().map(|(value, _)| value).collect());
            }
            _ if takes => problems.add(at, format!("{key}: must be a text, a number, or a list of them")),
            _ => problems.add(at, format!("{key}: must be true or false")),
        }
    }

    /// Adds an option of a port; returns it as it was given.
    pub(super) fn add_of_port(
        &mut self,
        port: &str,
        key: &str,
        at: usize,
        item: Item,
        problems: &mut Problems<'_>,
    ) -> Option<(String, Vec<String>)> {
        self.find(key, true, &["port"], at, problems)?;
        let Item::Values(values) = item else {
            problems.add(at, format!("{key}: must be a text, a number, or a list of them"));
            return None;
        };
        self.places.entry(key.to_owned()).or_insert(values.first().map_or(at, |(_, at)| *at));
        let mut values: Vec<_> = values.into_iter().map(|(value, _)| value).collect();
        if key == "trunk" {
            values = vec![values.join("+")];
        }
        self.words.extend(values.iter().map(|value| format!("--{key}={port}={value}")));
        Some((key.to_owned(), values))
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, key: &str) -> bool {
        self.lists.contains_key(key)
    }

    /// Has the command line read the options behind `words`; `at`: the place of the table.
    pub(super) fn parse(&self, words: Vec<String>, at: usize, problems: &mut Problems<'_>) -> Option<Command> {
        let name = self.grammar.command.get_name().to_owned();
        let words = [name].into_iter().chain(words).chain(self.words.iter().cloned());
        let found = self.grammar.command.clone().try_get_matches_from(words);
        match found.and_then(|found| (self.grammar.made)(&found)) {
            Ok(command) => Some(command),
            Err(error) => {
                let (option, what) = sentence(&error);
                let place = option.as_ref().and_then(|option| self.places.get(option));
                problems.add(place.copied().unwrap_or(at), what);
                None
            }
        }
    }

    /// The words of options that the command line can read.
    pub(super) fn check(self, problems: &mut Problems<'_>) -> Option<Vec<String>> {
        self.parse(vec!["FILE".to_owned()], 0, problems)?;
        Some(self.words)
    }
}

/// The option that an error of the command line is about, and the error without the words of a
/// command line.
fn sentence(error: &clap::Error) -> (Option<String>, String) {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let name = |text: &String| text.trim_start_matches('-').split([' ', '=']).next().unwrap_or_default().to_owned();
    let options: Vec<_> = of(ContextKind::InvalidArg).iter().map(name).collect();
    let option = options.first().cloned();
    let shown = options.join(", ");
    let value = of(ContextKind::InvalidValue).join(" ");
    let what = match (error.kind(), error.source()) {
        (ErrorKind::ValueValidation, Some(rule)) => format!("{shown} = '{value}': {rule}"),
        (ErrorKind::InvalidValue, _) => {
            let valid = of(ContextKind::ValidValue);
            let meant = did_you_mean(&value, valid.iter().map(String::as_str));
            format!("{shown} = '{value}': must be one of {}{meant}", valid.join(", "))
        }
        (ErrorKind::MissingRequiredArgument, _) => format!("{shown}: is missing, and needed by what is given here"),
        (ErrorKind::ArgumentConflict, _) => {
            let other: Vec<_> = of(ContextKind::PriorArg).iter().map(name).collect();
            format!("{shown}: can't be used with {}", other.join(", "))
        }
        (ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues, _) => format!("{shown}: has no value"),
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    };
    (option, what)
}

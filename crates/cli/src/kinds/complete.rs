//! Completions of a word: kinds of ports, their options and values, interfaces and network
//! namespaces of this machine. A hidden command, which the completion scripts run.

use crate::args::Args;
use clap::CommandFactory;
use std::fs;
use towpath::KINDS;
use towpath::ports::kind::Kind;

/// Commands whose words are ports.
const WITH_PORTS: [&str; 12] =
    ["fwd", "bridge", "router", "gen", "measure", "sink", "echo", "serve", "record", "replay", "probe", "report"];

/// What a word of a command may become, the whole word each.
pub(crate) fn complete(command: &str, word: &str) -> Vec<String> {
    let mut all = match command {
        "help" => topics(),
        command if WITH_PORTS.contains(&command) => ports(word),
        _ => Vec::new(),
    };
    all.retain(|full| full.starts_with(word));
    all.sort();
    all
}

fn topics() -> Vec<String> {
    let command = Args::command();
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    let mut all: Vec<_> = commands.chain(KINDS.iter().map(|kind| kind.name)).map(str::to_owned).collect();
    all.sort();
    all.dedup();
    all
}

fn ports(word: &str) -> Vec<String> {
    // A port behind another: fault:…@PORT, e1000e:model@PORT.
    if let Some((front, inner)) = word.rsplit_once('@') {
        return ports(inner).into_iter().map(|full| format!("{front}@{full}")).collect();
    }
    let Some((scheme, rest)) = word.split_once(':') else {
        return KINDS.iter().map(|kind| format!("{}:", kind.name)).collect();
    };
    let Some(kind) = KINDS.iter().find(|kind| kind.name == scheme) else { return Vec::new() };
    let options_follow_colon = ["gen", "null", "fault"].contains(&scheme);
    match rest.split_once('?') {
        Some((target, given)) => options(kind, given, &format!("{scheme}:{target}?")),
        None if options_follow_colon => options(kind, rest, &format!("{scheme}:")),
        None => {
            let interfaces = ["tap", "tun", "packet", "xdp"].contains(&scheme);
            let mut found = if interfaces { names_in("/sys/class/net") } else { Vec::new() };
            if ["tap", "tun"].contains(&scheme) {
                found.retain(|name| fs::exists(format!("/sys/class/net/{name}/tun_flags")).unwrap_or(false));
            }
            let is_whole = |name: &String| name == rest;
            let whole = found.iter().find(|name| is_whole(name)).map(|name| format!("{scheme}:{name}?"));
            found.iter().map(|name| format!("{scheme}:{name}")).chain(whole).collect()
        }
    }
}

/// Options behind `front` and those that are `given`, of which the last one is incomplete.
fn options(kind: &Kind, given: &str, front: &str) -> Vec<String> {
    let (earlier, last) = given.rfind([',', '&']).map_or(("", given), |at| given.split_at(at + 1));
    let full = |text: String| format!("{front}{earlier}{text}");
    match last.split_once('=') {
        None => {
            let is_given = |name: &str| earlier.split([',', '&']).any(|option| option.split('=').next() == Some(name));
            let names = kind.options.iter().map(|option| option.name).filter(|name| !is_given(name));
            names.map(|name| full(format!("{name}="))).collect()
        }
        Some((name, _)) => {
            let Some(option) = kind.options.iter().find(|option| option.name == name) else { return Vec::new() };
            let values = match name {
                "netns" => names_in("/run/netns"),
                _ => option.words().into_iter().map(str::to_owned).collect(),
            };
            values.into_iter().map(|value| full(format!("{name}={value}"))).collect()
        }
    }
}

/// The names of a directory's entries; none if it can't be read.
fn names_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_becomes_a_kind_an_option_that_is_not_given_yet_or_a_value() {
        assert_eq!(complete("probe", "ve"), ["veth:"]);
        assert_eq!(complete("fwd", "tap:x?tso=off,txq"), ["tap:x?tso=off,txqueuelen="]);
        assert_eq!(complete("fwd", "tap:x?ts"), ["tap:x?tso="]);
        assert!(complete("fwd", "tap:x?tso=off,ts").is_empty());
        assert_eq!(complete("gen", "tap:x?mtu=1500&steering=r"), ["tap:x?mtu=1500&steering=require"]);
        assert_eq!(complete("sink", "gen:pro"), ["gen:proto="]);
        assert_eq!(complete("sink", "fault:drop=1%@nu"), ["fault:drop=1%@null:"]);
        assert_eq!(complete("sink", "fault:on=t"), ["fault:on=tx"]);
        assert_eq!(complete("help", "pac"), ["packet"]);
        assert!(complete("bind", "ta").is_empty() && complete("fwd", "what:a?").is_empty());
    }

    #[test]
    fn interfaces_of_this_machine_are_offered_and_options_behind_a_whole_name() {
        assert!(complete("fwd", "packet:").contains(&"packet:lo".to_owned()));
        assert_eq!(complete("fwd", "packet:lo").first().map(String::as_str), Some("packet:lo"));
        assert!(complete("fwd", "packet:lo").contains(&"packet:lo?".to_owned()));
    }
}

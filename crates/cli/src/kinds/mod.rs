//! The kinds of ports and their options, as the tables of the ports have them.
//!
//! | file | content |
//! |---|---|
//! | `mod` | as text: `towpath help KIND`, and the list in the help of commands |
//! | `man` | as man pages of section 7 |
//! | `complete` | as completions of a word, with interfaces and network namespaces of this machine |
//! | `shells` | the completion scripts |

mod complete;
mod man;
mod shells;

pub(crate) use complete::complete;
pub(crate) use man::write_pages;
pub(crate) use shells::script;

use crate::args::Args;
use crate::output::{outln, show};
use clap::CommandFactory;
use std::error::Error;
use std::fmt::Write;
use std::process::ExitCode;
use towpath::KINDS;
use towpath::ports::kind::{Kind, PortOption, did_you_mean};

/// The list of all kinds, in the help of the commands.
pub(crate) fn list() -> String {
    let width = KINDS.iter().map(|kind| kind.example.len()).max().unwrap_or(0);
    let mut text =
        "Ports:\n  A port is written scheme:target?option=value,option=value, in quotes for the shell\n".to_owned();
    for kind in KINDS {
        let _ = writeln!(text, "  {:width$}  {}", kind.example, kind.what);
    }
    text += "  'towpath help KIND' lists the options of a kind of port (towpath help tap); 'towpath probe PORT' tells \
             what a port can do here.";
    text
}

/// Prints the help of a topic: a command, or a kind of port.
pub(crate) fn help(topic: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let mut command = Args::command();
    command.build();
    let [first, rest @ ..] = topic else {
        show(command.render_long_help())?;
        return Ok(ExitCode::SUCCESS);
    };
    let scheme = first.split(':').next().unwrap_or(first);
    let kind = KINDS.iter().find(|kind| kind.name == scheme);
    let Some(mut found) = command.find_subcommand_mut(first) else {
        let Some(kind) = kind else { return Err(unknown(first, &Args::command()).into()) };
        show(text(kind))?;
        return Ok(ExitCode::SUCCESS);
    };
    for word in rest {
        let parent = found.clone();
        found = found.find_subcommand_mut(word).ok_or_else(|| unknown(word, &parent))?;
    }
    show(found.render_long_help())?;
    if let Some(kind) = kind {
        outln!("\n'towpath help {}:' lists the options of the port {}", kind.name, kind.example)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(word: &str, command: &clap::Command) -> String {
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name);
    let kinds = KINDS.iter().map(|kind| kind.name);
    let meant = did_you_mean(word, commands.chain(kinds));
    format!("help {word}: there is no such command and no such kind of port{meant}")
}

/// The forms of a value, its default and an example, as one line.
fn value_line(option: &PortOption) -> String {
    format!("default: {}; example: {}", option.default, option.example)
}

/// A kind and its options.
fn text(kind: &Kind) -> String {
    let mut text = format!("{}\n  {}\n\nOptions:\n", kind.example, kind.what);
    let form = |option: &PortOption| format!("{}={}", option.name, option.value);
    let width = kind.options.iter().map(|option| form(option).chars().count()).max().unwrap_or(0).min(32);
    for option in kind.options {
        let form = form(option);
        if form.chars().count() > width {
            let _ = writeln!(text, "  {form}\n  {:width$}  {}", "", option.what);
        } else {
            let _ = writeln!(text, "  {form:width$}  {}", option.what);
        }
        let _ = writeln!(text, "  {:width$}  {}", "", value_line(option));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_kind_has_every_option_with_its_default_and_an_example() {
        for kind in KINDS {
            let text = text(kind);
            for option in kind.options {
                for part in [&format!("{}={}", option.name, option.value), option.what, &value_line(option)] {
                    assert!(text.contains(part), "{}: {part} is missing in:\n{text}", kind.name);
                }
            }
        }
    }

    #[test]
    fn a_misspelt_topic_is_answered_with_the_one_that_is_meant() {
        let error = |topic: &str| help(&[topic.to_owned()]).unwrap_err().to_string();
        assert!(error("pakcet").ends_with("did you mean packet?"));
        assert!(error("recrod").ends_with("did you mean record?"));
        assert!(!error("weather").contains("did you mean"));
    }
}

//! Kinds of ports, and their options: one table for the parser, `towpath help`, the man pages
//! and the completion.
//!
//! Each port has its table beside its configuration, as `KIND`. [`Options`](crate::uri::Options)
//! takes an option only if the table has it, so that none is parsed that is not described.

/// A kind of port.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The scheme of its URIs.
    pub name: &'static str,
    /// An example of a URI.
    pub example: &'static str,
    /// A description.
    pub what: &'static str,
    /// Its options, in the order in which they are listed.
    pub options: &'static [PortOption],
}

/// An option of a port.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PortOption {
    /// The name in a URI.
    pub name: &'static str,
    /// The form and the unit of its values; words that are separated by `|` are all there are.
    pub value: &'static str,
    /// The value if it is not given; what that means if it is not a value.
    pub default: &'static str,
    /// Its meaning.
    pub what: &'static str,
    /// How it is written, together with the options that it needs.
    pub example: &'static str,
}

impl PortOption {
    /// An option: its name, form, default, meaning and example.
    pub const fn new(
        name: &'static str,
        value: &'static str,
        default: &'static str,
        what: &'static str,
        example: &'static str,
    ) -> PortOption {
        PortOption { name, value, default, what, example }
    }

    /// The words that are all its values; empty if it has others.
    pub fn words(&self) -> Vec<&'static str> {
        let words: Vec<_> = self.value.split('|').collect();
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if words.len() > 1 && words.iter().all(is_word) { words } else { Vec::new() }
    }
}

/// The end of an error about an unknown word: `; did you mean NAME?` for the name that it most
/// resembles, empty if it resembles none.
pub fn did_you_mean<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let likeness = |name: &'a str| (strsim::normalized_damerau_levenshtein(word, name), name);
    let likely = names.into_iter().map(likeness).filter(|(likeness, _)| *likeness > 0.5);
    let nearest = likely.max_by(|(a, _), (b, _)| a.total_cmp(b));
    nearest.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"))
}

/// Forms of values that several kinds have.
pub(crate) const SWITCH: &str = "on|off";
pub(crate) const WANT: &str = "require|prefer|off";

/// Options that several kinds have.
pub(crate) const NETNS: PortOption = PortOption::new(
    "netns",
    "NAME|PATH",
    "this one",
    "network namespace of the interface, as ip netns names it, or a path",
    "netns=/proc/1/ns/net",
);
pub(crate) const CSUM: PortOption =
    PortOption::new("csum", WANT, "prefer", "partial checksums, which the kernel completes", "csum=require");
pub(crate) const TSO: PortOption = PortOption::new("tso", WANT, "prefer", "TCP super-packets; needs csum", "tso=off");
pub(crate) const USO: PortOption = PortOption::new("uso", WANT, "prefer", "UDP super-packets; needs csum", "uso=off");
pub(crate) const MODE: PortOption =
    PortOption::new("mode", "OCTAL", "600", "permissions of the socket's file", "mode=660");
pub(crate) const UID: PortOption =
    PortOption::new("uid", "NUMBER", "this process's", "user of the socket's file", "uid=1000");
pub(crate) const GID: PortOption =
    PortOption::new("gid", "NUMBER", "this process's", "group of the socket's file", "gid=1000");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_has_the_nearest_name_and_a_foreign_one_has_none() {
        let names = ["mtu", "queues", "netns", "txqueuelen"];
        assert_eq!(did_you_mean("qeues", names), "; did you mean queues?");
        assert_eq!(did_you_mean("mut", names), "; did you mean mtu?");
        assert_eq!(did_you_mean("colour", names), "");
    }

    #[test]
    fn words_are_the_values_of_an_option_that_has_no_others() {
        assert_eq!(TSO.words(), ["require", "prefer", "off"]);
        assert!(NETNS.words().is_empty() && MODE.words().is_empty());
    }
}

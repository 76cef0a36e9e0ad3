//! Claims: the packets that a user's applications may ask for, `allow=USER:MATCH+USER:default`.

use crate::uri::Options;
use std::fmt;
use towpath_engine::rules::{Match, Rule, Rules};
use towpath_packet::port::PortError;

/// What applications of a user may ask for, one entry of `allow=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The user; `None` for any.
    pub user: Option<u32>,
    /// Packets that a rule may name, all or some of them; `None` for `default`, the packets that no
    /// rule matches.
    pub matches: Option<Match>,
}

impl Claim {
    /// Takes the entries of `allow=`, separated by `+`.
    pub(in crate::sock) fn from_options(options: &mut Options) -> Result<Option<Vec<Claim>>, PortError> {
        let Some(text) = options.text("allow") else { return Ok(None) };
        let one = |entry: &str| Claim::parse(entry.trim()).map_err(|rule| options.error("allow", &text, rule));
        text.split('+').map(one).collect::<Result<_, _>>().map(Some)
    }

    fn parse(entry: &str) -> Result<Claim, String> {
        let form = "must be USER:MATCH entries separated by +, such as 1000:udp dport 53+*:default";
        let (user, what) = entry.split_once(':').ok_or(form)?;
        let user = parse_user(user).ok_or(form)?;
        let matches = match what.trim() {
            "default" => None,
            what => Some(format!("pass {what}").parse::<Rule>().map_err(|error| error.to_string())?.matches),
        };
        Ok(Claim { user, matches })
    }

    /// Whether it allows a rule, or `default` (`None`), to an application of the user.
    fn allows(&self, user: u32, requested: Option<&Match>) -> bool {
        let covers = match (&self.matches, requested) {
            (Some(allowed), Some(requested)) => allowed.covers(requested),
            // Everything includes what is left.
            (Some(allowed), None) => *allowed == Match::default(),
            (None, requested) => requested.is_none(),
        };
        self.user.is_none_or(|only| only == user) && covers
    }
}

/// A user as a number, or `*` (`None`) for any.
pub(in crate::sock) fn parse_user(text: &str) -> Option<Option<u32>> {
    match text.trim() {
        "*" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.matches {
            Some(matches) => matches.fmt(f),
            None => f.write_str("default"),
        }
    }
}

/// Whether the claims of a port cover all that an application of a user asks for. Without claims a
/// user may ask for anything. Each rule must be covered by one claim.
///
/// # Errors
/// A sentence names the first rule that is not, and what is allowed.
pub(in crate::sock) fn covers(claims: Option<&[Claim]>, user: u32, rules: &Rules, default: bool) -> Result<(), String> {
    let Some(claims) = claims else { return Ok(()) };
    let requested = rules.as_slice().iter().map(|rule| Some(&rule.matches)).chain(default.then_some(None));
    let Some(refused) =
        requested.into_iter().find(|requested| !claims.iter().any(|claim| claim.allows(user, *requested)))
    else {
        return Ok(());
    };
    let name = |requested: Option<&Match>| requested.map_or_else(|| "default".to_owned(), Match::to_string);
    let own = claims.iter().filter(|claim| claim.user.is_none_or(|only| only == user));
    let own: Vec<_> = own.map(Claim::to_string).collect();
    let own = if own.is_empty() { "nothing".to_owned() } else { own.join(", ") };
    Err(format!("'{}': user {user} may ask for {own} (allow=)", name(refused)))
}

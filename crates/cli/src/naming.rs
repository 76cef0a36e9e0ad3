//! Ports of the command, as options of `bridge` and `router` name them.

use towpath::{StartError, Uri};

/// The position of the port that a text names: by its whole URI, without its options, or by its
/// target alone.
///
/// # Errors
/// The value of `option`, and the ports that there are.
pub(crate) fn position(uris: &[Uri], option: &'static str, name: &str) -> Result<usize, StartError> {
    let is_named = |uri: &Uri| [uri.as_str(), &uri.short(), uri.target()].contains(&name);
    let mut named = (0..uris.len()).filter(|at| is_named(&uris[*at]));
    match (named.next(), named.next()) {
        (Some(at), None) => Ok(at),
        (first, _) => {
            let known: Vec<_> = uris.iter().map(Uri::short).collect();
            let which = if first.is_some() { "names several ports" } else { "must name a port" };
            let rule = format!("{which} of the command: {}", known.join(", "));
            Err(StartError::Value { what: option, value: name.to_owned(), rule })
        }
    }
}

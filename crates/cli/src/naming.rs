//! Ports of a command or of a file, as options and routes name them.

use towpath::{StartError, Uri};

/// A port of a command or of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The key of the file; `None` on the command line.
    pub(crate) key: Option<String>,
    /// The port.
    pub(crate) uri: Uri,
}

impl Named {
    /// The ports of a command line.
    ///
    /// # Errors
    /// A text that is no URI.
    pub(crate) fn all(texts: &[String]) -> Result<Vec<Named>, towpath::packet::port::PortError> {
        texts.iter().map(|text| Ok(Named { key: None, uri: text.parse()? })).collect()
    }

    fn is_called(&self, name: &str) -> bool {
        self.key.as_deref() == Some(name) || [self.uri.as_str(), &self.uri.short(), self.uri.target()].contains(&name)
    }

    fn shown(&self) -> String {
        self.key.clone().unwrap_or_else(|| self.uri.short())
    }
}

/// The position of the port that a text names: by its key, by its whole URI, without its options,
/// or by its target alone.
///
/// # Errors
/// The value of `option`, and the ports that there are.
pub(crate) fn position(ports: &[Named], option: &'static str, name: &str) -> Result<usize, StartError> {
    // A key goes before what another port happens to be called.
    let key = ports.iter().position(|port| port.key.as_deref() == Some(name));
    let mut named = (0..ports.len()).filter(|at| ports[*at].is_called(name));
    match (key, named.next(), named.next()) {
        (Some(at), ..) | (None, Some(at), None) => Ok(at),
        (_, first, _) => {
            let known: Vec<_> = ports.iter().map(Named::shown).collect();
            let which = if first.is_some() { "names several ports" } else { "must name a port" };
            let rule = format!("{which}: {}", known.join(", "));
            Err(StartError::Value { what: option, value: name.to_owned(), rule })
        }
    }
}

//! Man pages of section 7, one for each kind of port.

use clap_mangen::roff::{Roff, bold, italic, roman};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use towpath::KINDS;
use towpath::ports::kind::Kind;

/// Writes `towpath-KIND.7` for each kind into a directory.
pub(crate) fn write_pages(directory: &Path) -> io::Result<()> {
    KINDS.iter().try_for_each(|kind| {
        let mut file = File::create(directory.join(format!("towpath-{}.7", kind.name)))?;
        file.write_all(page(kind).render().as_bytes())
    })
}

fn page(kind: &Kind) -> Roff {
    let title = format!("towpath-{}", kind.name);
    let mut page = Roff::new();
    page.control("TH", [title.as_str(), "7"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{title} - {}", kind.what))]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([bold("towpath probe "), bold(format!("'{}'", kind.example))]);
    page.control("SH", ["OPTIONS"]);
    page.text([roman("Options follow a question mark (of gen and null: the colon), with a comma between them.")]);
    for option in kind.options {
        page.control("TP", []);
        page.text([bold(option.name), roman("="), italic(option.value)]);
        page.text([roman(format!("{}. Default: {}. Example: ", option.what, option.default)), bold(option.example)]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("towpath"), roman("(1), "), bold("towpath-probe"), roman("(1)")]);
    page
}

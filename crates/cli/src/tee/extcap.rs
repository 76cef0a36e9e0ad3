//! `towpath extcap`: running instances as interfaces of Wireshark, by its protocol for external
//! captures ([extcap(4)](https://www.wireshark.org/docs/man-pages/extcap.html)).
//!
//! An instance is found by its control socket in `$XDG_RUNTIME_DIR/towpath` or `/run/towpath`. The
//! interface `towpath-NAME` is the socket `NAME` there; one of the user's own hides one of the same
//! name in `/run`.

use super::watch::{Limits, attach, copy};
use crate::args::{Extcap, TeeAt};
use crate::control::ask_ports;
use crate::control::request::TeeRequest;
use crate::output::outln;
use std::error::Error;
use std::fs::{DirEntry, OpenOptions};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use towpath::engine::filter::Filter;
use towpath::tee::TeeFormat;

const PREFIX: &str = "towpath-";

/// Where sockets are looked for.
fn directories() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("towpath"));
    own.into_iter().chain([PathBuf::from("/run/towpath")]).collect()
}

/// The interfaces: name and socket.
fn sockets(directories: &[PathBuf]) -> Vec<(String, PathBuf)> {
    let mut all: Vec<(String, PathBuf)> = Vec::new();
    for entry in directories.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().filter_map(Result::ok) {
        let is_socket = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
        // A name that the protocol can't carry is no interface.
        if let Some(name) = entry.file_name().to_str().filter(|name| !name.contains(['{', '}', '\n']))
            && is_socket(&entry)
            && !all.iter().any(|(known, _)| known.strip_prefix(PREFIX) == Some(name))
        {
            all.push((format!("{PREFIX}{name}"), entry.path()));
        }
    }
    all.sort();
    all
}

/// A value without what ends a field.
fn field(text: &str) -> String {
    text.replace(['{', '}'], "_")
}

/// `towpath extcap`.
pub(crate) fn extcap(args: &Extcap) -> Result<ExitCode, Box<dyn Error>> {
    if args.interfaces {
        outln!(
            "extcap {{version={}}}{{help=https://github.com/towpath/towpath}}{{display=Towpath}}",
            env!("CARGO_PKG_VERSION")
        )?;
        for (name, path) in sockets(&directories()) {
            // Other sockets may be in the directory, and those of other users.
            if let Ok(ports) = ask_ports(&path) {
                outln!("interface {{value={}}}{{display=Towpath: {}}}", field(&name), field(&ports.join(" ⇄ ")))?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.interface.as_deref().ok_or("--extcap-interface is missing")?;
    let known = sockets(&directories());
    if args.dlts {
        // The stream says which of the two it has.
        outln!("dlt {{number=1}}{{name=EN10MB}}{{display=Ethernet}}")?;
        outln!("dlt {{number=101}}{{name=RAW}}{{display=Raw IP}}")?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.config {
        outln!("arg {{number=0}}{{call=--at}}{{display=Packets}}{{type=selector}}{{tooltip=Where they are copied}}")?;
        for (at, what) in
            [("both", "received and sent"), ("rx", "received"), ("tx", "sent"), ("drops", "dropped, with the reason")]
        {
            outln!("value {{arg=0}}{{value={at}}}{{display={what}}}{{default={}}}", at == "both")?;
        }
        outln!(
            "arg {{number=1}}{{call=--snaplen}}{{display=Bytes of each packet}}{{type=unsigned}}{{range=1,262144}}\
             {{default=262144}}{{tooltip=Fewer cost less}}"
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let filter = args.filter.as_deref().map(str::trim).filter(|text| !text.is_empty());
    if let Some(error) = filter.and_then(|text| text.parse::<Filter>().err()) {
        // Wireshark shows what is printed as the fault of the filter.
        outln!("{error}")?;
        return Ok(if args.capture { ExitCode::from(2) } else { ExitCode::SUCCESS });
    }
    if !args.capture {
        return Ok(ExitCode::SUCCESS);
    }
    let fifo = args.fifo.as_deref().ok_or("--fifo is missing")?;
    let (_, socket) = known.iter().find(|(known, _)| known == name).ok_or_else(|| {
        let directories: Vec<_> = directories().iter().map(|dir| dir.display().to_string()).collect();
        format!("--extcap-interface {name}: no such socket in {}", directories.join(", "))
    })?;
    let mut options = vec![format!("at={}", args.at.map_or("both", TeeAt::name))];
    options.extend(args.snaplen.map(|n| format!("snaplen={n}")));
    options.extend(filter.map(|filter| format!("filter={filter}")));
    let stream = attach(socket, TeeRequest { ports: Vec::new(), options: options.join(";") })?;
    let out =
        OpenOptions::new().write(true).open(fifo).map_err(|error| format!("--fifo {}: {error}", fifo.display()))?;
    copy(stream, out, TeeFormat::Pcapng, Limits::default())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn sockets_are_interfaces_and_the_first_directory_hides_those_of_the_second() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let at = |dir: usize, name: &str| dirs[dir].path().join(name);
        let _listeners: Vec<_> = [(0, "b"), (1, "b"), (1, "a"), (0, "x{y")]
            .map(|(dir, name)| UnixListener::bind(at(dir, name)).unwrap())
            .into();
        std::fs::write(at(0, "file"), "").unwrap();
        let found = sockets(&[dirs[0].path().into(), "/nowhere".into(), dirs[1].path().into()]);
        assert_eq!(found, [("towpath-a".to_owned(), at(1, "a")), ("towpath-b".to_owned(), at(0, "b"))]);
    }
}

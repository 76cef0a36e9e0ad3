//! Connections that watch packets: each is the stream of a tee.
//!
//! The tee's thread writes to the connection and waits for it; nothing else does. A client that
//! does not read misses packets. One that is dead or shuts its side down ends its tee. At the end
//! of the command each connection has [`PATIENCE`] to take what is left.

use super::Service;
use super::request::{Answer, TeeRequest, line};
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use towpath::Observer;
use towpath::tee::{Tee, TeeFormat, TeeOptions, TeeSink, TeeStream};

/// Connections that watch, at a time: fewer than tees, so that others can be attached.
const MAX_WATCHERS: usize = 4;
/// How long a connection may take nothing, once its tee is detached.
const PATIENCE: Duration = Duration::from_millis(500);

/// The tees of connections.
#[derive(Default)]
pub(super) struct Tees(Vec<Tee>);

impl Tees {
    /// Makes a connection the stream of a tee, or answers why it can't be one.
    pub(super) fn start(&mut self, stream: UnixStream, request: &TeeRequest, service: &Service) {
        self.0.retain(|tee| !tee.is_finished());
        if let Err((error, stream)) = self.attach(stream, request, service) {
            // An answer for which the connection has no room now is not waited for.
            let _ = line(&Answer::Error(error)).map(|line| (&stream).write(&line));
        }
    }

    fn attach(
        &mut self,
        stream: UnixStream,
        request: &TeeRequest,
        service: &Service,
    ) -> Result<(), (String, UnixStream)> {
        if self.0.len() >= MAX_WATCHERS {
            return Err((format!("{MAX_WATCHERS} watch already, and there can't be more: end one"), stream));
        }
        // The descriptor is a second one of the same connection, for an answer if it fails.
        let tee = stream.try_clone().map_err(Into::into).and_then(|out| tee(out, request, service));
        match tee {
            Ok(tee) => {
                self.0.push(tee);
                Ok(())
            }
            Err(error) => Err((error.to_string(), stream)),
        }
    }
}

/// Attaches a tee to what runs and has the ports.
fn tee(stream: UnixStream, request: &TeeRequest, service: &Service) -> Result<Tee, Box<dyn Error>> {
    let mut options: TeeOptions = request.options.parse()?;
    options.ports.extend(request.ports.iter().cloned());
    let all = (service.observers)();
    let has = |observer: &Observer| observer.tee_interfaces(&options.ports).is_ok();
    let (_, observer) =
        all.iter().find(|(_, observer)| has(observer)).or(all.first()).ok_or("nothing runs that could be watched")?;
    options.config.interfaces = observer.tee_interfaces(&options.ports)?;
    let names = observer.infos().iter().map(|info| info.name.clone()).collect();
    let stream = TeeStream {
        name: "control".to_owned(),
        out: File::from(OwnedFd::from(stream)),
        format: TeeFormat::Pcapng,
        greeting: line(&Answer::Tee(names))?,
        patience: PATIENCE,
        ends_with_peer: true,
    };
    Ok(observer.tee(&options.config, TeeSink::Stream(stream))?)
}

impl Drop for Tees {
    fn drop(&mut self) {
        // All at once, so that the slowest is the only one that is waited for.
        self.0.iter().for_each(Tee::detach);
    }
}

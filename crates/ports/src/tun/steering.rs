//! Steering: a program keeps each flow in one queue; the option, and the report. The program is
//! that of [`towpath_tun::steering`].

use super::config::Kind;
use crate::uri::Want;
use std::fs::File;
use std::sync::Arc;
use towpath_packet::port::{Ability, PortError};
use towpath_tun::steering::Steering;

/// Name of the ability, and of the option.
pub const STEERING: &str = "steering";

/// Attaches the program to a device with several queues, unless it is switched off; returns the
/// report too.
pub(super) fn attach(
    port: &str,
    queues: &[Arc<File>],
    kind: Kind,
    want: Want,
) -> Result<(Option<Steering>, Option<Ability>), PortError> {
    let [first, _, ..] = queues else { return Ok((None, None)) };
    let effect = "the kernel moves flows between the queues, and packets overtake each other then";
    let (made, why, hint) = if want == Want::Off {
        (None, format!("switched off by option: {effect}"), Some(format!("{STEERING}=prefer")))
    } else {
        match Steering::attach(first, kind) {
            Ok(made) => (Some(made), "a program chooses the queue by flow".to_owned(), None),
            Err(error) => {
                let denied = error.raw_os_error() == Some(libc::EPERM);
                let hint = denied.then(|| "run as root, or: setcap cap_net_admin,cap_bpf+ep".to_owned());
                (None, format!("bpf: {error}: {effect}"), hint)
            }
        }
    };
    if want == Want::Require && made.is_none() {
        return Err(PortError::Required { port: port.to_owned(), ability: STEERING.to_owned(), why });
    }
    let ability = Ability::new(STEERING, made.is_some(), why).with_hint(hint);
    Ok((made, Some(ability)))
}

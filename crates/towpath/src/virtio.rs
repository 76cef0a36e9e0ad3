//! Virtio network devices by their URIs: `virtio:user=/run/vhost.sock?queues=2,packed=on`.
//!
//! The driver does not know URIs: this module turns options into its configuration.

use crate::e1000e::dma_policy;
use std::time::Duration;
use towpath_nic::virtio::{Config, ConfigError, Filter, UserConfig, UserTransport, VirtioNet};
use towpath_packet::port::{Calls, Needs, PortError};
use towpath_ports::uri::{Options, Uri};

/// Where the device is.
pub(crate) enum DeviceChoice<'a> {
    /// A back end of vhost-user: its socket.
    User(&'a str),
}

impl DeviceChoice<'_> {
    /// The device that the target of a URI names.
    pub(crate) fn of(uri: &Uri) -> Result<DeviceChoice<'_>, PortError> {
        match uri.target().split_once('=').unwrap_or((uri.target(), "")) {
            ("user", path) if !path.is_empty() => Ok(DeviceChoice::User(path)),
            _ => Err(uri.error("say where the device is: virtio:user=SOCKET of a vhost-user back end")),
        }
    }
}

/// The driver's configuration from a URI: no device is opened.
///
/// # Errors
/// [`PortError`] names the option, its value and the rule.
pub fn config_from_uri(uri: &Uri) -> Result<Config, PortError> {
    match DeviceChoice::of(uri)? {
        DeviceChoice::User(path) => user_config(uri, path).map(|(_, config)| config),
    }
}

/// The back end, and the options of the driver.
fn user_config(uri: &Uri, path: &str) -> Result<(UserConfig, Config), PortError> {
    let mut options = uri.options();
    let server = options.switch("server")?.unwrap_or(false);
    let patience = options.duration("wait")?.unwrap_or(Duration::from_secs(10));
    let config = driver(&mut options)?;
    options.finish()?;
    Ok((UserConfig::new(path).server(server).patience(patience).pairs(config.queues), config))
}

/// Connects to a back end of vhost-user.
pub(crate) fn user(uri: &Uri, path: &str) -> Result<VirtioNet<UserTransport>, PortError> {
    let (back_end, config) = user_config(uri, path)?;
    let server = back_end.server;
    let failed = |error: towpath_nic::virtio::OpenError| error.at_port(&uri.short());
    let transport = UserTransport::open(back_end).map_err(|error| failed(error.into()))?;
    let port = VirtioNet::open(transport, &uri.short(), config).map_err(failed)?;
    // A back end that comes again is accepted, or connected to, and gets memory.
    let calls = if server { Calls::Accept } else { Calls::Connect };
    Ok(port.with_needs(Needs::none().calls([Calls::Sockets, calls])))
}

/// The options of the driver.
fn driver(options: &mut Options) -> Result<Config, PortError> {
    let mut config = Config::default();
    for (name, _) in Filter::OPTIONS {
        if let Some(value) = options.text(name) {
            config.filter.set(name, &value).map_err(|error| rule(options, error))?;
        }
    }
    let number = |options: &mut Options, name: &'static str, default: u16| {
        options.number(name, 0..=u16::MAX.into()).map(|n| n.map_or(default, |n| n as u16))
    };
    config.queues = number(options, "queues", config.queues)?;
    config.ring = number(options, "ring", config.ring)?;
    config.mtu = number(options, "mtu", config.mtu)?;
    for (name, value) in [
        ("packed", &mut config.packed),
        ("mergeable", &mut config.mergeable),
        ("indirect", &mut config.indirect),
        ("event-idx", &mut config.event_idx),
        ("in-order", &mut config.in_order),
        ("csum", &mut config.csum),
        ("tso", &mut config.tso),
        ("uso", &mut config.uso),
        ("interrupts", &mut config.interrupts),
    ] {
        *value = options.switch(name)?.unwrap_or(*value);
    }
    config.policy = dma_policy(options)?.unwrap_or(config.policy);
    config.stall = options.duration("stall")?.unwrap_or(config.stall);
    config.check().map_err(|error| rule(options, error))?;
    Ok(config)
}

fn rule(options: &Options, error: ConfigError) -> PortError {
    options.error(error.option, error.value, error.rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_nic::virtio::Receive;

    fn config(text: &str) -> Result<Config, PortError> {
        config_from_uri(&text.parse().unwrap())
    }

    #[test]
    fn every_option_reaches_its_field() {
        let text = "virtio:user=/run/s?queues=2,ring=512,packed=on,mergeable=off,indirect=off,event-idx=off,\
                    in-order=off,csum=off,tso=off,uso=off,mtu=9000,receive=own,interrupts=off,stall=50ms,server=on,wait=1s";
        let mut expected = Config::default();
        (expected.queues, expected.ring, expected.mtu) = (2, 512, 9000);
        expected.packed = true;
        (expected.mergeable, expected.indirect, expected.event_idx, expected.in_order) = (false, false, false, false);
        (expected.csum, expected.tso, expected.uso, expected.interrupts) = (false, false, false, false);
        expected.filter.receive = Receive::Own;
        expected.stall = Duration::from_millis(50);
        assert_eq!(config(text).unwrap(), expected);
    }

    #[test]
    fn a_value_that_breaks_a_rule_is_named_with_the_rule() {
        let cases = [
            ("virtio:eth0", "virtio:user=SOCKET"),
            ("virtio:user=/s?ring=300", "power of two"),
            ("virtio:user=/s?queues=0", "from 1 to 128"),
            ("virtio:user=/s?policy=lazy", "persistent, strict, deferred"),
            ("virtio:user=/s?speed=10", "no such option"),
        ];
        for (text, part) in cases {
            let error = config(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

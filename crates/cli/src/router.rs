//! `router`: ports joined by an IP router, with tables of the command line or those of a kernel.

use crate::args::{HopText, Of, RouteText, Router as Args, Subnet};
use crate::commands::plan;
use crate::naming::{Named, position};
use crate::watch;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use towpath::engine::router::Hop;
use towpath::{Directions, Forward, Opener, Role, Router, RouterInterface, RouterPorts, RouterRoute, StartError, Uri};

/// The value of an option that breaks a rule.
fn refuse<X>(what: &'static str, value: impl Into<String>, rule: impl Into<String>) -> Result<X, StartError> {
    Err(StartError::Value { what, value: value.into(), rule: rule.into() })
}

/// A hop on the port that is named, or on the one port whose subnet has the gateway.
fn hop(route: &RouteText, hop: &HopText, named: &[Named], addresses: &[Of<Subnet>]) -> Result<Hop, StartError> {
    let port = match (&hop.dev, hop.via) {
        (Some(dev), _) => position(named, "route", dev)?,
        (None, Some(via)) => match addresses.iter().find(|of| of.value.contains(via)) {
            Some(of) => position(named, "address", &of.port)?,
            None => {
                let rule =
                    format!("{via} is in no subnet of a port: name the port with 'dev', or give it an --address");
                return refuse("route", &route.text, rule);
            }
        },
        (None, None) => return refuse("route", &route.text, "a hop must have 'via' or 'dev'"),
    };
    Ok(Hop { port: port as u16, gateway: hop.via, weight: hop.weight })
}

fn routes(args: &Args, named: &[Named]) -> Result<Vec<RouterRoute>, StartError> {
    let mut routes = Vec::new();
    for route in &args.route {
        let hops = route.hops.iter().map(|one| hop(route, one, named, &args.address)).collect::<Result<Vec<_>, _>>()?;
        let is_ipv6 = hops.iter().any(|hop| hop.gateway.is_some_and(|gateway| gateway.is_ipv6()));
        let any = if is_ipv6 { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
        let Subnet { address, len } = route.prefix.unwrap_or(Subnet { address: any, len: 0 });
        if hops.iter().filter_map(|hop| hop.gateway).any(|gateway| gateway.is_ipv4() != address.is_ipv4()) {
            return refuse("route", &route.text, "a gateway must be of the same family as the prefix");
        }
        routes.push(RouterRoute { prefix: address, len, action: route.action, hops, mtu: None });
    }
    Ok(routes)
}

/// `towpath router`.
pub(crate) fn router(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let named = Named::all(&args.ports)?;
    let (router, interfaces) = plan_of(args, &named)?;
    let mut opener = Opener::new();
    let ports = open(&router, interfaces, &named, &mut opener)?;
    opener.check()?;
    watch::watch(router.prepare(ports)?, &args.run)
}

/// The router that the options describe, and its interfaces in the order of `named`.
pub(crate) fn plan_of(args: &Args, named: &[Named]) -> Result<(Router, Vec<RouterInterface>), Box<dyn Error>> {
    if !args.run.lanes.is_empty() {
        refuse("lanes", format!("{:?}", args.run.lanes), "a router has no lanes: use more workers")?;
    }
    let mut router = like(plan(&args.run, Directions::Both, true)?);
    router.routes = routes(args, named)?;
    router.netns.clone_from(&args.mirror);
    let mut interfaces = vec![RouterInterface::default(); named.len()];
    for Of { port, value } in &args.address {
        interfaces[position(named, "address", port)?].addresses.push((value.address, value.len));
    }
    Ok((router, interfaces))
}

/// Opens the ports of a router, and the taps of one that mirrors a kernel.
pub(crate) fn open(
    router: &Router,
    interfaces: Vec<RouterInterface>,
    named: &[Named],
    opener: &mut Opener,
) -> Result<Vec<RouterPorts>, Box<dyn Error>> {
    let one = |(named, interface): (&Named, RouterInterface)| open_one(router, interface, named, opener);
    named.iter().zip(interfaces).map(one).collect()
}

/// Opens a port of a router, and its tap if the router mirrors a kernel.
pub(crate) fn open_one(
    router: &Router,
    interface: RouterInterface,
    Named { uri, .. }: &Named,
    opener: &mut Opener,
) -> Result<RouterPorts, Box<dyn Error>> {
    let port = RouterPorts::new(interface, opener.open(uri, Role::Both)?);
    let Some(netns) = &router.netns else { return Ok(port) };
    let tap: Uri = format!("tap:{}?netns={netns}", uri.target()).parse()?;
    Ok(port.with_control(opener.open(&tap, Role::Both)?))
}

/// A router with the options that all commands have.
fn like(plan: Forward) -> Router {
    let Forward { workers, cores, idle, egress_wait, drain, at_rx, gro, gso, count, pool, .. } = plan;
    let mut router = Router::default();
    (router.workers, router.cores, router.idle) = (workers, cores, idle);
    (router.egress_wait, router.drain, router.at_rx) = (egress_wait, drain, at_rx);
    (router.gro, router.gso, router.count, router.pool) = (gro, gso, count, pool);
    router
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath::engine::router::Action;

    fn made(text: &str) -> Result<RouterRoute, String> {
        let named = Named::all(&["tap:a", "tap:b"].map(str::to_owned)).unwrap();
        let addresses = ["tap:a=192.0.2.1/24", "tap:b=2001:db8::1/64"].map(|text| text.parse().unwrap());
        let run = ["towpath", "router", "tap:a", "tap:b"];
        let crate::args::Command::Router(mut args) = <crate::args::Args as clap::Parser>::parse_from(run).command
        else {
            panic!("another command");
        };
        (args.address, args.route) = (addresses.into(), vec![text.parse()?]);
        routes(&args, &named).map(|mut routes| routes.remove(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_gateway_is_on_the_port_whose_subnet_has_it() {
        let route = made("default via 2001:db8::9").unwrap();
        assert_eq!((route.prefix, route.len, route.hops[0].port), (Ipv6Addr::UNSPECIFIED.into(), 0, 1));
        let route = made("10.0.0.0/8 via 192.0.2.7 weight 2 dev tap:b").unwrap();
        assert_eq!((route.hops[0].port, route.hops[0].weight), (1, 2));
        assert_eq!(made("unreachable 10.0.0.0/8").unwrap().action, Action::Unreachable);
    }

    #[test]
    fn a_route_that_leads_nowhere_is_refused() {
        for (text, part) in [
            ("10.0.0.0/8 via 198.51.100.1", "in no subnet"),
            ("10.0.0.0/8 dev tap:c", "must name a port"),
            ("10.0.0.0/8 via 2001:db8::2", "same family"),
        ] {
            let error = made(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

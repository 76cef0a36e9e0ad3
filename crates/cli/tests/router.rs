//! Two hosts in different subnets, with `towpath router` between them.

mod support;

use support::datapath::run;
use support::{Namespace, Towpath, succeed, until};

/// Two hosts, whose gateways are 192.0.2.1 and 198.51.100.1, or 2001:db8:1::1 and 2001:db8:2::1.
struct Two {
    one: Namespace,
    two: Namespace,
}

impl Two {
    fn new() -> Two {
        Two { one: Namespace::new("one"), two: Namespace::new("two") }
    }

    /// The ports: taps in the hosts, which have the addresses that end in 2.
    fn ports(&self) -> [String; 2] {
        [
            format!("tap:a?netns={},addr=192.0.2.2/24+2001:db8:1::2/64", self.one.name()),
            format!("tap:b?netns={},addr=198.51.100.2/24+2001:db8:2::2/64", self.two.name()),
        ]
    }

    /// The hosts use their gateways.
    fn use_gateways(&self) {
        let gateways = [(&self.one, "192.0.2.1", "2001:db8:1::1"), (&self.two, "198.51.100.1", "2001:db8:2::1")];
        for (host, four, six) in gateways {
            succeed(&mut host.command("ip", &format!("route add default via {four}")));
            succeed(&mut host.command("ip", &format!("-6 route add default via {six}")));
        }
    }

    fn reach_each_other(&self) {
        for address in ["198.51.100.2", "2001:db8:2::2"] {
            until(&format!("{address} answers"), || answers(&self.one, address));
            succeed(&mut self.one.command("ping", &format!("-q -c 5 -i 0.02 -W 5 {address}")));
        }
    }
}

fn answers(from: &Namespace, address: &str) -> bool {
    support::run(&mut from.command("ping", &format!("-q -c 1 -W 1 {address}"))).status.success()
}

#[test]
fn hosts_of_two_subnets_reach_each_other_and_routes_that_refuse_are_kept() {
    require!("hosts_of_two_subnets_reach_each_other_and_routes_that_refuse_are_kept", "ip", "ping");
    let hosts = Two::new();
    let [a, b] = hosts.ports();
    let mut args = vec!["router".to_owned(), a, b];
    for address in ["tap:a=192.0.2.1/24", "tap:a=2001:db8:1::1/64", "tap:b=198.51.100.1/24", "tap:b=2001:db8:2::1/64"] {
        args.extend(["--address".into(), address.into()]);
    }
    for route in ["203.0.113.0/24 via 198.51.100.2", "unreachable 203.0.113.128/25"] {
        args.extend(["--route".into(), route.into()]);
    }
    args.extend(["--rule".into(), "drop dst host 203.0.113.2".into()]);
    let towpath = Towpath::start(&args.iter().map(String::as_str).collect::<Vec<_>>());
    hosts.use_gateways();
    hosts.reach_each_other();
    succeed(&mut hosts.two.command("ip", "address add 203.0.113.1/32 dev b"));
    until("the host behind the route answers", || answers(&hosts.one, "203.0.113.1"));
    let refused = support::run(&mut hosts.one.command("ping", "-c 1 -W 5 203.0.113.200"));
    let text = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(!refused.status.success() && text.contains("From 192.0.2.1") && text.contains("Unreachable"), "{text}");
    succeed(&mut hosts.two.command("ip", "address add 203.0.113.2/32 dev b"));
    assert!(!answers(&hosts.one, "203.0.113.2"), "a rule drops it");
    let summary = towpath.stop().code(0).summary();
    summary.is_balanced();
    assert!(summary.dropped("filtered") > 0 && summary.rules[0].packets > 0, "{:?}", summary.rules);
}

#[test]
fn a_mirrored_kernel_has_the_addresses_and_answers_for_them() {
    require!("a_mirrored_kernel_has_the_addresses_and_answers_for_them", "ip", "ping");
    let (hosts, plane) = (Two::new(), Namespace::new("plane"));
    let [a, b] = hosts.ports();
    let towpath = Towpath::start(&["router", &a, &b, "--mirror", plane.name()]);
    for (port, four, six) in [("a", "192.0.2.1", "2001:db8:1::1"), ("b", "198.51.100.1", "2001:db8:2::1")] {
        succeed(&mut plane.command("ip", &format!("address add {four}/24 dev {port}")));
        succeed(&mut plane.command("ip", &format!("address add {six}/64 dev {port} nodad")));
        succeed(&mut plane.command("ip", &format!("link set dev {port} up")));
    }
    hosts.use_gateways();
    hosts.reach_each_other();
    until("the kernel of the namespace answers", || answers(&hosts.one, "192.0.2.1"));
    towpath.stop().code(0).summary().is_balanced();
}

#[test]
fn what_a_router_can_not_do_is_refused_by_name() {
    for (args, part) in [
        (&["router", "null:", "--address", "tap:x=192.0.2.1/24"][..], "must name a port"),
        (&["router", "null:", "--address", "null:=192.0.2.1"], "with a length"),
        (&["router", "null:", "--route", "10.0.0.0/8 via 192.0.2.9"], "in no subnet"),
        (&["router", "null:", "--route", "10.0.0.0/8"], "must lead somewhere"),
        (&["router", "null:", "--mirror", "x", "--route", "default dev null:"], "cannot be used with"),
        (&["router", "null:", "--rule", "tx udp"], "its rules pass or drop"),
        (&["router", "null:", "--lanes", "0"], "no lanes"),
    ] {
        let refused = run(args).code(2);
        assert!(refused.stderr.contains(part), "{args:?}: {}", refused.stderr);
    }
}

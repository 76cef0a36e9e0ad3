//! Two instances: bridges and a mirrored router in one, a mirrored router in the other, a routing
//! daemon beside each; TCP goes on while files are read again.
//!
//! ```text
//!   h1 ─┐                    ┌─ c1 ═══ d1 ─┐
//!       ├ left ── edge ──────┤             ├ far ── h5
//!   h2 ─┘          │         └─ c2 ═══ d2 ─┘
//!   h3 ─┬ right ───┘
//!   h4 ─┘      BIRD in `plane`      BIRD in `plane2`
//! ```

use crate::support::traffic::{Background, iperf3};
use crate::support::{Hosts, Namespace, until};
use crate::{Instance, require};
use std::process::Command;

fn answers(from: &Namespace, address: &str) -> bool {
    from.command("ping", &format!("-q -c 1 -W 1 {address}")).output().unwrap().status.success()
}

/// BIRD in its own PID namespace, which ends with it.
fn bird(ns: &Namespace, directory: &std::path::Path, id: &str, links: [&str; 2], stub: &str) -> Background {
    let links = links.map(|name| format!("interface \"{name}\" {{ type ptp; hello 1; dead 4; }};")).join(" ");
    let config = format!(
        "router id {id}; protocol device {{ scan time 1; }} protocol direct {{ ipv4; }}
         protocol kernel {{ ipv4 {{ export all; import none; }}; }}
         protocol ospf v2 {{ ipv4 {{ import all; export none; }}; area 0 {{ {links} interface \"{stub}\" {{ stub; }}; }}; }}"
    );
    std::fs::create_dir(directory).unwrap();
    std::fs::write(directory.join("bird.conf"), config).unwrap();
    let at = directory.display();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", ns.name(), "unshare", "--pid", "--fork", "--kill-child", "sh", "-c"]);
    Background::start(command.arg(format!("exec bird -f -c {at}/bird.conf -s {at}/bird.ctl -P {at}/bird.pid")))
}

#[test]
fn two_instances_converge_reroute_and_lose_nothing_while_they_are_reloaded() {
    require!(
        "two_instances_converge_reroute_and_lose_nothing_while_they_are_reloaded",
        "ping",
        "iperf3",
        "sh",
        "unshare",
        "bird"
    );
    // Hosts 1 and 3 are those of the TCP connection.
    let hosts = Hosts::new();
    let [h2, h4, h5] = ["h2", "h4", "h5"].map(Namespace::new);
    let [plane, plane2, wires] = ["plane", "plane2", "wires"].map(Namespace::new);
    wires.set("ipv6/conf/default/disable_ipv6", "1");
    for n in 1..3 {
        wires.ip(&format!("link add c{n} type veth peer name d{n}"));
        wires.ip(&format!("link set c{n} up"));
        wires.ip(&format!("link set d{n} up"));
    }
    let tap = |ns: &Namespace, addr: &str| format!("tap:e0?netns={},addr={addr}/24", ns.name());
    let wire = |name: &str| format!("{name} = 'packet:{name}?netns={}'\n", wires.name());
    let one = |right: &str, options: &str, more: &str| {
        format!(
            "[bridge.left]\n{options}\n[bridge.left.ports]\nh1 = '{}'\nh2 = '{}'\nup = 'veth:left'\n\
             [bridge.right]\n[bridge.right.ports]\nh3 = '{}'\n{right}up = 'veth:right'\n\
             [router.edge]\nmirror = '{}'\n[router.edge.ports]\nleft = 'veth:left'\nright = 'veth:right'\n{}{}{more}",
            tap(&hosts.one, "10.1.0.2"),
            tap(&h2, "10.1.0.3"),
            tap(&hosts.two, "10.2.0.2"),
            plane.name(),
            wire("c1"),
            wire("c2"),
        )
    };
    let fourth = format!("h4 = '{}'\n", tap(&h4, "10.2.0.3"));
    let (near, far) = (Instance::new(), Instance::new());
    let first = near.start(&one(&fourth, "", ""));
    let second = far.start(&format!(
        "[router.far]\nmirror = '{}'\n[router.far.ports]\nh5 = '{}'\n{}{}",
        plane2.name(),
        tap(&h5, "10.5.0.2"),
        wire("d1"),
        wire("d2"),
    ));
    for (ns, device, address) in [
        (&plane, "left", "10.1.0.1"),
        (&plane, "right", "10.2.0.1"),
        (&plane, "c1", "192.168.1.1"),
        (&plane, "c2", "192.168.2.1"),
        (&plane2, "e0", "10.5.0.1"),
        (&plane2, "d1", "192.168.1.2"),
        (&plane2, "d2", "192.168.2.2"),
    ] {
        ns.ip(&format!("addr add {address}/24 dev {device}"));
        ns.ip(&format!("link set {device} up"));
    }
    for (host, gateway) in [(&hosts.one, "10.1.0.1"), (&hosts.two, "10.2.0.1"), (&h5, "10.5.0.1")] {
        // Only a lost packet is sent again, and none that waits while the machine is busy.
        host.set("ipv4/tcp_early_retrans", "0");
        host.ip(&format!("route add default via {gateway} rto_min 3s"));
    }
    let _near = bird(&plane, &near.path("bird"), "1.1.1.1", ["c1", "c2"], "*");
    let _far = bird(&plane2, &far.path("bird"), "2.2.2.2", ["d1", "d2"], "*");
    until("OSPF converges", || answers(&hosts.one, "10.5.0.2") && answers(&hosts.two, "10.5.0.2"));
    let route = || plane.ip("route show 10.5.0.0/24");
    until("the routes are there", || route().contains("via 192.168."));
    let link = if route().contains("192.168.1.2") { ("c1", "192.168.1.2") } else { ("c2", "192.168.2.2") };
    wires.ip(&format!("link set {} down", link.0));
    until("the other link is used", || route().contains("192.168.") && !route().contains(link.1));
    until("packets cross by it", || answers(&hosts.one, "10.5.0.2"));
    wires.ip(&format!("link set {} up", link.0));

    // What h1 and h3 send each other passes `left`, `edge` and `right`.
    let more = "[pair.more]\na = 'gen:rate=1000'\nb = 'null:'\noneway = true\n";
    let changes = [
        one(&fourth, "ageing = '100s'", ""),
        one("", "rule = ['drop udp dport 53']", more),
        one(&fourth, "rule = ['drop udp dport 54', 'drop udp dport 53']", ""),
        one("", "", more),
    ];
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| iperf3(&hosts, "10.2.0.2", "-t 8 -b 100M"));
        let mut reloads = 0;
        while !traffic.is_finished() {
            let done = near.reload(&changes[reloads % changes.len()]);
            assert!(!done.iter().any(|line| line.contains("anew")), "{done:?}");
            reloads += 1;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let report = traffic.join().unwrap();
        let sent = &report["end"]["sum_sent"];
        println!("{reloads} reloads, {} bytes", sent["bytes"]);
        assert!(reloads >= 10 && sent["bytes"].as_u64() > Some(10_000_000), "{reloads}: {sent}");
        assert_eq!(sent["retransmits"], 0, "{sent}");
    });
    for towpath in [first, second] {
        let finished = towpath.stop();
        for summary in finished.summaries() {
            summary.is_balanced();
        }
        finished.code(0);
    }
}

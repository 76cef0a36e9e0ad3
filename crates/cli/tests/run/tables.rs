//! The tables of bridges and routers: addresses, routes, neighbours.

use crate::Instance;
use crate::support::datapath::run;
use crate::support::until;
use serde_json::Value;

/// A bridge of two ports, a router behind it whose gateway does not answer, and another router.
const UNITS: &str = "\
    [bridge.lan]\nbuffers = 2048\n[bridge.lan.ports]\n\
    hosts = 'gen:rate=2000,dst-mac=02:74:70:00:00:00,dst-ip=203.0.113.1,flows=4'\nup = 'veth:x'\n\
    [router.edge]\nbuffers = 2048\n\
    route = ['default via 10.0.0.9', '10.9.0.0/16 via 10.0.0.7 weight 2 via 10.0.0.8', 'blackhole 192.0.2.0/24']\n\
    [router.edge.ports]\nin = { port = 'veth:x', address = ['10.0.0.1/24', 'fd00::1/64'] }\n\
    [router.more]\nbuffers = 2048\n[router.more.ports]\n\
    out = { port = 'gen:rate=10,size=200', address = '10.2.0.1/24' }\n";

/// A command on the control socket.
struct Tables(String);

impl Tables {
    #[track_caller]
    fn text(&self, words: &[&str]) -> String {
        run(&[words, &["--control", &self.0]].concat()).code(0).stdout
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[words, &["--json"]].concat())).unwrap()
    }

    /// A field of each line of a table.
    #[track_caller]
    fn list(&self, words: &[&str], table: &str, field: &str) -> Vec<String> {
        let all = self.json(words);
        let text = |line: &Value| line[field].as_str().unwrap_or("none").to_owned();
        all[table].as_array().unwrap().iter().map(text).collect()
    }

    #[track_caller]
    fn refused(&self, words: &[&str], part: &str) {
        let refused = run(&[words, &["--control", &self.0]].concat()).code(2);
        assert!(refused.stderr.contains(part), "{words:?}: {}", refused.stderr);
    }
}

#[test]
fn routes_neighbours_and_addresses_are_shown_by_unit_port_and_what_they_match() {
    let instance = Instance::new();
    let towpath = instance.start(UNITS);
    let tables = Tables(instance.path("control").to_str().unwrap().to_owned());
    let routes = |words: &[&str]| tables.list(&[&["route"], words].concat(), "routes", "prefix");
    let all = routes(&["--unit", "edge"]);
    assert_eq!(all[..4], ["0.0.0.0/0", "10.0.0.0/24", "10.0.0.1/32", "10.0.0.255/32"]);
    assert!(all.contains(&"fd00::/64".to_owned()) && !all.contains(&"10.2.0.0/24".to_owned()), "{all:?}");
    assert_eq!(routes(&["10.9.8.7"]), ["10.9.0.0/16", "0.0.0.0/0"], "the first one is used");
    assert_eq!(routes(&["10.2.0.0/16"]), ["10.2.0.0/24", "10.2.0.1/32", "10.2.0.255/32"]);
    assert_eq!(routes(&["--port", "veth:x", "10.0.0.0/8"]), ["10.0.0.0/24", "10.9.0.0/16"]);
    let first = tables.json(&["route", "--limit", "1", "--unit", "edge"]);
    assert_eq!((first["routes"].as_array().unwrap().len(), &first["matching"]), (1, &all.len().into()));
    let line = &tables.json(&["route", "10.9.0.0/16"])["routes"][0];
    let expected = serde_json::json!({
        "unit": "edge", "prefix": "10.9.0.0/16", "action": "unicast", "mtu": null, "source": "configured",
        "hops": [{ "via": "10.0.0.7", "port": "veth:x", "weight": 2 }, { "via": "10.0.0.8", "port": "veth:x", "weight": 1 }],
    });
    assert_eq!(*line, expected);
    let text = tables.text(&["route", "192.0.2.9"]);
    assert!(text.contains("192.0.2.0/24  blackhole") && text.contains("configured"), "{text}");

    let neighbours = |words: &[&str]| tables.list(&[&["neigh"], words].concat(), "neighbours", "address");
    until("the gateway is asked for", || neighbours(&[]) == ["10.0.0.9"]);
    assert_eq!(tables.list(&["neigh"], "neighbours", "mac"), ["none"]);
    assert_eq!(neighbours(&["10.0.0.0/24", "--port", "veth:x"]), ["10.0.0.9"]);
    assert_eq!((neighbours(&["10.0.0.8"]), neighbours(&["02:00:00:00:00:01"])), (vec![], vec![]));
    assert!(tables.text(&["neigh"]).contains("10.0.0.9  veth:x  -"), "{}", tables.text(&["neigh"]));

    let addresses = |words: &[&str]| tables.list(&[&["fdb"], words].concat(), "addresses", "mac");
    // The router asks for its gateway.
    until("the bridge knows both", || addresses(&[]).len() == 2);
    assert_eq!(addresses(&["--port", "veth:x"]), ["02:74:70:00:00:00"]);
    assert_eq!(addresses(&["02:74:70:00:00:00"]), ["02:74:70:00:00:00"]);
    assert_eq!((addresses(&["--vlan", "7"]), addresses(&["--limit", "1"]).len()), (vec![], 1));

    tables.refused(&["route", "--unit", "egde"], "--unit egde: must be a router: edge, more; did you mean edge?");
    tables.refused(&["fdb", "--unit", "edge"], "must be a bridge: lan");
    tables.refused(&["neigh", "--port", "veth:y"], "must be a port of the router");
    tables.refused(&["fdb", "--port", "veth:y"], "must be a port of the bridge");
    tables.refused(&["route", "02:00:00:00:00:01"], "a route has no MAC address");
    tables.refused(&["route", "here"], "must be an address, a prefix such as 10.0.0.0/8");
    towpath.stop().code(0);
}

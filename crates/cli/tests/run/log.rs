//! What ports do is in the log.

use crate::Instance;
use crate::support::until;
use serde_json::Value;
use towpath_client::{Config, Socket, Umem};

#[test]
fn what_ports_do_is_logged_with_its_fields_and_nothing_else_is_written_beside_the_log() {
    let instance = Instance::new();
    let app = instance.path("app");
    let units = format!(
        "log-format = 'json'\n\
         [pair.flap]\na = 'gen:rate=2000'\nb = 'fault:flap=100%,episode=1M@null:'\noneway = true\nbuffers = 2048\n\
         [bridge.lone]\nbuffers = 2048\n[bridge.lone.ports]\na = 'gen:rate=2000'\n\
         [pair.app]\na = 'sock:{}'\nb = 'null:'\nbuffers = 2048\n",
        app.display()
    );
    let towpath = instance.start(&units);
    let sessions = || instance.state().to_string().matches("session 1: ").count();
    let umem = Umem::new(64, 2048).unwrap();
    let socket = Socket::connect(&umem, &app, &Config::default()).unwrap();
    until("it has a session", || sessions() == 1);
    drop(socket);
    until("the session has ended", || !instance.state().to_string().contains(": here"));
    until("packets are dropped", || instance.state().to_string().contains("no-egress"));
    let finished = towpath.stop().code(1);
    let lines: Vec<Value> = finished.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let found = |unit: &str, kind: &str, reason: &str| {
        let is = |line: &&Value| line["unit"] == unit && line["kind"] == kind && line["reason"] == reason;
        lines.iter().find(is).unwrap_or_else(|| panic!("{unit} {kind} {reason}: {}", finished.stderr))
    };
    let line = found("flap", "link", "down");
    assert_eq!((&line["level"], &line["port"]), (&"WARN".into(), &"fault@null:".into()));
    for (unit, reason) in [("flap", "link-down"), ("lone", "no-egress")] {
        let line = found(unit, "dropped", reason);
        assert_eq!(line["level"], "WARN");
        assert!(line["count"].as_u64() > Some(0) && line["message"].as_str().unwrap().contains(reason), "{line}");
    }
    let session = found("app", "session", "session 1");
    assert!(session["message"].as_str().unwrap().contains("uid "), "{session}");
}

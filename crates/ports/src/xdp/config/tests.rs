use super::*;
use towpath_engine::rules::Rule;

fn config(text: &str) -> Result<Config, PortError> {
    Config::from_uri(&text.parse().unwrap())
}

#[test]
fn every_option_reaches_its_field() {
    let text = "xdp:eth0?netns=blue,queue=2,queues=3,rx=on,native=off,generic=require,zerocopy=off,copy=require,wakeup=off,\
                frags=require,csum=off,timestamps=prefer,tx=prefer-live,burst=64,partial=on,match=udp dport 4242+tcp,busypoll=20us,\
                busybudget=16,ring=512,txbudget=32,sndbuf=1M,promisc=off,stall=2s,selftest=frame";
    let c = config(text).unwrap();
    let one = |text: &str| text.parse::<Rule>().unwrap().matches;
    let expected = Config {
        interface: "eth0".to_owned(),
        netns: Some("blue".to_owned()),
        queue: 2,
        queues: 3,
        receive: Some(true),
        native: Want::Off,
        generic: Want::Require,
        zero_copy: Want::Off,
        copy: Want::Require,
        wakeup: Want::Off,
        frags: Want::Require,
        csum: Want::Off,
        timestamps: Want::Prefer,
        transmit: Transmit::PreferLive,
        burst: 64,
        partial: Partial::On,
        matches: vec![one("pass udp dport 4242"), one("pass tcp")],
        busy_poll: Duration::from_micros(20),
        busy_budget: 16,
        ring: 512,
        tx_budget: 32,
        send_buffer: 1_000_000,
        promiscuous: false,
        stall: Duration::from_secs(2),
        self_test: SelfTest::Frame,
    };
    assert_eq!(c, expected);
    let modes = |text| config(text).map(|c| (c.native, c.generic)).unwrap();
    assert_eq!(modes("xdp:a?mode=generic"), (Want::Off, Want::Require));
    assert_eq!(modes("xdp:a?mode=native"), (Want::Require, Want::Off));
}

#[test]
fn an_invalid_value_is_named_with_its_rule() {
    let cases = [
        ("xdp:", "1 to 15 bytes"),
        ("xdp:a?queue=60,queues=10", "below 64"),
        ("xdp:a?ring=100", "power of two"),
        ("xdp:a?ring=64,txbudget=128", "size of the ring, 64"),
        ("xdp:a?busypoll=2h", "busypoll=7200s: must be 0, or from 1us to 1s"),
        ("xdp:a?busypoll=20ns", "from 1us"),
        ("xdp:a?stall=0", "at least 10ms"),
        ("xdp:a?mode=native,native=off", "mode=native: stands for"),
        ("xdp:a?mode=generic,generic=require", "give it, or them"),
        ("xdp:a?native=off,generic=off", "can't be off together with generic"),
        ("xdp:a?zerocopy=require,copy=require", "together with copy"),
        ("xdp:a?match=udp dport x", "'x'"),
        ("xdp:a?match=any", "leave it out"),
        ("xdp:a?tx=dead", "socket, live, prefer-live"),
        ("xdp:a?tx=live,burst=4097", "4096"),
        ("xdp:a?rx=off,match=udp", "rx=off: attaches no program and receives nothing, so match= has no meaning"),
        ("xdp:a?rx=off,mode=native", "native=, generic= or mode= has no meaning"),
        ("xdp:a?rx=off,tx=live", "so tx= has no meaning"),
        ("xdp:a?rx=off,busypoll=20us", "so busypoll= has no meaning"),
        ("xdp:a?rx=maybe", "rx=maybe"),
        ("xdp:a?queu=0", "no such option"),
    ];
    for (text, part) in cases {
        let error = config(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn an_egress_does_not_receive_unless_an_option_is_about_receiving() {
    let receives = |text| config(text).unwrap().for_egress().receives();
    for text in ["xdp:a", "xdp:a?rx=off", "xdp:a?zerocopy=off,csum=off,stall=2s"] {
        assert!(!receives(text), "{text}");
    }
    for text in ["xdp:a?rx=on", "xdp:a?mode=native", "xdp:a?tx=live", "xdp:a?match=udp"] {
        assert!(receives(text), "{text}");
    }
    assert!(config("xdp:a").unwrap().for_ingress().unwrap().receives());
    let error = config("xdp:a?rx=off").unwrap().for_ingress().unwrap_err().to_string();
    assert!(error.contains("rx=off: can't be given"), "{error}");
}

#[test]
fn a_flow_may_be_an_expression_and_what_no_field_expresses_is_refused_with_a_hint() {
    let matches = |text: &str| Config::from_uri(&format!("xdp:eth0?match={text}").parse().unwrap()).map(|c| c.matches);
    let flows = matches("udp dst port 53+tcp port 80 or 443").unwrap();
    let texts: Vec<_> = flows.iter().map(Match::to_string).collect();
    assert_eq!(texts, ["udp dport 53", "tcp sport 80", "tcp dport 80", "tcp sport 443", "tcp dport 443"]);
    let error = matches("tcp and not port 80").unwrap_err().to_string();
    assert!(error.contains("match=") && error.contains("can't be negated") && error.contains("--rule"), "{error}");
}

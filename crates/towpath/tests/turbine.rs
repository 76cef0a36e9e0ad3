//! The example `turbine` in a namespace: many destinations, beside the host's own traffic.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use towpath_testing::{Namespace, Need, needs};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// The example, built unless all examples were.
fn turbine() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/turbine");
    if !path.exists() {
        let built = Command::new(env!("CARGO")).args(["build", "--quiet", "--example", "turbine"]).status().unwrap();
        assert!(built.success());
    }
    path
}

/// All datagrams of the test may wait in the socket.
fn buffer_everything(socket: &UdpSocket) {
    let bytes: libc::c_int = 32 << 20;
    let (option, len) = (libc::SO_RCVBUFFORCE, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the address and its length describe one int.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const bytes).cast(), len) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn datagrams_to_many_destinations_arrive_beside_the_traffic_of_the_host() {
    const NAME: &str = "datagrams_to_many_destinations_arrive_beside_the_traffic_of_the_host";
    if !needs(NAME, &[Need::Root, Need::Program("ip"), Need::Program("ping")]) {
        return;
    }
    let (one, two) = (Namespace::new("one"), Namespace::new("two"));
    one.ip(&format!("link add e0 type veth peer name e0 netns {}", two.name()));
    for (ns, n, m) in [(&one, 1, 2), (&two, 2, 1)] {
        ns.ip("link set lo up");
        ns.ip(&format!("addr add 10.0.0.{n}/24 dev e0"));
        ns.ip("link set e0 up");
        ns.ip(&format!("link add vx0 type vxlan id 42 local 10.0.0.{n} remote 10.0.0.{m} dstport 4789"));
        ns.ip(&format!("addr add 10.9.0.{n}/24 dev vx0"));
        ns.ip("link set vx0 up");
    }
    // 254 addresses that are all the other host's, behind it.
    one.ip("route add 10.1.0.0/24 via 10.0.0.2");
    one.ip("route add blackhole 10.2.0.0/24");
    two.ip("route add local 10.1.0.0/24 dev lo");
    let socket = two.inside(|| UdpSocket::bind("0.0.0.0:8001").unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    buffer_everything(&socket);

    const COUNT: usize = 4000;
    let options = format!(
        "xdp:e0 --to 10.1.0.0/24:8001 --to 10.9.0.2:8001 --to 10.2.0.1:8001 --size 700 --rate 4k --count {COUNT} \
         --seconds 60"
    );
    let sender = one.command(turbine().to_str().unwrap(), &options).stdout(Stdio::piped()).spawn().unwrap();
    let ping = one.command("ping", "-i 0.01 -c 80 10.0.0.2").stdout(Stdio::piped()).spawn().unwrap();
    let (mut numbers, mut from) = (HashSet::new(), HashSet::<SocketAddr>::new());
    let mut buffer = [0; 2000];
    while numbers.len() < COUNT {
        let (len, address) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(len, 700);
        assert!(numbers.insert(u64::from_be_bytes(*buffer.first_chunk().unwrap())), "none arrives twice");
        from.insert(address);
    }
    assert_eq!(numbers, (0..COUNT as u64).collect());
    let expected = ["10.0.0.1:8000", "10.9.0.1:8000"].map(|address| address.parse().unwrap());
    assert_eq!(from, expected.into());
    let report = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let lost = report(ping);
    // ping does not wait long for the last reply, which may be missing.
    assert!((1..80).all(|n| lost.contains(&format!("icmp_seq={n} "))), "{lost}");
    let text = report(sender);
    assert!(text.contains("sent 4000 datagrams to 255 of 256 destinations") && text.contains("dropped 0"), "{text}");
    assert!(text.contains("10.2.0.1:8001: the route refuses: blackhole"), "{text}");
}

#[test]
fn help_is_shown_and_a_mistake_is_named_with_its_option() {
    let run = |arguments: &[&str]| Command::new(turbine()).args(arguments).output().unwrap();
    let help = run(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--to DESTINATION"));
    for (arguments, part) in [
        (&["xdp:e0"][..], "a port and --to are needed"),
        (&["xdp:e0", "--to", "10.0.0.1"], "ADDRESS:PORT"),
        (&["xdp:e0", "--to", "10.0.0.0/8:1"], "from 16 to 30"),
        (&["xdp:e0", "--to", "10.0.0.1:1", "--sandbox", "x"], "off, prefer or require"),
        (&["xdp:e0", "--to", "10.0.0.1:1", "--size", "x"], "--size x: must be a number"),
        (&["xdp:e0", "--to", "10.0.0.1:1", "--seconds", "1e300"], "--seconds 1e300: "),
        (&["null:", "--to", "10.0.0.1:1"], "no interface"),
    ] {
        let output = run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && errors.contains(part), "{arguments:?}: {errors}");
    }
}

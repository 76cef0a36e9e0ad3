//! Taps whose packets the kernel moves: `vhost_net` of Debian's kernel, which the one that runs the
//! tests may lack.
//!
//! ```text
//!   10.6.0.1  va ── vhost-net ══ rings ══ towpath ══ rings ══ vhost-net ── vb  10.6.0.2
//! ```
//!
//! Each host is a namespace.

use crate::cable::ended;
use crate::guest::{Guest, alone_with, inside};
use crate::kernel::Release;
use crate::says;
use crate::support::Summary;
use serde_json::Value;

/// The addresses of both hosts.
const HOSTS: [&str; 2] = ["10.6.0.1", "10.6.0.2"];

/// Bytes of the transferred file.
const FILE: u32 = 4 << 20;

/// Two namespaces; the prefixes of commands in them.
struct Hosts<'a> {
    guest: &'a mut Guest,
    prefixes: [String; 2],
}

impl<'a> Hosts<'a> {
    #[track_caller]
    fn new(guest: &'a mut Guest) -> Hosts<'a> {
        load(guest);
        let prefixes = ["a", "b"].map(|name| {
            guest.run(&format!("unshare -n sleep 100000 & echo $! >/tmp/host-{name}"));
            let pid = guest.run(&format!("cat /tmp/host-{name}"));
            guest.until("a namespace", &format!("[ $(readlink /proc/{pid}/ns/net) != $(readlink /proc/1/ns/net) ]"));
            format!("nsenter -t {pid} -n")
        });
        Hosts { guest, prefixes }
    }

    /// A tap of the `n`th host.
    fn tap(&mut self, n: usize, options: &str) -> String {
        let name = ["a", "b"][n];
        let pid = self.guest.run(&format!("cat /tmp/host-{name}"));
        format!("tap:v{name}?netns=/proc/{pid}/ns/net,addr={}/24{options}", HOSTS[n])
    }

    /// Starts `towpath fwd` between taps of both hosts, which have these options.
    #[track_caller]
    fn forward(&mut self, options: [&str; 2], more: &str) {
        let taps = [0, 1].map(|n| self.tap(n, options[n]));
        self.start(&format!("'{}' '{}' {more}", taps[0], taps[1]));
        let ping = format!("{} ping -c 1 -W 1 {}", self.prefixes[0], HOSTS[1]);
        self.guest.until("the other host answers", &ping);
    }

    /// Starts `towpath fwd`.
    #[track_caller]
    fn start(&mut self, args: &str) {
        self.guest.run("rm -f /tmp/fwd.out /tmp/control");
        let fwd = format!("towpath fwd {args} --json --control /tmp/control");
        self.guest.run(&format!("{fwd} >/tmp/fwd.out 2>/tmp/fwd.err & echo $! >/tmp/fwd.pid"));
        self.guest.until("towpath runs, or has ended", "[ -S /tmp/control ] || ! kill -0 $(cat /tmp/fwd.pid)");
        self.guest.run("[ -S /tmp/control ] || ! cat /tmp/fwd.err");
    }

    /// What `towpath state` says of it.
    #[track_caller]
    fn state(&mut self) -> Value {
        let text = self.guest.run("towpath state --control /tmp/control --json");
        let state: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        state["units"][0].clone()
    }

    #[track_caller]
    fn stop(&mut self) -> Summary {
        self.guest.run("kill -TERM $(cat /tmp/fwd.pid)");
        self.ended()
    }

    #[track_caller]
    fn ended(&mut self) -> Summary {
        let summary = ended(self.guest, "fwd");
        summary.is_balanced();
        summary
    }

    /// Ping, TCP, UDP and a file both ways.
    #[track_caller]
    fn carries_everything(&mut self, size: u32) {
        let [a, b] = self.prefixes.clone();
        self.guest.run(&format!("{a} ping -c 5 -i 0.05 -W 2 -s {size} {}", HOSTS[1]));
        self.guest.run(&format!("{b} ping -c 5 -i 0.05 -W 2 -s {size} {}", HOSTS[0]));
        for options in ["-n 32M", "-n 32M -R", "-u -l 1200 -b 20M -n 1M", "-u -l 1200 -b 20M -n 1M -R"] {
            self.iperf(options);
        }
        self.guest.run(&format!("mkdir -p /tmp/vwww && head -c {FILE} /dev/urandom >/tmp/vwww/file"));
        for (host, [server, client]) in [(HOSTS[1], [&b, &a]), (HOSTS[0], [&a, &b])] {
            self.guest.run(&format!("{server} httpd -f -p {host}:81 -h /tmp/vwww & echo $! >/tmp/httpd"));
            let fetch = format!("{client} wget -q -O /tmp/got http://{host}:81/file");
            self.guest.until("a file", &fetch);
            self.guest.run("cmp /tmp/got /tmp/vwww/file; kill $(cat /tmp/httpd)");
        }
    }

    #[track_caller]
    fn iperf(&mut self, options: &str) {
        let [a, b] = self.prefixes.clone();
        self.guest.run(&format!("rm -f /tmp/server; {b} iperf3 -s -1 --forceflush >/tmp/server 2>&1 &"));
        self.guest.until("a server", "grep -q listening /tmp/server");
        let text = self.guest.run(&format!("{a} iperf3 -J -c {} {options}", HOSTS[1]));
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let end = &report["end"];
        let received = if end["sum_received"].is_null() { &end["sum"] } else { &end["sum_received"] };
        println!("  {options}: {:.0} Mb/s", received["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6);
        assert!(received["bytes"].as_f64().unwrap_or(0.0) > 0.0, "{report:#}");
    }

    /// An `ip` command of the `n`th host.
    #[track_caller]
    fn ip(&mut self, n: usize, args: &str) {
        self.guest.run(&format!("{} ip {args}", self.prefixes[n]));
    }
}

impl Drop for Hosts<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.guest.run("kill $(cat /tmp/host-a) $(cat /tmp/host-b)");
        }
    }
}

fn load(guest: &mut Guest) {
    guest.run("for module in $(cat /modules/vhost); do insmod /modules/$module 2>/dev/null || true; done; [ -c /dev/vhost-net ]");
}

#[test]
fn a_machine_without_vhost_net_is_told_how_to_get_it_or_the_port_moves_packets_itself() {
    inside("a tap without vhost-net", |guest| {
        guest.run("for module in $(sed '1!G;h;$!d' /modules/vhost); do rmmod $module 2>/dev/null || true; done; ! [ -c /dev/vhost-net ]");
        let refused = guest.try_run("towpath probe 'tap:vx?vhost=require'");
        assert_ne!(refused.code, 0, "{refused:?}");
        says(&refused.text, &["/dev/vhost-net", "modprobe vhost_net"]);
        says(&guest.run("towpath probe 'tap:vx?vhost=prefer'"), &["vhost", "modprobe vhost_net"]);
        guest.run("[ ! -e /sys/class/net/vx ]");
        load(guest);
        let probe = guest.run("towpath probe 'tap:vx?vhost=require'");
        println!("{probe}");
        says(&probe, &["vhost", "the kernel moves the packets", "sockets interface tun vhost-net"]);
        let long = guest.try_run("towpath probe 'tap:vx?vhost=require,mtu=9217'");
        assert_ne!(long.code, 0, "{long:?}");
        says(&long.text, &["mtu=9217", "at most 9216 with vhost"]);
    });
}

#[test]
fn two_hosts_talk_by_taps_whose_packets_the_kernel_moves() {
    inside("two taps by vhost-net", |guest| {
        let mut hosts = Hosts::new(guest);
        hosts.forward([",vhost=require"; 2], "");
        hosts.carries_everything(1400);
        let summary = hosts.stop();
        println!("{summary:#?}");
        for port in &summary.ports {
            assert!(port.rx.bytes > 4000 * port.rx.packets, "super-packets: {summary:#?}");
        }
        assert!(summary.balance.sent > 1000 && summary.failed.is_empty() && summary.gone.is_empty(), "{summary:#?}");
    });
}

/// Its threads are those of the process that uses it, and it uses buffers in order.
#[test]
fn the_sandbox_holds_beside_threads_of_vhost_net_that_a_later_kernel_adds_to_the_process() {
    let name = "the_sandbox_holds_beside_threads_of_vhost_net_that_a_later_kernel_adds_to_the_process";
    alone_with(name, Release::Newer, |room| {
        let mut guest = room.boot("vhost-net", 512, |_| {});
        let mut hosts = Hosts::new(&mut guest);
        println!("{}", hosts.guest.run("towpath probe 'tap:vx?vhost=require'"));
        hosts.forward([",vhost=require"; 2], "--sandbox require");
        let threads = hosts.guest.run("cat /proc/$(cat /tmp/fwd.pid)/task/*/comm");
        assert_eq!(threads.lines().filter(|name| name.starts_with("vhost-")).count(), 2, "{threads}");
        hosts.carries_everything(1400);
        let summary = hosts.stop();
        assert!(summary.sandbox.missing.is_empty() && summary.failures.is_empty(), "{summary:#?}");
    });
}

#[test]
fn the_other_end_may_move_its_packets_itself_and_frames_may_be_long() {
    inside("a tap by vhost-net and one without", |guest| {
        let mut hosts = Hosts::new(guest);
        hosts.forward([",vhost=require,mtu=9000", ",mtu=9000"], "");
        hosts.carries_everything(8900);
        hosts.stop();
    });
}

#[test]
fn taps_by_vhost_net_have_several_queues() {
    inside("taps by vhost-net with two queues", |guest| {
        let mut hosts = Hosts::new(guest);
        hosts.forward([",vhost=require,queues=2"; 2], "--workers 2");
        hosts.carries_everything(1400);
        hosts.iperf("-n 16M -P 8");
        let state = hosts.state();
        let routes = state["routes"].as_array().expect("routes");
        let busy = routes.iter().filter(|route| route["packets"].as_u64().unwrap_or(0) > 0).count();
        assert_eq!((routes.len(), busy), (4, 4), "{state:#}");
        hosts.stop();
    });
}

#[test]
fn an_interface_that_goes_down_comes_back_and_one_that_is_deleted_ends_the_port() {
    inside("a tap by vhost-net that goes down", |guest| {
        let mut hosts = Hosts::new(guest);
        hosts.forward([",vhost=require"; 2], "");
        let [a, _] = hosts.prefixes.clone();
        hosts.ip(1, "link set vb down");
        hosts.guest.until("the link is down", "towpath state --control /tmp/control | grep -q 'tap:vb  *down'");
        hosts.guest.try_run(&format!("{a} ping -c 3 -i 0.05 -W 1 {}", HOSTS[1]));
        hosts.ip(1, "link set vb up");
        hosts.guest.until("it answers again", &format!("{a} ping -c 1 -W 1 {}", HOSTS[1]));
        hosts.ip(1, "link del vb");
        let summary = hosts.ended();
        println!("{summary:#?}");
        assert_eq!(summary.gone.len(), 1, "{summary:#?}");
        let lost = &summary.balance.drops;
        assert!(lost.iter().any(|drop| drop.reason == "link-down" && drop.packets > 0), "{summary:#?}");
    });
}

#[test]
fn packets_in_the_memory_of_another_process_go_to_the_kernel_from_where_they_lie() {
    inside("memory of a front end and vhost-net", |guest| {
        let mut hosts = Hosts::new(guest);
        let tap = hosts.tap(0, ",vhost=require");
        hosts.start(&format!("vhost:/tmp/vm.sock '{tap}'"));
        // The near host knows the address, also when the interface is made again.
        let far = hosts.tap(1, ",mac=02:00:00:00:00:0b");
        for _ in 0..2 {
            // The front end comes and goes, and its memory with it.
            let front = format!("towpath fwd virtio:user=/tmp/vm.sock '{far}' --json");
            hosts.guest.run(&format!("{front} >/tmp/front.out 2>&1 & echo $! >/tmp/front.pid"));
            let ping = format!("{} ping -c 1 -W 1 {}", hosts.prefixes[0], HOSTS[1]);
            hosts.guest.until("the other host answers", &ping);
            hosts.carries_everything(1400);
            hosts.guest.run("kill -TERM $(cat /tmp/front.pid)");
            hosts.guest.until("the front end has ended", "! kill -0 $(cat /tmp/front.pid)");
        }
        let sent = &hosts.state()["ports"][1]["tx"];
        assert!(sent["packets"].as_u64() > Some(1000) && sent["copied"] == 0, "{sent:#}");
        let summary = hosts.stop();
        assert!(!summary.events.iter().any(|event| event.event == "bounced"), "{summary:#?}");
    });
}

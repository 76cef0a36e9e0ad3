//! Two hosts inside the machine, joined by `towpath fwd` between the NIC behind VFIO and a tap.
//!
//! ```text
//!   10.7.0.1  tp0 ── tap ── towpath ── 82574L ── hub ── virtio ── 10.7.0.2   (another namespace)
//! ```

use crate::guest::{Guest, NIC, PEER};
use crate::interface;
use crate::support::Summary;
use crate::support::datapath::Line;
use std::time::{Duration, Instant};

pub(crate) const NEAR: &str = "10.7.0.1";
pub(crate) const FAR: &str = "10.7.0.2";

/// Bytes of the transferred file.
const FILE: u32 = 4 << 20;

/// Starts `towpath fwd ARGS --json`, whose files are `/tmp/NAME.out`, `.err` and `.pid`.
#[track_caller]
pub(crate) fn start(guest: &mut Guest, name: &str, args: &str) {
    let [out, err, pid] = ["out", "err", "pid"].map(|kind| format!("/tmp/{name}.{kind}"));
    // The shell's child truncates the file when it is scheduled: until then old output would be
    // taken for new.
    guest.run(&format!("rm -f {out}"));
    guest.run(&format!("towpath fwd {args} --json >{out} 2>{err} & echo $! >{pid}"));
    guest.until("towpath moves packets, or has ended", &format!("[ -s {out} ] || ! kill -0 $(cat {pid})"));
    guest.run(&format!("[ -s {out} ] || ! cat {err}"));
}

/// Stops it and waits for its end.
#[track_caller]
pub(crate) fn stop(guest: &mut Guest, name: &str) -> Summary {
    guest.run(&format!("kill -TERM $(cat /tmp/{name}.pid)"));
    ended(guest, name)
}

/// Waits until it has ended.
#[track_caller]
pub(crate) fn ended(guest: &mut Guest, name: &str) -> Summary {
    guest.until("it has drained", &format!("! kill -0 $(cat /tmp/{name}.pid)"));
    let last = guest.run(&format!("tail -n 1 /tmp/{name}.out"));
    match serde_json::from_str(&last) {
        Ok(Line::Summary(summary)) => *summary,
        other => {
            panic!("the last line is no summary: {other:?}: {last}\n{}", guest.run(&format!("cat /tmp/{name}.err")))
        }
    }
}

/// The far host: a namespace with the kernel's own NIC.
pub(crate) struct Far {
    /// `nsenter …`, the prefix of its commands.
    pub(crate) prefix: String,
    /// Its interface.
    pub(crate) name: String,
}

impl Far {
    pub(crate) fn new(guest: &mut Guest) -> Far {
        // A namespace lives as long as a process in it.
        guest.run("unshare -n sleep 100000 & echo $! >/tmp/far");
        let pid = guest.run("cat /tmp/far");
        let prefix = format!("nsenter -t {pid} -n");
        guest.until("the namespace", &format!("[ $(readlink /proc/{pid}/ns/net) != $(readlink /proc/1/ns/net) ]"));
        let far = Far { prefix, name: "far0".to_owned() };
        far.enter(guest);
        far
    }

    /// The interface moves to the namespace, and gets its address.
    pub(crate) fn enter(&self, guest: &mut Guest) {
        let Far { prefix, name } = self;
        // The kernel's driver of the NIC may get the name while the interface is in its namespace.
        let now = interface(guest, PEER);
        guest.run(&format!("[ {now} = {name} ] || {{ ip link set {now} down && ip link set {now} name {name}; }}"));
        guest.run(&format!("ip link set {name} netns $(cat /tmp/far)"));
        guest.run(&format!("{prefix} ip addr add {FAR}/24 dev {name} && {prefix} ip link set {name} up"));
    }

    /// Waits until the near host answers.
    #[track_caller]
    pub(crate) fn reaches(&self, guest: &mut Guest) {
        // The address may have moved to another interface, whose MAC address the far host would ask
        // for half a minute later.
        guest.try_run(&format!("{} arp -d {NEAR}", self.prefix));
        guest.until("the near host answers", &format!("{} ping -c 1 -W 1 {NEAR}", self.prefix));
    }

    /// The interface returns to the first namespace.
    pub(crate) fn end(self, guest: &mut Guest) {
        // Explicit, because the namespace ends only with its last connection.
        guest.run(&format!("{} ip link set {} netns 1", self.prefix, self.name));
        guest.run("kill $(cat /tmp/far)");
        guest.until(
            "the far host's interface is back",
            &format!("n=$(ls /sys/bus/pci/devices/{PEER}/virtio*/net) && [ -n \"$n\" ] && [ -d /sys/class/net/$n ]"),
        );
    }
}

pub(crate) struct Cable<'a> {
    pub(crate) guest: &'a mut Guest,
    pub(crate) far: Far,
    /// The NIC is given back at the end.
    bound: bool,
}

impl<'a> Cable<'a> {
    /// Both hosts with their addresses, a file that each serves, and the NIC for towpath.
    pub(crate) fn new(guest: &'a mut Guest) -> Cable<'a> {
        guest.run(&format!("towpath bind {NIC}"));
        Cable { bound: true, ..Cable::without_nic(guest) }
    }

    /// The same, but the caller binds and unbinds NICs.
    pub(crate) fn without_nic(guest: &'a mut Guest) -> Cable<'a> {
        let far = Far::new(guest);
        let prefix = &far.prefix;
        guest.run(&format!("tunctl -t tp0 && ip addr add {NEAR}/24 dev tp0 && ip link set tp0 up"));
        guest.run(&format!("mkdir -p /tmp/www && head -c {FILE} /dev/urandom >/tmp/www/file"));
        guest.run(&format!("httpd -p {NEAR}:80 -h /tmp/www && {prefix} httpd -p {FAR}:80 -h /tmp/www"));
        Cable { guest, far, bound: false }
    }

    /// Starts `towpath fwd`; `options` are the NIC's.
    pub(crate) fn start(&mut self, options: &str) {
        self.start_on(NIC, options);
    }

    /// The same with another NIC.
    pub(crate) fn start_on(&mut self, bdf: &str, options: &str) {
        self.start_port(&format!("e1000e:vfio={bdf}{options}"));
    }

    /// The same with any port.
    pub(crate) fn start_port(&mut self, port: &str) {
        start(self.guest, "fwd", &format!("'{port}' tap:tp0 --interval 100ms"));
    }

    /// Stops it and waits for its end.
    pub(crate) fn stop(&mut self) -> Summary {
        stop(self.guest, "fwd")
    }

    /// Waits until it has ended.
    pub(crate) fn ended(&mut self) -> Summary {
        ended(self.guest, "fwd")
    }

    /// Both hosts ping each other.
    pub(crate) fn ping(&mut self) {
        self.guest.until("the far host answers", &format!("ping -c 1 -W 1 {FAR}"));
        let far = &self.far.prefix;
        self.guest.run(&format!("ping -c 5 -i 0.1 -W 2 {FAR} && {far} ping -c 5 -i 0.1 -W 2 -s 1400 {NEAR}"));
    }

    /// The far host sends a ping every few milliseconds, until `calm`.
    pub(crate) fn flood(&mut self) {
        let far = &self.far.prefix;
        self.guest.run(&format!("{far} ping -i 0.002 -s 1400 {NEAR} >/dev/null 2>&1 & echo $! >/tmp/flood"));
    }

    pub(crate) fn calm(&mut self) {
        self.guest.run("kill $(cat /tmp/flood)");
    }

    /// Each host fetches the file from the other.
    pub(crate) fn fetch_both_ways(&mut self) {
        let far = &self.far.prefix;
        for fetch in [format!("wget -q -O - http://{FAR}/file"), format!("{far} wget -q -O - http://{NEAR}/file")] {
            let began = Instant::now();
            self.guest.run(&format!("{fetch} | cmp - /tmp/www/file"));
            let rate = f64::from(FILE) * 8.0 / began.elapsed().as_secs_f64() / 1e6;
            eprintln!("{fetch}: {rate:.0} Mb/s");
        }
    }

    /// Fetches the file while towpath is killed and started again.
    pub(crate) fn fetch_through_a_kill(&mut self) {
        // A slow page, so that the transfer is under way when towpath is killed, on a machine of
        // any speed.
        let body = "for i in $(seq 40); do head -c 524288 /tmp/www/file; sleep 0.1; done";
        let script = format!("#!/bin/sh\necho Content-Type: application/octet-stream\necho\n{body}\n");
        self.guest.run(&format!("mkdir -p /tmp/www/cgi-bin && printf '{script}' >/tmp/www/cgi-bin/slow"));
        self.guest.run("chmod +x /tmp/www/cgi-bin/slow && rm -f /tmp/got /tmp/fetched");
        let fetch = format!("wget -q -O /tmp/got http://{FAR}/cgi-bin/slow && touch /tmp/fetched");
        self.guest.run(&format!("( {fetch} ) >/dev/null 2>&1 &"));
        // The wait runs inside the guest: its transfer does not wait for decisions outside.
        let some = "until [ $(wc -c </tmp/got 2>/dev/null || echo 0) -gt 500000 ]; do sleep 0.01; done";
        self.guest.run(&format!("dmesg -c >/dev/null; {some}; kill -KILL $(cat /tmp/fwd.pid)"));
        self.guest.until("it is gone", "! kill -0 $(cat /tmp/fwd.pid)");
        std::thread::sleep(Duration::from_millis(500));
        self.guest.run("[ ! -e /tmp/fetched ]");
        self.start("");
        self.guest.until("the transfer is at its end", "[ -e /tmp/fetched ]");
        // Neither the kernel's teardown of the first process nor the start of the second lets the
        // device use the addresses of the first.
        let faults = self.guest.try_run("dmesg | grep DMAR");
        assert_eq!(faults.code, 1, "the device reached for memory that it had lost: {}", faults.text);
        self.guest.run(&format!("{} | cmp - /tmp/got && rm /tmp/got", body.replace("sleep 0.1", "true")));
    }

    /// Takes everything down.
    pub(crate) fn end(self) {
        self.guest.run("killall httpd; tunctl -d tp0");
        self.far.end(self.guest);
        if self.bound {
            self.guest.run(&format!("towpath unbind {NIC}"));
        }
    }
}

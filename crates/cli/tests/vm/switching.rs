//! Beside parts of the kernel that the one that runs the tests may lack.

use crate::guest::{Guest, inside};
use crate::says;

/// Loads the bridge and the classifiers.
fn load(guest: &mut Guest) {
    guest.run("for module in $(cat /modules/switching); do insmod /modules/$module || true; done; mkdir -p /run/netns");
}

#[test]
fn a_bridge_with_vlans_is_the_bridge_of_a_kernel_that_filters_vlans() {
    const SAME: &str = "with_vlans_too_what_leaves_by_which_port_is_what_leaves_the_bridge_of_the_kernel";
    inside("a bridge with VLANs beside the kernel's", |guest| {
        load(guest);
        let text = guest.run(&format!(
            "PATH=/iproute2:$PATH TOWPATH_REQUIRE=all learning_bridge --exact {SAME} --nocapture --test-threads 1"
        ));
        says(&text, &["seed ", "1 passed"]);
    });
}

/// The hint that `towpath help packet` gives for frames that the host gets as well.
fn hint(help: &str) -> String {
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, hint) = help.split_once("(to keep them from it: ").expect(&help);
    hint.split_once(')').expect(hint).0.to_owned()
}

#[test]
fn the_rule_that_help_gives_keeps_the_frames_of_a_packet_port_from_the_host() {
    inside("frames of a packet port are kept from the host", |guest| {
        load(guest);
        // The shell of busybox prefers its own programs, whatever the PATH is.
        let hint = hint(&guest.run("towpath help packet")).replace("eth1", "shared0").replace("tc ", "/iproute2/tc ");
        guest.run("unshare -n sleep 100000 & echo $! >/tmp/other");
        let own = "[ $(readlink /proc/$(cat /tmp/other)/ns/net) != $(readlink /proc/self/ns/net) ]";
        guest.until("it has a network of its own", own);
        let other = format!("nsenter -t {} -n", guest.run("cat /tmp/other").trim());
        guest.run("/iproute2/ip link add shared0 type veth peer name other0 netns $(cat /tmp/other)");
        guest.run("ip addr add 10.9.0.1/24 dev shared0 && ip link set shared0 up");
        guest.run(&format!("{other} ip addr add 10.9.0.2/24 dev other0 && {other} ip link set other0 up"));
        let ping = format!("{other} ping -c 3 -W 1 10.9.0.1");
        guest.until("the host answers", &ping);

        guest.run(&hint);
        let fwd = "towpath fwd packet:shared0 null: --oneway --count 3 --control /tmp/control";
        guest.run(&format!("{fwd} >/tmp/shared 2>&1 & echo $! >/tmp/towpath"));
        guest.until("towpath runs", "[ -S /tmp/control ]");
        assert!(guest.try_run(&ping).code != 0, "the host answers still");
        guest.until("towpath has them", "! [ -d /proc/$(cat /tmp/towpath) ]");
        // A fourth one that came in the same burst is dropped as `stopped`.
        says(&guest.run("cat /tmp/shared"), &[" in = 3 out"]);
        guest.run("ip link del shared0; kill $(cat /tmp/other)");
    });
}

//! Two pairs of queues of a virtio NIC by VFIO: towpath in the guest is its driver.
//!
//! ```text
//!   10.9.0.2  tap ── towpath ── 00:06.0 ══ QEMU ── tap with two queues ── 10.9.0.1, a namespace of the host
//! ```

use crate::guest::{Guest, PEER};
use crate::says;
use crate::support::datapath::Line;
use crate::vhost::{Host, files, in_a_room, tcp};
use serde_json::Value;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use towpath_sys::tun::{self, Attach};

/// The host's tap, with its address.
fn tap(host: &Host) -> Arc<[OwnedFd; 2]> {
    let flags = Attach { ethernet: true, multi_queue: true, vnet_header: true };
    let queues = host.ns.inside(|| {
        [0; 2].map(|_| {
            let queue = tun::open().unwrap();
            tun::attach(&queue, "tp0", flags).unwrap();
            queue.into()
        })
    });
    host.ns.ip("addr add 10.9.0.1/24 dev tp0");
    host.ns.ip("link set tp0 up");
    Arc::new(queues)
}

/// An IOMMU, and behind it a NIC with two pairs of queues on a tap.
fn devices(qemu: &mut Command, tap: &Arc<[OwnedFd; 2]>) {
    let fds = tap.each_ref().map(|queue| queue.as_raw_fd().to_string()).join(":");
    qemu.args(["-machine", "q35", "-device", "intel-iommu,intremap=on,aw-bits=48"]);
    qemu.arg("-netdev").arg(format!("tap,id=n0,fds={fds}"));
    let nic = "virtio-net-pci,netdev=n0,addr=6.0,disable-legacy=on,iommu_platform=on,romfile=,mac=02:00:00:00:00:06";
    qemu.arg("-device").arg(format!("{nic},mq=on,rss=on,hash=on,packed=on"));
    let tap = tap.clone();
    // SAFETY: fcntl is safe to call between fork and exec, and takes no pointer here.
    unsafe {
        qemu.pre_exec(move || {
            tap.iter().try_for_each(|queue| match libc::fcntl(queue.as_raw_fd(), libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        });
    }
}

/// Packets of each route of the datapath that runs.
fn packets_by_route(guest: &mut Guest) -> Vec<(String, u64)> {
    let text = guest.run("towpath state --control /tmp/control --json");
    let state: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let routes = state["units"][0]["routes"].as_array().unwrap_or_else(|| panic!("{state:#}"));
    let name = |route: &Value| route["name"].as_str().unwrap_or_default().to_owned();
    routes.iter().map(|route| (name(route), route["packets"].as_u64().unwrap_or(0))).collect()
}

#[test]
fn flows_use_both_pairs_of_a_virtio_nic_with_the_hash_of_the_device_and_without() {
    in_a_room("flows_use_both_pairs_of_a_virtio_nic_with_the_hash_of_the_device_and_without", |room| {
        let host = Host::new();
        let tap = tap(&host);
        let mut guest = room.boot("multiqueue", 512, |qemu| devices(qemu, &tap));
        guest.run(&format!("towpath bind {PEER}"));
        let refused = guest.try_run(&format!("towpath probe 'virtio:vfio={PEER}?queues=3'"));
        assert_eq!(refused.code, 2, "{}", refused.text);
        says(&refused.text, &["queues=3: must be at most 2: the device has no more", "mq=on"]);
        let _server = host.serve("iperf3", "-s --forceflush", "listening");
        for options in ["", ",rss=off"] {
            let ports = format!("'virtio:vfio={PEER}?queues=2{options}' 'tap:tp1?addr=10.9.0.2/24,queues=2'");
            let fwd = format!("towpath fwd {ports} --workers 2 --control /tmp/control --json");
            guest.run(&format!("{fwd} >/tmp/fwd.out 2>/tmp/fwd.err & echo $! >/tmp/fwd.pid"));
            guest.until("it runs, or has ended", "[ -S /tmp/control ] || ! kill -0 $(cat /tmp/fwd.pid)");
            guest.run("[ -S /tmp/control ] || ! cat /tmp/fwd.err");
            guest.until("the host answers", "ping -c 1 -W 1 10.9.0.1");
            guest.run("ping -c 20 -i 0.05 -s 1400 10.9.0.1");
            tcp(&mut guest, "10.9.0.1", "-t 2 -P 8");
            tcp(&mut guest, "10.9.0.1", "-t 2 -P 8 -R");
            files(&host, &mut guest);
            let routes = packets_by_route(&mut guest);
            println!("  {options}: {routes:?}");
            assert!(routes.len() == 4 && routes.iter().all(|(_, packets)| *packets > 100), "{routes:?}");
            guest.run("kill -TERM $(cat /tmp/fwd.pid)");
            guest.until("it has drained", "! kill -0 $(cat /tmp/fwd.pid)");
            let last = guest.run("tail -n 1 /tmp/fwd.out");
            let Ok(Line::Summary(summary)) = serde_json::from_str(&last) else {
                panic!("the last line is no summary: {last}\n{}", guest.run("cat /tmp/fwd.err"));
            };
            summary.is_balanced();
            assert!(summary.failed.is_empty() && summary.gone.is_empty(), "{options}: {summary:#?}");
        }
        guest.run(&format!("towpath unbind {PEER}"));
    });
}

//! Connections that come, end, and come again.

use super::front_end::*;
use std::os::unix::net::UnixListener;
use towpath_packet::port::Calls;
use towpath_virtio::vhost_user::Request;

fn passes(rig: &mut Rig, front: &mut FrontEnd, mark: u8) {
    front.transmit(1, &frame(mark));
    assert_eq!(rig.receive(0), frame(mark));
}

#[test]
fn a_second_front_end_was_hung_up_on_and_the_first_goes_on() {
    let mut rig = Rig::new("", 1);
    let mut first = FrontEnd::connect(&rig.path);
    first.bring_up(PLAIN, 2);
    assert!(FrontEnd::connect(&rig.path).was_hung_up_on());
    until(|| rig.event("connections-refused") == 1);
    passes(&mut rig, &mut first, 1);
}

#[test]
fn a_front_end_that_comes_again_goes_on_with_its_rings() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    passes(&mut rig, &mut front, 1);
    front.post(0);
    let FrontEnd { file, rings, channel, .. } = front;
    drop(channel);
    until(|| rig.event("connections-ended") == 1);
    assert!(rig.receives_nothing());
    let socket = FrontEnd::connect(&rig.path).channel.into_parts().0;
    let mut again = FrontEnd::with_memory(socket, file);
    again.rings = rings;
    again.negotiate(PLAIN);
    assert!(again.set_memory());
    // As QEMU: the base is the used index.
    assert!(again.start_ring(0, Some(0)) && again.start_ring(1, Some(1)));
    assert!(again.enable(0, true) && again.enable(1, true));
    passes(&mut rig, &mut again, 2);
    assert_eq!(rig.send(0, &frame(3)), 1);
    assert!(again.used(0).is_some(), "the buffer from before is still there");
    assert_eq!(rig.event("connections"), 2);
}

#[test]
fn a_port_that_comes_again_finds_the_front_end() {
    let rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    front.transmit(1, &frame(1));
    let dir = rig.end();
    assert!(front.was_hung_up_on());
    let mut rig = Rig::at(dir, "", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 2);
    passes(&mut rig, &mut front, 1);
}

#[test]
fn a_port_that_connects_tries_until_a_front_end_listens() {
    let mut rig = Rig::new("server=off", 1);
    for round in 0..2 {
        let _ = std::fs::remove_file(&rig.path);
        let listener = UnixListener::bind(&rig.path).unwrap();
        let mut front = FrontEnd::on(listener.accept().unwrap().0.into());
        drop(listener);
        front.bring_up(PLAIN, 2);
        passes(&mut rig, &mut front, round);
        drop(front);
        until(|| rig.event("connections-ended") == u64::from(round) + 1);
    }
}

#[test]
fn a_sandbox_keeps_what_the_port_needs_in_either_role() {
    let needs = |text: &str| {
        use towpath_packet::port::Port;
        super::super::open(super::super::Config::from_uri(&text.parse().unwrap()).unwrap()).unwrap().needs()
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listens = needs(&format!("vhost:{}", path.display()));
    let shared = needs(&format!("vhost:{}?mode=660", path.display()));
    let connects = needs(&format!("vhost:{}?server=off", path.display()));
    assert!(listens.has(Calls::Accept) && listens.has(Calls::RemoveFiles) && !listens.has(Calls::Connect));
    assert!(connects.has(Calls::Connect) && !connects.has(Calls::RemoveFiles));
    // Calls are writes only where all front ends are of this user.
    assert!(!listens.has(Calls::Aio) && shared.has(Calls::Aio) && connects.has(Calls::Aio));
}

#[test]
fn a_front_end_that_leaves_within_a_message_is_one_that_left() {
    let rig = Rig::new("", 1);
    let front = FrontEnd::connect(&rig.path);
    front.send(Request::SetOwner, &[], &[]);
    towpath_sys::stream::send(std::os::fd::AsFd::as_fd(&front.channel), &[1, 0], &[]).unwrap();
    drop(front);
    until(|| rig.log().contains("within a message"));
}

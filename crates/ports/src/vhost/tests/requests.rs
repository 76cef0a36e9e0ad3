//! What requests are answered, and which of them are refused.

use super::front_end::*;
use std::os::fd::AsFd;
use towpath_sys::{EventFd, stream};
use towpath_virtio::vhost_user::{ConfigSpace, Request, VringState, read_u64};

#[test]
fn a_device_tells_what_it_is() {
    let rig = Rig::new("mtu=9000", 2);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN | 1 << 3 | 1 << 22);
    assert_eq!((front.ask_u64(Request::GetQueueNum), front.ask_u64(Request::GetMaxMemSlots)), (2, 32));
    let ask = ConfigSpace { offset: 6, flags: 0, bytes: vec![0; 6] };
    let got = ConfigSpace::from_bytes(&front.ask(Request::GetConfig, &ask.to_bytes())).unwrap();
    assert_eq!(got.bytes, [1, 0, 2, 0, 0x28, 0x23], "up, two pairs, 9000");
    assert!(!front.asks(Request::SetConfig, &ask.to_bytes(), &[]));
    assert!(front.asks(Request::NetSetMtu, &9000u64.to_ne_bytes(), &[]));
    for mtu in [67u64, 9001, u64::MAX] {
        assert!(!front.asks(Request::NetSetMtu, &mtu.to_ne_bytes(), &[]));
    }
    assert_eq!(front.ask_u64(Request::GetStatus), 0);
    assert!(front.asks(Request::SetStatus, &0x10fu64.to_ne_bytes(), &[]));
    assert_eq!(front.ask_u64(Request::GetStatus), 0xf);
}

#[test]
fn features_that_were_not_offered_are_refused_and_the_status_shows_it() {
    let rig = Rig::new("tso=off", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN);
    for foreign in [1 << 5, 1 << 11, 1 << 33] {
        assert!(!front.asks(Request::SetFeatures, &(PLAIN | foreign).to_ne_bytes(), &[]));
        assert!(front.asks(Request::SetStatus, &0xbu64.to_ne_bytes(), &[]));
        assert_eq!(front.ask_u64(Request::GetStatus), 3);
    }
    // Not acknowledged, but shown: the connection goes on.
    front.send(Request::SetFeatures, &(PLAIN | 1 << 33).to_ne_bytes(), &[]);
    front.set_features(PLAIN);
    assert!(front.asks(Request::SetStatus, &0xbu64.to_ne_bytes(), &[]));
    assert_eq!(front.ask_u64(Request::GetStatus), 0xb);
    assert!(rig.log().contains("bit 33 were not offered"), "{}", rig.log());
}

#[test]
fn a_request_is_acknowledged_only_if_that_was_negotiated() {
    let rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.channel.request(Request::SetOwner, &[], &[], true).unwrap();
    front.channel.request(Request::GetFeatures, &[], &[], true).unwrap();
    let first = front.channel.receive_until(soon()).unwrap();
    assert_eq!(first.number, Request::GetFeatures.number(), "and no acknowledgement came before it");
    front.negotiate(PLAIN);
    front.channel.request(Request::GetFeatures, &[], &[], true).unwrap();
    front.channel.receive_reply(Request::GetFeatures, soon()).unwrap();
    assert!(front.asks(Request::SetOwner, &[], &[]), "a reply of its own is not acknowledged");
}

#[test]
fn replies_come_in_the_order_of_the_requests_whose_bytes_may_come_in_pieces() {
    let rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    let order = [Request::GetFeatures, Request::GetQueueNum, Request::GetProtocolFeatures, Request::GetMaxMemSlots];
    let header = |request: Request| [request.number(), 1, 0].map(u32::to_ne_bytes).as_flattened().to_vec();
    let bytes: Vec<u8> = order.iter().cycle().take(40).flat_map(|request| header(*request)).collect();
    for piece in bytes.chunks(7) {
        stream::send(front.channel.as_fd(), piece, &[]).unwrap();
    }
    for request in order.iter().cycle().take(40) {
        front.channel.receive_reply(*request, soon()).unwrap();
    }
}

#[test]
fn a_ring_that_the_device_does_not_have_is_refused() {
    let rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN);
    let event = EventFd::new().unwrap();
    for index in [2, 3, 0xff, 0x100, 0x1_0000, u32::MAX] {
        for request in [Request::SetVringNum, Request::SetVringBase, Request::SetVringEnable] {
            assert!(!front.state(request, index, 1));
        }
        assert!(!front.asks(Request::SetVringAddr, &front.addr(index.min(99), 0).to_bytes(), &[]));
    }
    for request in [Request::SetVringKick, Request::SetVringCall, Request::SetVringErr] {
        assert!(!front.event(request, 2, Some(&event)) && !front.event(request, 255, None));
    }
    assert!(front.state(Request::SetVringNum, 1, 64));
    front.send(Request::GetVringBase, &VringState { index: 2, num: 0 }.to_bytes(), &[]);
    assert!(front.was_hung_up_on(), "there is no answer");
}

#[test]
fn sizes_bases_flags_and_switches_are_bounded() {
    let rig = Rig::new("queue-size=256", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.bring_up(PLAIN, 1);
    for size in [0, 257, 1024, 0x1_0040, u32::MAX] {
        assert!(!front.state(Request::SetVringNum, 1, size), "{size}");
    }
    assert!(!front.state(Request::SetVringEnable, 1, 2));
    let addr = towpath_virtio::vhost_user::VringAddr { flags: 2, ..front.addr(1, 0) };
    assert!(!front.asks(Request::SetVringAddr, &addr.to_bytes(), &[]));
    // These are wrong in what they make together.
    front.make_ring(1);
    assert!(front.enable(1, true));
    assert!(front.state(Request::SetVringNum, 1, 48));
    let addr = front.addr(1, 0).to_bytes();
    assert!(front.asks(Request::SetVringAddr, &addr, &[]));
    let kick = EventFd::new().unwrap();
    assert!(!front.event(Request::SetVringKick, 1, Some(&kick)), "48 is no power of two");
    assert!(front.state(Request::SetVringNum, 1, 64) && front.state(Request::SetVringBase, 1, 0x1_0000));
    assert!(!front.event(Request::SetVringKick, 1, Some(&kick)), "the base has 16 bits");
    assert!(front.state(Request::SetVringBase, 1, 0));
    for user in [USER + 1, USER + MEMORY - 8, USER - 64, 0, u64::MAX - 7] {
        let addr = towpath_virtio::vhost_user::VringAddr { desc: user, ..front.addr(1, 0) };
        assert!(front.asks(Request::SetVringAddr, &addr.to_bytes(), &[]));
        assert!(!front.event(Request::SetVringKick, 1, Some(&kick)), "{user:#x}");
    }
    assert!(front.asks(Request::SetVringAddr, &addr, &[]));
    assert!(front.event(Request::SetVringKick, 1, Some(&kick)), "and now all is right");
    assert_eq!(rig.event("rings-refused"), 7);
}

#[test]
fn an_announcement_leaves_as_if_the_guest_had_sent_it() {
    let mut rig = Rig::new("", 1);
    let mut front = FrontEnd::connect(&rig.path);
    front.negotiate(PLAIN);
    let mac = [2, 0, 0, 0, 0, 7, 0, 0];
    assert!(front.asks(Request::SendRarp, &mac, &[]));
    let frame = rig.receive(0);
    assert_eq!((frame.len(), &frame[6..14]), (60, &[2, 0, 0, 0, 0, 7, 0x80, 0x35][..]));
    assert!(rig.receives_nothing());
}

#[test]
fn what_was_not_negotiated_is_refused() {
    let rig = Rig::new("", 1);
    let requests = [
        (Request::SendRarp, 8),
        (Request::NetSetMtu, 8),
        (Request::SetStatus, 8),
        (Request::GetStatus, 0),
        (Request::ResetDevice, 0),
        (Request::AddMemReg, 40),
        (Request::GetConfig, 12),
        (Request::SetLogBase, 16),
        (Request::SetBackendReqFd, 0),
        (Request::GetInflightFd, 20),
        (Request::VringKick, 8),
        (Request::IotlbMsg, 32),
    ];
    for (request, size) in requests {
        let front = FrontEnd::connect(&rig.path);
        front.send(request, &vec![0; size], &[]);
        assert!(front.was_hung_up_on(), "{request}");
        until(|| rig.event("connections-ended") == rig.event("connections"));
        assert!(rig.log().contains(request.name()), "{}", rig.log());
    }
    let mut front = FrontEnd::connect(&rig.path);
    assert_eq!(read_u64(&front.ask(Request::GetQueueNum, &[])).unwrap(), 1);
}

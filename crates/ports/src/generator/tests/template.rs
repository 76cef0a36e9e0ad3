//! Frames of a capture or in hexadecimal, with fields and stamps of the generator's.

use super::*;

/// A UDP frame with a payload of 30 bytes, in hexadecimal.
fn hex_frame(options: &str) -> String {
    let mut hex = String::new();
    generate(config(&format!("size=72,stamp=off,{options}")), Offloads::NONE, 1, |packet| {
        hex = packet.to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
    });
    hex
}

#[test]
fn a_template_is_sent_as_it_is_but_for_the_fields_that_are_given() {
    for options in ["proto=udp", "proto=tcp", "ip=6", "vlan=7"] {
        let hex = hex_frame(options);
        let bytes = |more: &str| {
            let mut all = Vec::new();
            let config = config(&format!("template=hex:{hex}{more}"));
            generate(config, Offloads::NONE, 3, |packet| all.push(packet.to_vec()));
            all
        };
        let plain = bytes("");
        assert!(plain.iter().all(|frame| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>() == hex));
        let swept = bytes(",dst-mac=2:0:0:0:0:9,dst-port=1000-1001,src-port=0-65535");
        for (i, frame) in swept.iter().enumerate() {
            assert!(verify(frame, LinkKind::Ethernet).is_sound(), "{options}");
            let found = dissect(frame, LinkKind::Ethernet);
            assert_eq!((usize::from(found.flow.dst_port), usize::from(found.flow.src_port)), (1000 + i % 2, i));
            assert_eq!(
                (&frame[..6], &frame[found.payload.into()..]),
                (&[2, 0, 0, 0, 0, 9][..], &plain[0][found.payload.into()..])
            );
        }
    }
}

#[test]
fn stamps_of_a_template_and_of_made_packets_are_found_with_latencies_and_right_checksums() {
    let pool = pool();
    let hex = hex_frame("proto=udp");
    let sources =
        [format!("template=hex:{hex},dst-ip=10.0.0.1-10.0.0.3"), "size=90,proto=tcp".into(), "size=imix,ip=6".into()];
    for options in sources {
        let (control, mut queues) = started(&format!("{options},stamp=time,verify=on,count=100"), 1, &pool);
        let mut arrived = 0;
        while queues.rx[0].state() == State::Up {
            let mut batch = Batch::new();
            queues.rx[0].rx(&mut batch);
            arrived += batch.len() as u64;
            assert!(batch.iter().all(|packet| verify(&packet.to_vec(), LinkKind::Ethernet).is_sound()), "{options}");
            queues.tx[0].tx(&mut batch);
        }
        let mut found = control.verified().unwrap();
        let latency = found.latency.take().unwrap();
        assert_eq!((arrived, found), (100, verified! { arrived: 100 }), "{options}");
        assert!(
            latency.samples == 100 && latency.min > 0 && latency.p50 <= latency.p99 && latency.max < 60_000_000_000
        );
    }
}

#[test]
fn what_a_template_cannot_be_names_the_frame_and_the_rule() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.pcap");
    let capture = |frames: &[(&[u8], u32)]| {
        let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0];
        for (frame, original) in frames {
            file.extend([0; 8]);
            file.extend((frame.len() as u32).to_le_bytes());
            file.extend(original.to_le_bytes());
            file.extend(*frame);
        }
        std::fs::write(&path, file).unwrap();
    };
    let error = |options: &str| match open(config(&format!("template={}{options}", path.display()))) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6], &[0; 28]].concat();
    capture(&[(&arp, 42), (&arp, 42)]);
    assert_eq!(error(""), "");
    assert!(error(",dst-ip=10.0.0.1").contains("frame 1: dst-ip needs an IPv4 header in the frame"));
    assert!(error(",vlan=7").contains("frame 1: vlan needs an 802.1Q tag"));
    assert!(error(",stamp=number").contains("frame 1: stamp needs a UDP or TCP header"));
    assert!(error(",layer=ip").contains("give layer=ethernet"));
    capture(&[(&arp, 42), (&arp, 1500)]);
    assert!(error("").contains("frame 2: has 42 of 1500 bytes: record whole frames"));
    // Frames of other links are what they are on Ethernet.
    let linux = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0][..], &arp[12..]].concat();
    capture(&[(&linux, 44), (&linux[..12], 12)]);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] = 113;
    std::fs::write(&path, &bytes).unwrap();
    assert!(error("").contains("frame 2: a frame that ends within its headers"), "{}", error(""));
    std::fs::write(&path, &bytes[..24 + 16 + linux.len()]).unwrap();
    let mut sent = Vec::new();
    generate(config(&format!("template={}", path.display())), Offloads::NONE, 1, |packet| sent = packet.to_vec());
    assert_eq!(sent[6..], [&[2, 0, 0, 0, 0, 7][..], &arp[12..]].concat());
    capture(&[(&arp[..13], 13)]);
    assert!(error("").contains("frame 1: has 13 bytes"), "{}", error(""));
    capture(&[]);
    assert!(error("").contains("must have a frame"), "{}", error(""));
    std::fs::write(&path, "no capture").unwrap();
    assert!(!error("").is_empty());
}

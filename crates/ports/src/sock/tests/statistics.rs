//! What an application learns of its frames, and the operator with it.

use super::*;
use towpath_packet::port::TxLayout;

impl Rig {
    /// The end of the line of the only session.
    fn session(&self) -> String {
        let lines = self.control.session_log();
        assert_eq!(lines.len(), 1);
        lines[0].split_once("queue 0: ").unwrap().1.to_owned()
    }
}

#[test]
fn a_sender_is_told_how_many_frames_were_too_short_or_too_long() {
    // As pages, copied whole, and with heads.
    for (options, headroom) in [("mtu=500", 0), ("mtu=500,tx=copy", 0), ("mtu=500", 2)] {
        let mut rig = Rig::new(options);
        rig.rx.set_tx_layout(TxLayout { linear: TxLinear::None, headroom, tailroom: 0 });
        let umem = Umem::new(8, 2048).unwrap();
        let mut app = rig.connect_unchecked(&umem);
        let mut sent: Vec<_> = [523, 13, 522, 2000].iter().flat_map(|len| frames(&umem, 1, *len)).collect();
        app.tx(&mut sent).unwrap();
        assert_eq!(rig.receive(1).as_slice()[0].len(), 522);
        rig.until_event("frame-length", 3);
        rig.completes(&mut app, 4);
        let Statistics { tx_too_short, tx_too_long, tx_invalid_descs, .. } = app.statistics();
        assert_eq!((tx_too_short, tx_too_long, tx_invalid_descs), (1, 2, 0), "{options}");
        assert_eq!(rig.session(), "here, tx_too_short 1, tx_too_long 2");
        drop(app);
        rig.until_event("sessions-ended", 1);
        assert_eq!(rig.session(), "left, tx_too_short 1, tx_too_long 2", "the log keeps the counts");
        rig.end();
    }
}

#[test]
fn a_sender_is_told_which_request_ended_its_session() {
    let mut rig = Rig::new("");
    let umem = Umem::new(8, 2048).unwrap();
    let mut app = rig.connect(&umem, "default");
    let mut frame = umem.alloc().unwrap();
    // The field lies behind the packet.
    assert!(frame.set_range(10, 60) && frame.request_checksum(59, 6));
    app.tx(&mut vec![frame]).unwrap();
    rig.until_event("bad-descriptor", 1);
    let Statistics { tx_invalid_requests, tx_invalid_descs, .. } = app.statistics();
    assert_eq!((tx_invalid_requests, tx_invalid_descs), (1, 1));
    let end = app.wait(Some(Duration::from_secs(60)));
    assert!(matches!(end, Err(Error::Ended(Statistic::TxInvalidRequests))), "{end:?}");
    assert_eq!(rig.session(), "bad-descriptor, tx_invalid_descs 1, tx_invalid_requests 1");
    drop(app);
    rig.end();
}

#[test]
fn requests_that_are_skipped_are_counted_and_the_others_are_granted() {
    let mut rig = Rig::new("");
    let hello = Hello { skip_invalid: true, tx_metadata: 16, rules: "default".to_owned(), ..HELLO };
    let (mut program, memory) = Program::with_memory(&rig, &hello);
    for (chunk, flags) in [(0, 1u64), (1, 2), (2, 1 << 40), (3, 0)] {
        let fields = u64::from(34u16) | u64::from(6u16) << 16;
        let metadata = [flags.to_ne_bytes(), fields.to_le_bytes()].concat();
        let metadata: [u8; 16] = metadata.try_into().unwrap();
        assert!(memory.put(chunk * 2048, &metadata));
    }
    // An unknown flag, a checksum, an unknown flag, nothing; and metadata in front of its chunk.
    let descs = [0, 2048, 4096, 6144].map(|chunk| (chunk + 16, 60, Desc::METADATA));
    program.send(&[&descs[..], &[(8192 + 15, 60, Desc::METADATA)]].concat());
    assert_eq!(rig.receive(2).len(), 2);
    until(|| {
        rig.step();
        program.completion.peek(5) == 5
    });
    let Statistics { tx_invalid_requests, tx_invalid_descs, .. } = program.statistics();
    assert_eq!((tx_invalid_requests, tx_invalid_descs), (3, 3));
    assert_eq!(rig.session(), "here, tx_invalid_descs 3, tx_invalid_requests 3");
    drop(program);
    rig.end();
}

#[test]
fn an_entry_of_fill_that_ends_the_session_is_counted_for_it() {
    let mut rig = Rig::new("");
    let (mut program, _memory) = Program::with_memory(&rig, &Hello { rules: "default".to_owned(), ..HELLO });
    rig.until_sessions(1);
    program.post(&[1 << 40]);
    rig.until_event("bad-descriptor", 1);
    assert_eq!(rig.session(), "bad-descriptor, rx_invalid_descs 1");
    drop(program);
    rig.end();
}

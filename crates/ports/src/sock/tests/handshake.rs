//! The messages, from the application to the datapath and back.

use super::super::handshake::{decode, encode, refusal};
use towpath_client::protocol::{Answer, Code, Hello, Malformed, Rings, Sizes, Welcome};

fn hello() -> Hello {
    let rings = Sizes { fill: 8, completion: 16, rx: 32, tx: 64 };
    let (umem, rules) = (1 << 20, "udp dport 53\ndefault".to_owned());
    Hello {
        umem,
        chunk: 2048,
        unaligned: false,
        headroom: 64,
        pieces: true,
        offloads: false,
        one_descriptor: false,
        skip_invalid: false,
        rings,
        budget: 77,
        share: 9,
        tx_metadata: 0,
        segmentation: false,
        queue: Some(3),
        rules,
    }
}

#[test]
fn messages_are_decoded_as_they_were_encoded() {
    let unaligned = Hello { unaligned: true, chunk: 3000, umem: 10_000, queue: None, pieces: false, ..hello() };
    for hello in [
        hello(),
        unaligned,
        Hello { one_descriptor: true, ..hello() },
        Hello { skip_invalid: true, ..hello() },
        Hello { offloads: true, tx_metadata: 24, ..hello() },
        Hello { segmentation: true, tx_metadata: 10, ..hello() },
    ] {
        assert_eq!(decode(&hello.encode()), Ok(hello));
    }
    let (rings, memory) = Rings::lay_out(&hello().rings);
    let welcome = Answer::Welcome(Welcome { session: 3, queue: 5, longest: 1518, budget: 1 << 33, memory, rings });
    assert_eq!(Answer::decode(&encode(&welcome)), Ok(welcome));
    for code in [Code::Protocol, Code::Memory, Code::Rules, Code::Full] {
        let answer = Answer::Refusal(refusal(code, "ä sentence"));
        assert_eq!(Answer::decode(&encode(&answer)), Ok(answer));
    }
}

#[test]
fn a_reason_that_is_too_long_is_cut_between_characters() {
    let bytes = encode(&Answer::Refusal(refusal(Code::Rules, "ä".repeat(4000))));
    assert!(bytes.len() <= Answer::LONGEST);
    assert!(matches!(Answer::decode(&bytes), Ok(Answer::Refusal(r)) if r.why.chars().all(|c| c == 'ä')));
}

#[test]
fn every_cut_of_a_message_is_refused() {
    let whole = hello().encode();
    for n in 0..whole.len() {
        assert!(decode(&whole[..n]).is_err(), "{n} bytes");
    }
    assert_eq!(decode(&[&whole[..], b"x"].concat()), Err(Malformed::Length));
    let (rings, memory) = Rings::lay_out(&hello().rings);
    let welcome = Welcome { session: 3, queue: 5, longest: 1518, budget: 1, memory, rings };
    let whole = encode(&Answer::Welcome(welcome));
    for n in 0..whole.len() {
        assert!(Answer::decode(&whole[..n]).is_err(), "{n} bytes");
    }
}

#[test]
fn numbers_out_of_their_range_are_named() {
    type Change = fn(&mut Hello);
    let cases: [(Change, &str); 18] = [
        (|h| (h.unaligned, h.chunk) = (true, 255), "chunk"),
        (|h| (h.unaligned, h.umem) = (true, 2047), "umem"),
        (|h| (h.unaligned, h.umem) = (true, u64::MAX), "umem"),
        (|h| (h.offloads, h.headroom) = (true, 9), "headroom"),
        (|h| (h.offloads, h.pieces) = (true, false), "headroom"),
        (|h| h.tx_metadata = 8, "tx_metadata"),
        (|h| (h.segmentation, h.tx_metadata) = (true, 16), "tx_metadata"),
        (|h| h.tx_metadata = 20, "tx_metadata"),
        (|h| h.tx_metadata = 256, "tx_metadata"),
        (|h| h.chunk = 3000, "chunk"),
        (|h| h.chunk = 0, "chunk"),
        (|h| h.chunk = 1 << 16, "chunk"),
        (|h| h.headroom = 1025, "headroom"),
        (|h| h.umem = 0, "umem"),
        (|h| h.umem += 1, "umem"),
        (|h| h.umem = u64::MAX - 2047, "umem"),
        (|h| h.rings.tx = 48, "ring"),
        (|h| h.rings.fill = 0, "ring"),
    ];
    for (change, name) in cases {
        let mut bad = hello();
        change(&mut bad);
        let error = decode(&bad.encode());
        assert!(matches!(error, Err(Malformed::Value { what, .. }) if what == name), "{bad:?}: {error:?}");
    }
    let mut other = hello().encode();
    other[12] = 128;
    assert_eq!(decode(&other), Err(Malformed::Flags(128)));
    other[8] = 9;
    assert_eq!(decode(&other), Err(Malformed::Version(9)));
    other[0] = 0;
    assert_eq!(decode(&other), Err(Malformed::Magic));
}

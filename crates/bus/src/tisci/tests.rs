//! The messages, byte by byte, written out from TI's message descriptions (`ti_sci.h`): each
//! line is one field.

use super::*;

const HEAD: [u8; 6] = [0, 0, 2, 0, 0, 0];

#[track_caller]
fn assert_bytes(message: Message, kind: [u8; 2], body: &[&[u8]]) {
    let expected = [&kind[..], &HEAD, &body.concat()].concat();
    assert_eq!(message.bytes(), expected);
}

#[test]
fn a_ring_has_address_count_mode_size_and_tag_and_no_order_or_virtual_id() {
    let ring =
        RingConfig { device: 30, ring: 128, address: 0x8_1234_5600, count: 516, mode: RingMode::Exposed, asel: 15 };
    let body: [&[u8]; 11] = [
        &[0x9f, 0, 0, 0],          // valid_params
        &[30, 0],                  // nav_id
        &[128, 0],                 // index
        &[0x00, 0x56, 0x34, 0x12], // addr_lo
        &[8, 0, 0, 0],             // addr_hi
        &[4, 2, 0, 0],             // count
        &[0],                      // mode
        &[1],                      // size
        &[0],                      // order_id
        &[0, 0],                   // virtid
        &[15],                     // asel
    ];
    assert_bytes(ring.message(), [0x10, 0x11], &body);
    let message = RingConfig { mode: RingMode::Message, asel: 0, ..ring }.message();
    assert_eq!(message.bytes()[28], 1);
    assert_eq!(message.bytes().len(), 34);
}

#[test]
fn a_ring_is_reset_by_its_count_alone() {
    let message = RingConfig::reset_message(211, 0x123, 500);
    let zeros = [0; 8];
    let body: [&[u8]; 6] = [&[4, 0, 0, 0], &[211, 0], &[0x23, 1], &zeros, &[0xf4, 1, 0, 0], &[0; 6]];
    assert_bytes(message, [0x10, 0x11], &body);
}

#[test]
fn a_transmit_channel_passes_packets_by_reference_with_the_tag_of_its_rings() {
    let channel = TxChannelConfig { device: 30, channel: 17, fetch_words: 24, completion_ring: 0x118, asel: 15 };
    let body: [&[u8]; 19] = [
        &[0x1f, 0x0e, 0, 0], // valid_params
        &[30, 0],            // nav_id
        &[17, 0],            // index
        &[0],                // tx_pause_on_err
        &[0],                // tx_filt_einfo
        &[0],                // tx_filt_pswords
        &[15],               // tx_atype
        &[2],                // tx_chan_type
        &[0],                // tx_supr_tdpkt
        &[24, 0],            // tx_fetch_size
        &[0],                // tx_credit_count
        &[0x18, 1],          // txcq_qnum
        &[0, 0],             // tx_priority, tx_qos
        &[0],                // tx_orderid
        &[0, 0],             // fdepth
        &[0],                // tx_sched_priority
        &[0],                // tx_burst_size
        &[0],                // tx_tdtype
        &[0],                // extended_ch_type
    ];
    assert_bytes(channel.message(), [0x05, 0x12], &body);
}

#[test]
fn a_receive_channel_has_a_range_of_flows_only_where_they_are_not_fixed() {
    let channel = RxChannelConfig { device: 212, channel: 5, fetch_words: 24, flows: Some((90, 2)), asel: 0 };
    let body = |valid: &'static [u8], start: &'static [u8], count: &'static [u8]| {
        [
            valid,
            &[212, 0],     // nav_id
            &[5, 0],       // index
            &[24, 0],      // rx_fetch_size
            &[0xff, 0xff], // rxcq_qnum
            &[0, 0, 0, 0], // rx_priority, rx_qos, rx_orderid, rx_sched_priority
            start,         // flowid_start
            count,         // flowid_cnt
            &[0],          // rx_pause_on_err
            &[0],          // rx_atype
            &[2],          // rx_chan_type
            &[0, 0],       // rx_ignore_short, rx_ignore_long
            &[0],          // rx_burst_size
        ]
    };
    assert_bytes(channel.message(), [0x15, 0x12], &body(&[0x1e, 6, 0, 0], &[90, 0], &[2, 0]));
    let fixed = RxChannelConfig { flows: None, ..channel };
    assert_bytes(fixed.message(), [0x15, 0x12], &body(&[0x1e, 0, 0, 0], &[0, 0], &[0, 0]));
}

#[test]
fn a_flow_selects_the_remote_source_tag_and_names_one_ring_for_all_free_buffers() {
    let flow = RxFlowConfig {
        device: 30,
        flow: 16,
        einfo: true,
        psinfo: true,
        stall: false,
        source_tag: true,
        completion_ring: 128,
        free_ring: 0x181,
    };
    let body: [&[u8]; 23] = [
        &[0x2f, 0xfc, 3, 0], // valid_params
        &[30, 0],            // nav_id
        &[16, 0],            // flow_index
        &[1],                // rx_einfo_present
        &[1],                // rx_psinfo_present
        &[0],                // rx_error_handling
        &[0],                // rx_desc_type
        &[0, 0],             // rx_sop_offset
        &[128, 0],           // rx_dest_qnum
        &[0],                // rx_src_tag_hi
        &[0],                // rx_src_tag_lo
        &[0],                // rx_dest_tag_hi
        &[0],                // rx_dest_tag_lo
        &[0],                // rx_src_tag_hi_sel
        &[4],                // rx_src_tag_lo_sel
        &[0],                // rx_dest_tag_hi_sel
        &[0],                // rx_dest_tag_lo_sel
        &[0x81, 1],          // rx_fdq0_sz0_qnum
        &[0x81, 1],          // rx_fdq1_qnum
        &[0x81, 1],          // rx_fdq2_qnum
        &[0x81, 1],          // rx_fdq3_qnum
        &[0],                // rx_ps_location
        &[],
    ];
    assert_bytes(flow.message(), [0x30, 0x12], &body);
}

#[test]
fn threads_are_paired_and_ranges_asked_for_by_the_ids_of_the_descriptions() {
    let pair: [&[u8]; 3] = [&[25, 0, 0, 0], &[0x10, 0x10, 0, 0], &[0, 0xc5, 0, 0]];
    assert_bytes(psil_message(kind::PSIL_PAIR, 25, 0x1010, 0xc500), [0x80, 0x12], &pair);
    assert_bytes(psil_message(kind::PSIL_UNPAIR, 25, 0x1010, 0xc500), [0x81, 0x12], &pair);
    assert_bytes(range_message(30, 0x24), [0, 0x15], &[&[30, 0], &[0x24], &[255]]);
}

/// A transport that answers each request with the same bytes.
struct Answer(&'static [u8]);

impl Tisci for Answer {
    fn call(&self, _: &Message) -> Result<Message, Refused> {
        Ok(Message::from_bytes(self.0).unwrap())
    }
}

#[test]
fn an_answer_has_two_ranges_and_one_that_is_too_short_is_refused() {
    let answer = Answer(&[0, 0x15, 0, 0, 2, 0, 0, 0, 16, 0, 8, 0, 0x23, 1, 1, 0]);
    let first = Range { start: 16, count: 8 };
    assert_eq!(answer.ranges(30, 0x24), Ok([first, Range { start: 0x123, count: 1 }]));
    assert!(first.holds(16, 8) && first.holds(23, 1) && !first.holds(15, 1) && !first.holds(17, 8));
    let short = Answer(&[0, 0x15, 0, 0, 2, 0, 0, 0, 16, 0]).ranges(30, 0x24).unwrap_err();
    assert_eq!(short.to_string(), "firmware refused get_range: the answer is too short");
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    assert!(Message::from_bytes(&[0; 7]).is_none());
    assert!(Message::from_bytes(&[0; 61]).is_none());
    assert_eq!(Message::from_bytes(&[0; 60]).unwrap().bytes().len(), 60);
}

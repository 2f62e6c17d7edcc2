//! Receiver not ready: the requester retries as often as its attributes specify. Before each retry,
//! it waits as long as the receiver's attributes specify. Neither depends on whether the program
//! polls.

use std::thread;
use std::time::{Duration, Instant};

use rdma_sys::{ibv_wc_opcode as Opcode, ibv_wc_status as Status};
use rdma_types::MinRnrTimer;
use test_support::rig::connect::{
    Knobs, Side, acquaint, connect, expect_nothing_under_way, pair_with,
};
use test_support::rig::post::Wr;
use test_support::rig::scene::Scene;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Size, until};

use crate::case::cases;
use crate::device::Device;

cases![
    no_retry_fails_and_leaves_the_receiver_alone,
    retries_end_after_their_time_and_not_before,
    wait_is_as_long_as_the_receiver_asks_for,
    retries_end_also_when_nobody_polls,
    requests_behind_one_that_gave_up_are_flushed,
    receive_posted_in_time_ends_the_wait,
    each_message_may_wait_as_often_as_the_first,
    a_wait_that_ended_does_not_shorten_the_next,
    endless_retries_outlive_limited_ones_and_end_with_the_receive,
    receive_ends_the_wait_also_when_nobody_polls,
    requests_behind_one_that_waits_keep_their_order,
    each_message_takes_a_receive_request_of_its_own,
    write_with_immediate_waits_without_writing,
    write_with_immediate_gives_up_too,
    writes_and_reads_need_no_receive_request,
    wait_ends_with_the_error_state,
    endless_wait_for_a_receiver_that_goes_away_ends,
];

/// The code for 655 ms, the longest wait. During that time, any machine can execute a few calls.
const LONGEST: u8 = 0;

fn ready_never(device: &Device, rnr_retries: u8, min_rnr_timer: u8) -> (Side, Side) {
    let knobs = Knobs { rnr_retries, min_rnr_timer, ..Knobs::default() };
    pair_with(device, &Size::default(), &knobs)
}

/// Returns a pair with these options. A has posted a SEND, but B has no receive.
fn sent_too_early(device: &Device, rnr_retries: u8, min_rnr_timer: u8) -> (Side, Side) {
    let (a, b) = ready_never(device, rnr_retries, min_rnr_timer);
    a.qp.post(&Wr::send(1, &[]));
    (a, b)
}

fn no_retry_fails_and_leaves_the_receiver_alone(device: &Device) {
    let (a, b) = sent_too_early(device, 0, LONGEST);
    a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    a.qp.wait_for_error();
    b.qp.assert_ready();
    b.qp.post_receive(2, &[]);
    assert!(b.receive_cq.is_empty());
}

/// Returns the minimum duration of `waits` waits, for a requester whose clock ticks every 4 ms.
fn least(code: u8, waits: u32) -> Duration {
    let wait = MinRnrTimer::from_code(code).unwrap().duration();
    (wait - Duration::from_millis(4)) * waits
}

fn retries_end_after_their_time_and_not_before(device: &Device) {
    // The code for waits of 41 ms.
    let code = 24;
    for retries in [1, 3] {
        let start = Instant::now();
        let (a, _b) = sent_too_early(device, retries, code);
        a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
        let least = least(code, retries.into());
        assert!(start.elapsed() >= least, "{:?} of {least:?}", start.elapsed());
    }
}

fn wait_is_as_long_as_the_receiver_asks_for(device: &Device) {
    let [a, b] = [(); 2].map(|()| Side::new(device, &Size::default(), 16));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let sender = Knobs { rnr_retries: 1, min_rnr_timer: 1, ..Knobs::default() };
    let receiver = Knobs { rnr_retries: 0, min_rnr_timer: 28, ..Knobs::default() };
    connect(&a.qp, &at_a, &at_b, &sender);
    connect(&b.qp, &at_b, &at_a, &receiver);
    let start = Instant::now();
    a.qp.post(&Wr::send(1, &[]));
    a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert!(start.elapsed() >= least(28, 1), "{:?}", start.elapsed());
}

fn retries_end_also_when_nobody_polls(device: &Device) {
    let (a, _b) = sent_too_early(device, 1, 10);
    a.qp.wait_for_error();
    a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert!(a.send_cq.is_empty());
}

fn requests_behind_one_that_gave_up_are_flushed(device: &Device) {
    let scene =
        Scene::with(device, &Size::default(), &Knobs { rnr_retries: 0, ..Knobs::default() });
    let [write, ..] = scene.requests();
    // The first send consumes B's only receive.
    let list = [Wr::send(1, &[]), Wr::send(2, &[]).unsignaled(), write];
    assert_eq!(scene.a.qp.try_post_list(&list), Ok(()));
    scene.a.send_cq.expect_success(1);
    scene.a.send_cq.expect(2, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    scene.a.send_cq.expect_flushed([1]);
    scene.assert_untouched();
}

fn receive_posted_in_time_ends_the_wait(device: &Device) {
    let (a, b) = sent_too_early(device, 6, LONGEST);
    assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
    b.qp.post_receive(2, &[]);
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
}

fn each_message_may_wait_as_often_as_the_first(device: &Device) {
    let (a, b) = ready_never(device, 1, LONGEST);
    for n in 0..2 {
        a.qp.post(&Wr::send(n, &[]));
        assert!(a.send_cq.is_empty());
        b.qp.post_receive(n, &[]);
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
}

fn a_wait_that_ended_does_not_shorten_the_next(device: &Device) {
    let (a, _b) = loop {
        let begin = Instant::now();
        let (a, b) = sent_too_early(device, 1, LONGEST);
        // The receive is posted during the first wait, unless this thread is delayed.
        thread::sleep(Duration::from_millis(200));
        b.qp.post_receive(1, &[]);
        if begin.elapsed() < least(LONGEST, 1) {
            a.send_cq.expect_success(1);
            break (a, b);
        }
    };
    let start = Instant::now();
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect(2, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert!(start.elapsed() >= least(LONGEST, 1), "{:?}", start.elapsed());
}

fn endless_retries_outlive_limited_ones_and_end_with_the_receive(device: &Device) {
    let (a, b) = sent_too_early(device, 7, 1);
    let (limited, _peer) = sent_too_early(device, 6, 10);
    limited.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert!(a.send_cq.is_empty());
    a.qp.assert_ready();
    b.qp.post_receive(2, &[]);
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
}

fn receive_ends_the_wait_also_when_nobody_polls(device: &Device) {
    let (a, b) = ready_never(device, 7, 1);
    let source = a.pd.register_filled(vec![9; 8], 0);
    let sink = b.pd.register(8, LOCAL_WRITE);
    a.qp.post(&Wr::send(1, &[source.sge(0, 8)]));
    a.qp.post(&Wr::write(2, &[source.sge(0, 8)], &sink, 0).remote(0, 0));
    b.qp.post_receive(2, &[sink.sge(0, 8)]);
    until("the message", || sink.bytes() == [9; 8]);
    // The write after the send fails because of its wrong key, which shows that it is executed even
    // though the program does not poll.
    a.qp.wait_for_error();
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
    a.send_cq.expect(2, Status::IBV_WC_REM_ACCESS_ERR);
}

/// The second round uses a requester that knows its peer, and might execute the requests on a fast
/// path.
fn requests_behind_one_that_waits_keep_their_order(device: &Device) {
    for acquainted in [false, true] {
        let (a, b) = ready_never(device, 7, 1);
        if acquainted {
            acquaint(&a, &b);
        }
        let source = a.pd.register_filled(vec![3; 8], 0);
        let (sink, received) = (b.pd.register(8, ALL_ACCESS), b.pd.register(8, LOCAL_WRITE));
        let bytes = [source.sge(0, 8)];
        a.qp.post(&Wr::send(1, &bytes));
        a.qp.post(&Wr::write(2, &bytes, &sink, 0));
        a.qp.post(&Wr::send(3, &bytes));
        assert!(a.send_cq.is_empty());
        sink.assert_filled(0);
        b.qp.post_receive(10, &[received.sge(0, 8)]);
        assert_eq!(a.send_cq.expect_success(1).opcode, Opcode::IBV_WC_SEND);
        a.send_cq.expect_success(2);
        sink.assert_filled(3);
        received.assert_filled(3);
        assert!(a.send_cq.is_empty());
        b.qp.post_receive(11, &[received.sge(0, 8)]);
        a.send_cq.expect_success(3);
        b.receive_cq.expect_success(10);
        b.receive_cq.expect_success(11);
    }
}

fn each_message_takes_a_receive_request_of_its_own(device: &Device) {
    let (a, b) = ready_never(device, 0, 1);
    let sink = b.pd.register(64, LOCAL_WRITE);
    let sources = [5, 6].map(|byte| a.pd.register_filled(vec![byte; 8], 0));
    // The receive is large enough for both messages.
    b.qp.post_receive(1, &[sink.sge(0, 64)]);
    a.qp.post(&Wr::send(2, &[sources[0].sge(0, 8)]));
    a.send_cq.expect_success(2);
    assert_eq!(b.receive_cq.expect_success(1).byte_len, 8);
    a.qp.post(&Wr::send(3, &[sources[1].sge(0, 8)]));
    a.send_cq.expect(3, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert!(b.receive_cq.is_empty());
    assert_eq!((&sink.bytes()[..8], &sink.bytes()[8..]), (&[5; 8][..], &[0; 56][..]));
}

fn write_with_immediate_waits_without_writing(device: &Device) {
    let (a, b) = ready_never(device, 7, 1);
    let source = a.pd.register_filled(vec![3; 8], 0);
    let sink = b.pd.register(8, ALL_ACCESS);
    a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0).with_imm(4));
    // In the meantime, another connection goes through six waits of 5 ms each.
    let (limited, _peer) = sent_too_early(device, 6, 18);
    limited.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
    sink.assert_filled(0);
    b.qp.post_receive(2, &[]);
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(2);
    sink.assert_filled(3);
}

fn write_with_immediate_gives_up_too(device: &Device) {
    let (a, b) = ready_never(device, 0, 1);
    let source = a.pd.register_filled(vec![3; 8], 0);
    let sink = b.pd.register(8, ALL_ACCESS);
    a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0).with_imm(4));
    a.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    sink.assert_filled(0);
    b.qp.assert_ready();
}

fn writes_and_reads_need_no_receive_request(device: &Device) {
    let (a, b) = ready_never(device, 0, 1);
    let at_a = a.pd.register_filled(vec![3; 16], ALL_ACCESS);
    let at_b = b.pd.register_filled(vec![4; 16], ALL_ACCESS);
    a.qp.post(&Wr::write(1, &[at_a.sge(0, 8)], &at_b, 0));
    a.qp.post(&Wr::read(2, &[at_a.sge(8, 8)], &at_b, 8));
    a.send_cq.expect_success(1);
    a.send_cq.expect_success(2);
    assert_eq!((&at_b.bytes()[..8], &at_a.bytes()[8..]), (&[3; 8][..], &[4; 8][..]));
    assert!(b.receive_cq.is_empty());
}

fn wait_ends_with_the_error_state(device: &Device) {
    let (a, b) = sent_too_early(device, 7, 1);
    a.qp.post(&Wr::send(2, &[]).unsignaled());
    a.qp.to_error();
    a.send_cq.expect_flushed([1, 2]);
    // Packets sent before the error may still arrive now, and find no receive.
    expect_nothing_under_way(device);
    b.qp.post_receive(3, &[]);
    expect_nothing_under_way(device);
    assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
    b.qp.assert_ready();
}

fn endless_wait_for_a_receiver_that_goes_away_ends(device: &Device) {
    for end in 0..3 {
        let knobs = Knobs { timeout: 12, retries: 3, rnr_retries: 7, ..Knobs::default() };
        let (a, mut b) = pair_with(device, &Size::default(), &knobs);
        a.qp.post(&Wr::send(1, &[]));
        match end {
            0 => b.qp.to_error(),
            1 => b.qp.to_reset(),
            _ => b.qp.destroy(),
        }
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    }
}

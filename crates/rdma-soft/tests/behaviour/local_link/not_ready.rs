//! Messages that find no receive request in another process: their sender continues once a receive is posted.

use std::time::{Duration, Instant};

use rdma_sys::{ibv_qp_type, ibv_wc_status as Status};
use test_support::rig::connect::Knobs;

use crate::local_link::hostile::{Head, SYNDROME, VOID, name_of, slot_of};
use crate::local_link::ring::Connection;
use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::Peer;

/// The longest timer, 655 ms: a test that waits for it again and again takes minutes.
const LONGEST: Knobs = Knobs { min_rnr_timer: 0, ..PATIENT };

fn near(knobs: [&Knobs; 2]) -> Near {
    rdma_soft::install();
    Near::between("soft0", Peer::start(), ibv_qp_type::IBV_QPT_RC, knobs)
}

/// A request and its answer, each sent before the other end has a receive request.
#[test]
fn a_posted_receive_ends_the_wait_of_its_sender() {
    const ROUNDS: usize = 200;
    let begin = Instant::now();
    let mut near = near([&LONGEST; 2]);
    near.peer.begin_echoes(ROUNDS);
    for _ in 0..ROUNDS {
        near.side.qp.post(&near.send(8));
        near.side.send_cq.expect_success(1);
        near.side.qp.post_receive(2, &[near.memory.sge(0, 8)]);
        near.side.receive_cq.expect_success(2);
    }
    near.peer.finish();
    let counters = rdma_soft::SoftDevice::find("soft0").unwrap().counters();
    assert!(counters.send_rnr_err > 0 && counters.rcvd_rnr_err > 0, "{counters:?}");
    assert!(begin.elapsed() < Duration::from_secs(100), "{:?}", begin.elapsed());
    near.peer.end();
}

/// A wait counts as a retry, however it ends.
#[test]
fn a_wait_that_ends_early_counts_as_an_rnr_retry() {
    let mut near = near([&Knobs { rnr_retries: 1, ..PATIENT }, &PATIENT]);
    near.side.qp.post(&near.send(8));
    near.side.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    assert_eq!(near.peer.counter("send_rnr_err"), 2);
    near.peer.end();
}

/// A void RNR NAK outside a wait, or for a packet that was not sent, changes nothing. A malformed one ends its
/// connection.
#[test]
fn a_void_refusal_without_a_wait_changes_nothing() {
    let mut near = near([&PATIENT; 2]);
    let mut to = Connection::to(&name_of(slot_of(near.far.qpn)));
    for psn in [0, 6, 7, 8, 0x00ff_ffff] {
        to.send_all(&Head::new(near.far.qpn).void(psn));
    }
    to.wait_until_read();
    near.all_of_it();
    assert_eq!(near.peer.counter("malformed"), 0);
    let void = Head::new(near.far.qpn).void(7);
    let mut wrong = vec![void.clone(); 4];
    // An acknowledgement, a SEND, another kind of NAK, and payload.
    wrong[0][SYNDROME] = 0x1f;
    wrong[1] = Head { flags: VOID, ..Head::new(near.far.qpn) }.bytes(0);
    wrong[2][SYNDROME] = 0x60;
    wrong[3][4..6].copy_from_slice(&4_u16.to_le_bytes());
    wrong[3][8..12].copy_from_slice(&4_u32.to_le_bytes());
    wrong[3].extend([0; 4]);
    for (count, bytes) in (1..).zip(wrong) {
        let mut to = Connection::to(&name_of(slot_of(near.far.qpn)));
        to.try_send(&bytes);
        to.wait_until_closed();
        assert_eq!(near.peer.counter("malformed"), count);
    }
    near.all_of_it();
    near.peer.end();
}

//! Messages that find no receive request in another process: their sender continues once a receive is posted.

use std::time::{Duration, Instant};

use rdma_sys::{
    ibv_qp_type, ibv_wc_opcode as Done, ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};
use test_support::rig::connect::Knobs;
use test_support::rig::post::Wr;

use crate::local_link::hostile::{Head, SYNDROME, VOID, name_of, slot_of};
use crate::local_link::ring::Connection;
use crate::two_processes::near::{Near, PATIENT};
use crate::two_processes::peer::{Peer, bring_up};

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

/// Returns the request of a numbered message: a SEND or a WRITE of one packet, of several, or of one more than a run.
fn numbered(near: &Near, number: u64) -> Wr {
    let length = [8, 3 * 1024, 17 * 1024][number as usize / 2 % 3];
    let sges = [near.memory.sge(0, length)];
    let wr = match number % 2 {
        0 => Wr::send(number, &sges),
        _ => Wr::new(number, Opcode::IBV_WR_RDMA_WRITE, &sges).remote(near.remote.0, near.remote.1),
    };
    wr.with_imm(number as u32)
}

/// While one thread posts receive requests one by one, another receives the packets that need them.
#[test]
fn messages_arrive_once_and_in_order_while_receives_trickle() {
    const COUNT: u64 = 300;
    for (ahead, open, min_rnr_timer) in [(1, 1, 0), (1, 2, 1), (2, 2, 0), (8, 3, 1), (8, 5, 0)] {
        let knobs = Knobs { min_rnr_timer, ..PATIENT };
        let mut near = near([&knobs; 2]);
        near.peer.begin_trickle(COUNT, ahead);
        for number in 0..COUNT + open {
            if number >= open {
                near.side.send_cq.expect_success(number - open);
            }
            if number < COUNT {
                near.side.qp.post(&numbered(&near, number));
            }
        }
        near.peer.finish();
        near.peer.end();
    }
}

/// Returns a connection whose first message has found no receive request.
fn refused(knobs: [&Knobs; 2]) -> Near {
    let mut near = near(knobs);
    near.side.qp.post(&near.send(8));
    near.peer.until_counter("send_rnr_err", 1);
    near
}

#[test]
fn a_message_that_was_flushed_is_not_executed_later() {
    let mut near = refused([&LONGEST; 2]);
    near.side.qp.to_error();
    near.side.send_cq.expect(1, Status::IBV_WC_WR_FLUSH_ERR);
    near.peer.receive();
    assert_eq!(near.peer.counter("rdma_recvs"), 0);
    near.peer.end();
}

/// The next message of the sender has the same PSN.
#[test]
fn a_message_that_a_reset_dropped_is_not_executed_later() {
    let mut near = refused([&LONGEST; 2]);
    near.side.qp.to_reset();
    bring_up(&near.side, &near.far, &LONGEST);
    near.message(24, Some(5));
    assert_eq!(near.peer.counter("rdma_recvs"), 1);
    near.peer.end();
}

#[test]
fn a_message_of_a_destroyed_queue_pair_is_not_executed_later() {
    let Near { mut peer, side, .. } = refused([&LONGEST; 2]);
    drop(side);
    peer.receive();
    assert_eq!(peer.counter("rdma_recvs"), 0);
    peer.end();
}

/// The error arrives while the sender waits.
#[test]
fn a_kept_message_that_does_not_fit_its_receive_fails() {
    let mut near = refused([&LONGEST; 2]);
    near.peer.receive_bytes(7);
    near.side.send_cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR);
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

/// A key of the first word of a connection between processes.
const KEY: u32 = 1024;

/// Sends an empty message without a queue pair, so that nothing sends it again. Waits until it has found no receive
/// request. `patient` is the key that retries without limit.
fn send_once(near: &mut Near, patient: u32) -> Connection {
    let mut to = Connection::to(&name_of(slot_of(near.far.qpn)));
    to.ring.say_patient(patient);
    let head = Head { indices: [near.far.gid_index; 2], ..Head::new(near.far.qpn) };
    let mut bytes = head.send(PATIENT.psn);
    bytes[12..16].copy_from_slice(&KEY.to_le_bytes());
    to.send_all(&bytes);
    near.peer.until_counter("send_rnr_err", 1);
    to
}

/// The packet of a sender that retries without limit is executed when a receive is posted, without another packet.
#[test]
fn the_packet_of_a_patient_sender_is_kept_until_a_receive_is_posted() {
    let mut near = near([&PATIENT; 2]);
    let _to = send_once(&mut near, KEY);
    assert_eq!(near.peer.counter("rdma_recvs"), 0);
    near.peer.receive();
    assert_eq!(near.peer.completion(), (Done::IBV_WC_RECV.0, 0, 0));
    near.peer.end();
}

/// The sender may have given up before the receive is posted, or another connection may use its word.
#[test]
fn the_packet_of_a_sender_that_may_have_given_up_is_not_executed() {
    for (before, after) in [(0, KEY), (KEY + 1024, KEY), (KEY, 0), (KEY, KEY + 1024)] {
        let mut near = near([&PATIENT; 2]);
        let to = send_once(&mut near, before);
        to.ring.say_patient(after);
        near.message(8, None);
        near.peer.end();
    }
}

/// The receiver does not get a message that failed at its sender.
#[test]
fn a_message_that_failed_is_not_executed_later() {
    let mut near = near([&Knobs { rnr_retries: 0, ..PATIENT }, &PATIENT]);
    near.side.qp.post(&near.send(8));
    near.side.send_cq.expect(1, Status::IBV_WC_RNR_RETRY_EXC_ERR);
    near.peer.receive();
    assert_eq!(near.peer.counter("rdma_recvs"), 0);
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

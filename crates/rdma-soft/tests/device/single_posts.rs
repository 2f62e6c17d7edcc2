//! A plain request, alone in its post, once the peer is known: executed in a way of its own, which must
//! keep to the rules of the general one.

use rdma_sys::{ibv_qp_state as State, ibv_wc_status as Status};

use crate::rig::connect::{Knobs, Side, connect_sides};
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, Mr, Size, on_each_device, until};

/// A pair that knows each other, for A has sent one message; its memory is filled with 1 and 2.
struct Acquainted {
    source: Mr,
    sink: Mr,
    a: Side,
    b: Side,
}

impl Acquainted {
    /// A's send completions have room for `capacity`.
    fn new(device: &str, capacity: i32) -> Self {
        let size = Size::default();
        let (a, b) = (Side::new(device, &size, capacity), Side::new(device, &size, 256));
        let knobs = Knobs { timeout: 1, retries: 1, rnr_retries: 7, ..Knobs::default() };
        connect_sides(&a, &b, &knobs);
        let source = a.pd.register_filled(vec![1; 8], 0);
        let sink = b.pd.register_filled(vec![2; 8], ALL_ACCESS);
        let all = Self { source, sink, a, b };
        all.b.qp.post_receive(0, &[all.sink.sge(0, 8)]);
        all.a.qp.post(&Wr::send(0, &[all.source.sge(0, 8)]));
        all.a.send_cq.expect_success(0);
        all.b.receive_cq.expect_success(0);
        all.sink.fill(2);
        all
    }

    fn send(&self, wr_id: u64) {
        self.a.qp.post(&Wr::send(wr_id, &[self.source.sge(0, 8)]));
    }

    fn write(&self, wr_id: u64) {
        self.a.qp.post(&Wr::write(wr_id, &[self.source.sge(0, 8)], &self.sink, 0));
    }

    fn assert_untouched(&self) {
        assert!(self.a.send_cq.is_empty());
        self.sink.assert_filled(2);
    }
}

#[test]
fn a_write_does_not_overtake_a_send_that_waits() {
    on_each_device("single-order", |device| {
        let all = Acquainted::new(device, 16);
        let elsewhere = all.b.pd.register(8, ALL_ACCESS);
        all.send(1);
        all.write(2);
        all.assert_untouched();
        all.b.qp.post_receive(1, &[elsewhere.sge(0, 8)]);
        all.a.send_cq.expect_success(1);
        all.a.send_cq.expect_success(2);
        elsewhere.assert_filled(1);
        all.sink.assert_filled(1);
    });
}

#[test]
fn a_send_waits_for_a_receive_request_and_does_not_use_the_last_one_again() {
    on_each_device("single-receive", |device| {
        let all = Acquainted::new(device, 16);
        all.send(1);
        all.assert_untouched();
        all.b.qp.post_receive(1, &[all.sink.sge(0, 8)]);
        all.a.send_cq.expect_success(1);
        all.b.receive_cq.expect_success(1);
        all.sink.assert_filled(1);
    });
}

#[test]
fn a_write_to_a_queue_that_drains_waits() {
    on_each_device("single-drains", |device| {
        let all = Acquainted::new(device, 16);
        assert_eq!(all.a.qp.to_state(State::IBV_QPS_SQD), 0);
        all.write(1);
        all.assert_untouched();
        assert_eq!(all.a.qp.to_state(State::IBV_QPS_RTS), 0);
        all.a.send_cq.expect_success(1);
        all.sink.assert_filled(1);
    });
}

#[test]
fn a_peer_in_error_takes_no_write() {
    on_each_device("single-peer-error", |device| {
        let all = Acquainted::new(device, 16);
        all.b.qp.to_error();
        all.write(1);
        all.a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        all.sink.assert_filled(2);
    });
}

/// By the post itself: no other call is made that would see to it.
#[test]
fn a_write_whose_completion_is_lost_is_reported_at_once() {
    on_each_device("single-overflow", |device| {
        let all = Acquainted::new(device, 1);
        assert!(!all.a.context.has_async_events());
        all.write(1);
        all.write(2);
        until("the event", || all.a.context.has_async_events());
        all.a.qp.wait_for_error();
    });
}

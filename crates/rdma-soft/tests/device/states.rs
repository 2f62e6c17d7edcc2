//! The state machine of queue pairs where the verbs leave something to the device: what a reset takes
//! along, and what a draining queue has in flight.

use rdma_sys::{Errno, ibv_mig_state, ibv_qp_attr_mask as Mask, ibv_qp_state as State};

use crate::rig::connect::{Knobs, connect_sides, pair, pair_with};
use crate::rig::post::Wr;
use crate::rig::transition::{RC, STEPS, alone};
use crate::rig::{ALL_ACCESS, Size, on_each_device, on_each_held_device, soft};

#[test]
fn alternate_paths_are_not_supported() {
    on_each_device("apm", |device| {
        let side = alone(device, RC);
        let unsupported = Errno::EOPNOTSUPP.raw();
        let [_, receive, send] = STEPS;
        side.bring(State::IBV_QPS_INIT);
        let refused = side
            .transit_with(receive, Mask::IBV_QP_ALT_PATH.0, |attr| attr.alt_ah_attr = attr.ah_attr);
        assert_eq!(refused, unsupported);
        side.bring(State::IBV_QPS_RTR);
        let rearm = ibv_mig_state::IBV_MIG_REARM;
        let refused = side
            .transit_with(send, Mask::IBV_QP_PATH_MIG_STATE.0, |attr| attr.path_mig_state = rearm);
        assert_eq!(refused, unsupported);
        assert_eq!(side.qp.state(), State::IBV_QPS_RTR);
    });
}

#[test]
fn draining_queue_holds_new_requests_until_it_sends_again() {
    on_each_device("drain", |device| {
        let (a, b) = pair(device);
        let source = a.pd.register_filled(vec![5; 8], 0);
        let sink = b.pd.register(8, ALL_ACCESS);
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
        for n in 1..=3 {
            a.qp.post(&Wr::write(n, &[source.sge(0, 8)], &sink, 0));
        }
        for _ in 0..100 {
            assert!(a.send_cq.is_empty());
        }
        assert_eq!(soft(device).in_flight(a.qp.qpn()), 3);
        sink.assert_filled(0);
        // It still receives.
        a.qp.post_receive(9, &[]);
        b.qp.post(&Wr::send(8, &[]));
        b.send_cq.expect_success(8);
        a.receive_cq.expect_success(9);
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        for n in 1..=3 {
            a.send_cq.expect_success(n);
        }
        sink.assert_filled(5);
    });
}

#[test]
fn draining_queue_finishes_what_it_has_begun() {
    on_each_held_device("drain-half", |device| {
        let (a, b) = pair(device.name());
        let source = a.pd.register_filled(vec![5; 8], 0);
        let sink = b.pd.register(8, ALL_ACCESS);
        let qpn = a.qp.qpn();
        a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0));
        a.qp.post(&Wr::write(2, &[source.sge(0, 8)], &sink, 0));
        assert!(device.release_half(qpn));
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
        assert_eq!(device.release(qpn, 2), 1, "only what was under way");
        a.send_cq.expect_success(1);
        assert!(a.send_cq.is_empty());
        assert_eq!(a.qp.to_state(State::IBV_QPS_RTS), 0);
        assert_eq!(device.release(qpn, 2), 1);
        a.send_cq.expect_success(2);
    });
}

#[test]
fn reset_drops_requests_and_completions_and_the_queue_pair_lives_again() {
    on_each_device("reset", |device| {
        let size = Size { send_wr: 3, receive_wr: 3, ..Size::default() };
        let (a, b) = pair_with(device, &size, &Knobs::default());
        for round in 0..3u64 {
            let id = |n| round * 10 + n;
            b.qp.post_receive(id(1), &[]);
            b.qp.post_receive(id(2), &[]);
            // One that ends unpolled, one that waits, and more receive requests than messages.
            a.qp.post(&Wr::send(id(3), &[]));
            a.qp.post_receive(id(4), &[]);
            assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
            a.qp.post(&Wr::send(id(5), &[]));
            a.qp.to_reset();
            b.qp.to_reset();
            assert_eq!(soft(device).in_flight(a.qp.qpn()), 0);
            for cq in [&a.send_cq, &a.receive_cq, &b.send_cq, &b.receive_cq] {
                assert!(cq.is_empty());
            }
            // All places of both queues are free again, and nothing old is in them.
            connect_sides(&a, &b, &Knobs::default());
            for n in 1..=3 {
                b.qp.post_receive(id(n), &[]);
                a.qp.post(&Wr::send(id(n + 3), &[]));
            }
            for n in 1..=3 {
                a.send_cq.expect_success(id(n + 3));
                b.receive_cq.expect_success(id(n));
            }
            a.qp.to_reset();
            b.qp.to_reset();
            connect_sides(&a, &b, &Knobs::default());
        }
    });
}

//! The state machine of queue pairs where the verbs leave a choice to the device: the effects of a reset, and
//! unsupported features.

use rdma_sys::{
    Errno, ibv_mig_state, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
};

use crate::device::rig::connect::{Knobs, connect_sides, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::transition::{RC, STEPS, alone};
use crate::device::rig::{Size, on_each_device, soft, until};

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
fn reset_drops_unpolled_completions_and_frees_their_slots() {
    on_each_device("reset", |device| {
        let size = Size { send_wr: 3, receive_wr: 3, ..Size::default() };
        let (a, b) = pair_with(device, &size, &Knobs::default());
        for flushed in [false, true, false, true] {
            for n in 0..3 {
                b.qp.post_receive(n, &[]);
                a.qp.post(&Wr::send(n, &[]));
            }
            until("all executed", || soft(device).in_flight(a.qp.qpn()) == 0);
            if flushed {
                // One of the receives is polled, so that another can be posted and flushed.
                b.receive_cq.expect_success(0);
                b.qp.to_error();
                b.qp.post_receive(3, &[]);
                a.qp.post_receive(3, &[]);
                a.qp.to_error();
            }
            a.qp.to_reset();
            b.qp.to_reset();
            for cq in [&a.send_cq, &a.receive_cq, &b.send_cq, &b.receive_cq] {
                assert!(cq.is_empty());
            }
            connect_sides(&a, &b, &Knobs::default());
            for n in 10..13 {
                b.qp.post_receive(n, &[]);
                a.qp.post(&Wr::send(n, &[]));
            }
            for n in 10..13 {
                a.send_cq.expect_success(n);
                b.receive_cq.expect_success(n);
            }
        }
    });
}

#[test]
fn the_programs_struct_has_the_state_that_was_last_set() {
    on_each_device("state-noted", |device| {
        let side = alone(device, RC);
        side.bring(State::IBV_QPS_INIT);
        assert_eq!(side.qp.noted_state(), State::IBV_QPS_INIT);
        assert_ne!(side.qp.to_state(State::IBV_QPS_RTS), 0);
        assert_eq!(side.qp.noted_state(), State::IBV_QPS_INIT, "the transition was refused");
        let attr = ibv_qp_attr { qp_state: State::IBV_QPS_ERR, ..ibv_qp_attr::default() };
        assert_eq!(side.qp.modify(attr, Mask::IBV_QP_ACCESS_FLAGS.0), 0);
        assert_eq!(side.qp.noted_state(), State::IBV_QPS_INIT, "the call did not change the state");
        assert_eq!(side.qp.to_state(State::IBV_QPS_ERR), 0);
        assert_eq!(side.qp.noted_state(), State::IBV_QPS_ERR);
    });
}

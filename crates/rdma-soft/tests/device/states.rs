//! The state machine of queue pairs: which transitions exist, what they need, and what may be posted in
//! each state.

use rdma_sys::{
    Errno, ibv_mig_state, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_wc_status as Status,
};

use crate::rig::connect::{
    INIT, Knobs, RTR, RTS, Side, attributes, connect_sides, pair, pair_with,
};
use crate::rig::post::Wr;
use crate::rig::{ALL_ACCESS, Size, on_each_device, on_each_held_device, soft};

const STATE: u32 = Mask::IBV_QP_STATE.0;
const REFUSED: i32 = Errno::EINVAL.raw();
const STATES: [State; 6] = [
    State::IBV_QPS_RESET,
    State::IBV_QPS_INIT,
    State::IBV_QPS_RTR,
    State::IBV_QPS_RTS,
    State::IBV_QPS_SQD,
    State::IBV_QPS_ERR,
];

/// A queue pair that talks to itself.
fn alone(device: &str) -> Side {
    Side::new(device, &Size::default(), 16)
}

/// Attributes that are right in every transition, with this target.
fn good(side: &Side, to: State) -> ibv_qp_attr {
    let at = side.endpoint();
    ibv_qp_attr { qp_state: to, ..attributes(&at, &at, &Knobs::default()) }
}

/// What a transition to that state needs where there is one.
fn needed(from: State, to: State) -> u32 {
    match (from, to) {
        (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => STATE,
        (_, State::IBV_QPS_INIT) => INIT,
        (_, State::IBV_QPS_RTR) => RTR,
        (State::IBV_QPS_RTS | State::IBV_QPS_SQD, State::IBV_QPS_RTS) => STATE,
        (_, State::IBV_QPS_RTS) => RTS,
        _ => STATE,
    }
}

/// Brings a queue pair from any state to this one.
fn bring(side: &Side, state: State) {
    side.qp.to_reset();
    let way: &[State] = match state {
        State::IBV_QPS_RESET => &[],
        State::IBV_QPS_ERR => &[State::IBV_QPS_INIT, State::IBV_QPS_ERR],
        _ => &STATES[1..=STATES.iter().position(|&other| other == state).unwrap()],
    };
    let mut from = State::IBV_QPS_RESET;
    for &to in way {
        assert_eq!(side.qp.modify(good(side, to), needed(from, to)), 0);
        from = to;
    }
    assert_eq!(side.qp.state(), state);
}

#[test]
fn exactly_the_transitions_of_the_specification_are_allowed() {
    // Rows: from; columns: to RESET, INIT, RTR, RTS, SQD, ERR.
    let table = [
        "x . . . . .", // RESET; INIT is a special case below
        "x x x . . x", // INIT
        "x . . x . x", // RTR
        "x . . x x x", // RTS
        "x . . x x x", // SQD
        "x . . . . x", // ERR
    ];
    on_each_device("transitions", |device| {
        let side = alone(device);
        for (from, row) in STATES.into_iter().zip(table) {
            for (to, cell) in STATES.into_iter().zip(row.split(' ')) {
                let allowed =
                    cell == "x" || (from, to) == (State::IBV_QPS_RESET, State::IBV_QPS_INIT);
                bring(&side, from);
                let result = side.qp.modify(good(&side, to), needed(from, to));
                let (errno, then) = if allowed { (0, to) } else { (REFUSED, from) };
                assert_eq!(result, errno, "{from:?} to {to:?}");
                assert_eq!(side.qp.state(), then, "{from:?} to {to:?}");
            }
        }
    });
}

#[test]
fn states_that_do_not_exist_are_refused() {
    on_each_device("no-such-state", |device| {
        let side = alone(device);
        for from in STATES {
            bring(&side, from);
            for to in [State::IBV_QPS_SQE, State::IBV_QPS_UNKNOWN, State(99)] {
                assert_eq!(side.qp.to_state(to), REFUSED, "{from:?} to {to:?}");
                assert_eq!(side.qp.state(), from);
            }
        }
    });
}

/// The three steps of connecting.
const STEPS: [(State, State, u32); 3] = [
    (State::IBV_QPS_RESET, State::IBV_QPS_INIT, INIT),
    (State::IBV_QPS_INIT, State::IBV_QPS_RTR, RTR),
    (State::IBV_QPS_RTR, State::IBV_QPS_RTS, RTS),
];

fn bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|n| 1 << n).filter(move |bit| mask & bit != 0)
}

#[test]
fn each_attribute_that_a_step_needs_is_missed() {
    on_each_device("missing-attribute", |device| {
        let side = alone(device);
        for (from, to, mask) in STEPS {
            for bit in bits(mask & !STATE) {
                bring(&side, from);
                assert_eq!(
                    side.qp.modify(good(&side, to), mask & !bit),
                    REFUSED,
                    "{to:?} {bit:#x}"
                );
                assert_eq!(side.qp.state(), from);
            }
        }
    });
}

#[test]
fn attributes_that_a_step_does_not_take_are_refused() {
    // What may come along, besides what must.
    let running = Mask::IBV_QP_CUR_STATE.0
        | Mask::IBV_QP_ACCESS_FLAGS.0
        | Mask::IBV_QP_MIN_RNR_TIMER.0
        | Mask::IBV_QP_ALT_PATH.0
        | Mask::IBV_QP_PATH_MIG_STATE.0;
    let alternate = Mask::IBV_QP_ALT_PATH.0;
    let ready = alternate | Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_PKEY_INDEX.0;
    let taken = [0, ready, running];
    on_each_device("superfluous-attribute", |device| {
        let side = alone(device);
        for ((from, to, mask), optional) in STEPS.into_iter().zip(taken) {
            for bit in bits(0x03ff_ffff & !mask & !optional) {
                bring(&side, from);
                assert_eq!(side.qp.modify(good(&side, to), mask | bit), REFUSED, "{to:?} {bit:#x}");
                assert_eq!(side.qp.state(), from);
            }
        }
        for to in [State::IBV_QPS_RESET, State::IBV_QPS_ERR] {
            bring(&side, State::IBV_QPS_RTS);
            for bit in bits(RTS & !STATE) {
                assert_eq!(side.qp.modify(good(&side, to), STATE | bit), REFUSED);
            }
        }
    });
}

#[test]
fn alternate_paths_are_not_supported() {
    on_each_device("apm", |device| {
        let side = alone(device);
        let unsupported = Errno::EOPNOTSUPP.raw();
        bring(&side, State::IBV_QPS_INIT);
        let mut attr = good(&side, State::IBV_QPS_RTR);
        attr.alt_ah_attr = attr.ah_attr;
        assert_eq!(side.qp.modify(attr, RTR | Mask::IBV_QP_ALT_PATH.0), unsupported);
        bring(&side, State::IBV_QPS_RTR);
        let mut attr = good(&side, State::IBV_QPS_RTS);
        attr.path_mig_state = ibv_mig_state::IBV_MIG_REARM;
        assert_eq!(side.qp.modify(attr, RTS | Mask::IBV_QP_PATH_MIG_STATE.0), unsupported);
        assert_eq!(side.qp.state(), State::IBV_QPS_RTR);
    });
}

#[test]
fn assumed_state_must_be_the_present_one() {
    on_each_device("cur-state", |device| {
        let side = alone(device);
        bring(&side, State::IBV_QPS_RTS);
        let mut attr = good(&side, State::IBV_QPS_RTS);
        attr.cur_qp_state = State::IBV_QPS_SQD;
        assert_eq!(side.qp.modify(attr, STATE | Mask::IBV_QP_CUR_STATE.0), REFUSED);
        attr.cur_qp_state = State::IBV_QPS_RTS;
        assert_eq!(side.qp.modify(attr, STATE | Mask::IBV_QP_CUR_STATE.0), 0);
    });
}

type Spoil = fn(&mut ibv_qp_attr);

#[test]
fn bad_values_are_refused_and_change_nothing() {
    let bad: [(usize, Spoil); 16] = [
        (0, |attr| attr.port_num = 0),
        (0, |attr| attr.port_num = 2),
        (0, |attr| attr.pkey_index = 1),
        (0, |attr| attr.qp_access_flags = 1 << 30),
        (1, |attr| attr.path_mtu = ibv_mtu(0)),
        (1, |attr| attr.path_mtu = ibv_mtu(6)),
        (1, |attr| attr.dest_qp_num = 1 << 24),
        (1, |attr| attr.max_dest_rd_atomic = 17),
        (1, |attr| attr.min_rnr_timer = 32),
        (1, |attr| attr.ah_attr.port_num = 2),
        (2, |attr| attr.timeout = 32),
        (2, |attr| attr.retry_cnt = 8),
        (2, |attr| attr.rnr_retry = 8),
        (2, |attr| attr.max_rd_atomic = 17),
        (2, |attr| attr.timeout = u8::MAX),
        (1, |attr| attr.path_mtu = ibv_mtu(u32::MAX)),
    ];
    on_each_device("bad-values", |device| {
        let side = alone(device);
        for (n, (step, spoil)) in bad.into_iter().enumerate() {
            let (from, to, mask) = STEPS[step];
            bring(&side, from);
            let mut attr = good(&side, to);
            spoil(&mut attr);
            assert_eq!(side.qp.modify(attr, mask), REFUSED, "number {n}");
            assert_eq!(side.qp.state(), from);
            assert_eq!(side.qp.modify(good(&side, to), mask), 0, "after number {n}");
        }
    });
}

#[test]
fn each_state_takes_the_posts_of_the_specification() {
    on_each_device("posts", |device| {
        let side = alone(device);
        for (state, send, receive) in [
            (State::IBV_QPS_RESET, REFUSED, REFUSED),
            (State::IBV_QPS_INIT, REFUSED, 0),
            (State::IBV_QPS_RTR, REFUSED, 0),
            (State::IBV_QPS_RTS, 0, 0),
            (State::IBV_QPS_SQD, 0, 0),
            (State::IBV_QPS_ERR, 0, 0),
        ] {
            bring(&side, state);
            assert_eq!(side.qp.try_post_receive(1, &[]), receive, "{state:?}");
            assert_eq!(side.qp.try_post(&Wr::send(2, &[])), send, "{state:?}");
            if state == State::IBV_QPS_ERR {
                side.send_cq.expect_flushed([2]);
                side.receive_cq.expect_flushed([1]);
            }
        }
    });
}

#[test]
fn query_gives_back_what_was_set() {
    on_each_device("query", |device| {
        let side = alone(device);
        let size = Size::default();
        bring(&side, State::IBV_QPS_RTS);
        let (set, found) = (good(&side, State::IBV_QPS_RTS), side.qp.query());
        assert_eq!((found.qp_state, found.cur_qp_state), (set.qp_state, set.qp_state));
        assert_eq!((found.qp_access_flags, found.path_mtu), (set.qp_access_flags, set.path_mtu));
        assert_eq!((found.sq_psn, found.rq_psn), (set.sq_psn, set.rq_psn));
        assert_eq!(found.dest_qp_num, side.qp.number());
        assert_eq!((found.port_num, found.pkey_index), (1, 0));
        assert_eq!((found.timeout, found.min_rnr_timer), (set.timeout, set.min_rnr_timer));
        assert_eq!((found.retry_cnt, found.rnr_retry), (set.retry_cnt, set.rnr_retry));
        assert_eq!(found.max_rd_atomic, set.max_rd_atomic);
        assert_eq!(found.max_dest_rd_atomic, set.max_dest_rd_atomic);
        assert_eq!(found.ah_attr.dlid, set.ah_attr.dlid);
        assert_eq!(found.ah_attr.is_global, set.ah_attr.is_global);
        assert_eq!(found.ah_attr.grh.sgid_index, set.ah_attr.grh.sgid_index);
        assert_eq!((found.cap.max_send_wr, found.cap.max_recv_wr), (size.send_wr, size.receive_wr));
        assert_eq!((found.cap.max_send_sge, found.cap.max_inline_data), (size.sge, size.inline));
        side.qp.to_reset();
        let reset = side.qp.query();
        assert_eq!((reset.dest_qp_num, reset.timeout, reset.port_num), (0, 0, 0));
    });
}

#[test]
fn attributes_of_a_running_queue_pair_can_be_changed() {
    on_each_device("modify-running", |device| {
        let (a, b) = pair(device);
        let source = a.pd.register(8, ALL_ACCESS);
        let sink = b.pd.register(8, ALL_ACCESS);
        let mut attr = ibv_qp_attr::default();
        attr.qp_access_flags = 0;
        assert_eq!(b.qp.modify(attr, Mask::IBV_QP_ACCESS_FLAGS.0), 0);
        assert_eq!(b.qp.state(), State::IBV_QPS_RTS);
        a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0));
        a.send_cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR);
    });
}

#[test]
fn sequence_numbers_advance_by_packets_and_wrap() {
    on_each_device("psn", |device| {
        let knobs = Knobs { psn: 0x00ff_fffe, mtu: ibv_mtu::IBV_MTU_1024, ..Knobs::default() };
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let source = a.pd.register(3000, ALL_ACCESS);
        let sink = b.pd.register(3000, ALL_ACCESS);
        let numbers = || (a.qp.query().sq_psn, b.qp.query().rq_psn);
        assert_eq!(numbers(), (0x00ff_fffe, 0x00ff_fffe));
        a.qp.post(&Wr::write(1, &[source.sge(0, 3000)], &sink, 0));
        a.send_cq.expect_success(1);
        assert_eq!(numbers(), (1, 1), "three packets");
        a.qp.post(&Wr::write(2, &[], &sink, 0));
        a.send_cq.expect_success(2);
        assert_eq!(numbers(), (2, 2), "one empty packet");
        a.qp.post(&Wr::read(3, &[source.sge(0, 1024)], &sink, 0));
        a.send_cq.expect_success(3);
        assert_eq!(numbers(), (3, 3));
        assert_eq!((a.qp.query().rq_psn, b.qp.query().sq_psn), (0x00ff_fffe, 0x00ff_fffe));
    });
}

#[test]
fn sequence_numbers_that_do_not_match_never_connect() {
    on_each_device("psn-mismatch", |device| {
        let (a, b) = (alone(device), alone(device));
        connect_sides(&a, &b, &Knobs::default());
        b.qp.to_reset();
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        crate::rig::connect::connect(&b.qp, &at_b, &at_a, &Knobs { psn: 8, ..Knobs::default() });
        b.qp.post_receive(1, &[]);
        a.qp.post(&Wr::send(2, &[]));
        a.send_cq.expect(2, Status::IBV_WC_RETRY_EXC_ERR);
        assert!(b.receive_cq.is_empty());
        b.qp.assert_ready();
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
fn draining_queue_can_be_flushed() {
    on_each_device("drain-error", |device| {
        let (a, _b) = pair(device);
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
        a.qp.post(&Wr::send(1, &[]));
        a.qp.to_error();
        a.send_cq.expect_flushed([1]);
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

#[test]
fn reset_leaves_the_completions_of_other_queue_pairs() {
    on_each_device("reset-shared-cq", |device| {
        let (a, b) = pair(device);
        let other = a.pd.qp(&a.send_cq, &a.send_cq, &Size::default());
        let (peer, knobs) = (alone(device), Knobs::default());
        let at_other = crate::rig::connect::endpoint(&a.context, &other);
        crate::rig::connect::connect(&other, &at_other, &peer.endpoint(), &knobs);
        crate::rig::connect::connect(&peer.qp, &peer.endpoint(), &at_other, &knobs);
        for n in 0..3 {
            b.qp.post_receive(n, &[]);
            peer.qp.post_receive(n, &[]);
            a.qp.post(&Wr::send(n, &[]));
            other.post(&Wr::send(n + 10, &[]));
        }
        for n in 0..3 {
            b.receive_cq.expect_success(n);
            peer.receive_cq.expect_success(n);
        }
        a.qp.to_reset();
        for n in 10..13 {
            assert_eq!(a.send_cq.expect_success(n).qp_num, other.number());
        }
        assert!(a.send_cq.is_empty());
    });
}

#[test]
fn error_state_can_only_be_left_by_reset() {
    on_each_device("out-of-error", |device| {
        let (a, b) = pair(device);
        a.qp.to_error();
        a.qp.to_reset();
        b.qp.to_reset();
        connect_sides(&a, &b, &Knobs::default());
        b.qp.post_receive(1, &[]);
        a.qp.post(&Wr::send(2, &[]));
        a.send_cq.expect_success(2);
        b.receive_cq.expect_success(1);
    });
}

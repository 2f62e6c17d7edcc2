//! The state machine of queue pairs: valid transitions, allowed posts in each state, and the fate
//! of requests when the state changes.

use rdma_sys::{Errno, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_wc_status as Status};
use test_support::rig::connect::{
    INIT, Knobs, Side, attributes, connect, connect_sides, endpoint, pair, pair_with,
};
use test_support::rig::datagram::QKEY;
use test_support::rig::post::{NOT_SAID, Wr};
use test_support::rig::transition::{RC, SERVICES, STATES, UD, alone, transition};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    each_transition_of_the_table_is_allowed,
    no_other_transition_is_allowed,
    states_that_do_not_exist_are_refused,
    no_receive_is_taken_before_init,
    receives_are_taken_from_init_on,
    no_send_is_taken_before_the_queue_pair_sends,
    a_post_that_comes_too_early_leaves_nothing,
    a_post_that_comes_too_early_says_which_request,
    sends_are_taken_while_the_queue_is_drained,
    receives_of_before_the_connection_take_its_first_messages,
    sequence_numbers_that_do_not_match_never_connect,
    a_queue_pair_that_only_receives_takes_messages,
    draining_queue_still_serves_its_peer,
    draining_queue_can_be_flushed,
    reset_drops_requests,
    reset_frees_all_places_of_both_queues,
    reset_leaves_the_completions_of_other_queue_pairs,
    error_state_can_be_left_by_reset,
    a_queue_pair_is_connected_to_another_peer_after_reset,
    a_queue_pair_that_does_not_receive_is_not_reached,
    attributes_alone_are_refused_where_the_state_cannot_stay,
    a_modification_of_nothing_changes_nothing,
];

const REFUSED: i32 = Errno::EINVAL.raw();

fn each_transition_of_the_table_is_allowed(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
            if transition(service, from, to).is_some() {
                side.bring(from);
                assert_eq!(side.transit((from, to), 0), 0, "{service:?}: {from:?} to {to:?}");
                assert_eq!(side.qp.state(), to);
            }
        }
    }
}

fn no_other_transition_is_allowed(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
            if transition(service, from, to).is_none() {
                side.bring(from);
                // For each state `before`, pass the attributes that the transition from there to
                // `to` would need.
                for before in STATES {
                    let needed = transition(service, before, to).map_or(0, |way| way.required);
                    let result = side.transit((from, to), needed);
                    assert_eq!(result, REFUSED, "{service:?}: {from:?} to {to:?}");
                }
                assert_eq!(side.qp.state(), from);
            }
        }
    }
}

fn states_that_do_not_exist_are_refused(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        for from in STATES {
            side.bring(from);
            for to in [State::IBV_QPS_SQE, State::IBV_QPS_UNKNOWN, State(99)] {
                assert_eq!(side.qp.to_state(to), REFUSED, "{service:?}: {from:?} to {to:?}");
            }
            assert_eq!(side.qp.state(), from);
        }
    }
}

fn no_receive_is_taken_before_init(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        assert_eq!(side.qp.try_post_receive(1, &[]), REFUSED, "{service:?}");
        // The refused receive is not flushed later.
        side.bring(State::IBV_QPS_RTR);
        side.qp.post_receive(2, &[]);
        side.qp.to_error();
        side.receive_cq.expect_flushed([2]);
    }
}

fn receives_are_taken_from_init_on(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        for state in &STATES[1..] {
            side.bring(*state);
            assert_eq!(side.qp.try_post_receive(1, &[]), 0, "{service:?}: {state:?}");
        }
    }
}

fn no_send_is_taken_before_the_queue_pair_sends(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        let end = side.endpoint();
        let ah = side.pd.ah_to(&end, &end);
        for state in &STATES[..3] {
            side.bring(*state);
            let wr = match service {
                UD => Wr::send(1, &[]).to(&ah, end.qpn, QKEY),
                _ => Wr::send(1, &[]),
            };
            assert_eq!(side.qp.try_post(&wr), REFUSED, "{service:?}: {state:?}");
        }
    }
}

fn a_post_that_comes_too_early_leaves_nothing(device: &Device) {
    let side = alone(device, RC);
    side.bring(State::IBV_QPS_RTR);
    assert_eq!(side.qp.try_post(&Wr::send(1, &[])), REFUSED);
    assert_eq!(side.transit((State::IBV_QPS_RTR, State::IBV_QPS_RTS), 0), 0);
    side.qp.post_receive(3, &[]);
    side.qp.post_receive(4, &[]);
    side.qp.post(&Wr::send(2, &[]));
    let first = device.expected(2, "refused-sends-stay-in-the-queue", 1);
    side.send_cq.expect_success(first);
}

fn a_post_that_comes_too_early_says_which_request(device: &Device) {
    let side = alone(device, RC);
    let said = device.expected(0, "refused-posts-do-not-say-which", NOT_SAID);
    let refused = Err((said, REFUSED));
    assert_eq!(side.qp.try_post_receive_list(&[(1, &[]), (2, &[])]), refused);
    assert_eq!(side.qp.try_post_list(&[Wr::send(1, &[]), Wr::send(2, &[])]), refused);
}

fn sends_are_taken_while_the_queue_is_drained(device: &Device) {
    let side = alone(device, RC);
    side.bring(State::IBV_QPS_SQD);
    assert_eq!(side.qp.try_post(&Wr::send(1, &[])), 0);
}

fn receives_of_before_the_connection_take_its_first_messages(device: &Device) {
    let (a, b) = (alone(device, RC), alone(device, RC));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let init = attributes(&at_b, &at_a, &Knobs::default());
    let init = rdma_sys::ibv_qp_attr { qp_state: State::IBV_QPS_INIT, ..init };
    assert_eq!(b.qp.modify(init, INIT), 0);
    for n in 0..3 {
        b.qp.post_receive(n, &[]);
    }
    connect(&a.qp, &at_a, &at_b, &Knobs::default());
    connect(&b.qp, &at_b, &at_a, &Knobs::default());
    for n in 0..3 {
        a.qp.post(&Wr::send(n, &[]));
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
}

fn sequence_numbers_that_do_not_match_never_connect(device: &Device) {
    let (a, b) = (alone(device, RC), alone(device, RC));
    let knobs = Knobs { timeout: 14, retries: 2, ..Knobs::default() };
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    connect(&a.qp, &at_a, &at_b, &knobs);
    connect(&b.qp, &at_b, &at_a, &Knobs { psn: knobs.psn + 1, ..knobs });
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect(2, Status::IBV_WC_RETRY_EXC_ERR);
    assert!(b.receive_cq.is_empty());
    b.qp.assert_ready();
}

fn a_queue_pair_that_only_receives_takes_messages(device: &Device) {
    let (a, b) = (alone(device, RC), alone(device, RC));
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let passive = attributes(&at_b, &at_a, &Knobs::default());
    test_support::rig::connect::to_init(&b.qp, &passive);
    test_support::rig::connect::to_rtr(&b.qp, &passive);
    connect(&a.qp, &at_a, &at_b, &Knobs::default());
    b.qp.post_receive(1, &[]);
    a.qp.post(&Wr::send(2, &[]));
    a.send_cq.expect_success(2);
    b.receive_cq.expect_success(1);
    assert_eq!(b.qp.state(), State::IBV_QPS_RTR);
}

fn draining_queue_still_serves_its_peer(device: &Device) {
    let (a, b) = pair(device);
    assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
    a.qp.post_receive(9, &[]);
    b.qp.post(&Wr::send(8, &[]));
    b.send_cq.expect_success(8);
    a.receive_cq.expect_success(9);
    let (from, to) = (b.pd.register_filled(vec![3; 8], LOCAL_WRITE), a.pd.register(8, ALL_ACCESS));
    b.qp.post(&Wr::write(7, &[from.sge(0, 8)], &to, 0));
    b.send_cq.expect_success(7);
    to.assert_filled(3);
    from.fill(0);
    b.qp.post(&Wr::read(6, &[from.sge(0, 8)], &to, 0));
    b.send_cq.expect_success(6);
    from.assert_filled(3);
}

fn draining_queue_can_be_flushed(device: &Device) {
    let (a, _b) = pair(device);
    assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
    a.qp.post(&Wr::send(1, &[]));
    a.qp.to_error();
    a.send_cq.expect_flushed([1]);
}

/// Sends a message, and checks that its completions are the next ones on both sides.
#[track_caller]
fn expect_nothing_but_a_message(a: &Side, b: &Side) {
    b.qp.post_receive(1000, &[]);
    a.qp.post(&Wr::send(1001, &[]));
    a.send_cq.expect_success(1001);
    b.receive_cq.expect_success(1000);
}

fn reset_drops_requests(device: &Device) {
    let (a, b) = pair(device);
    a.qp.post_receive(1, &[]);
    b.qp.post_receive(2, &[]);
    assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
    a.qp.post(&Wr::send(3, &[]));
    a.qp.to_reset();
    b.qp.to_reset();
    connect_sides(&a, &b, &Knobs::default());
    expect_nothing_but_a_message(&a, &b);
    expect_nothing_but_a_message(&b, &a);
}

fn reset_frees_all_places_of_both_queues(device: &Device) {
    let size = Size { send_wr: 3, receive_wr: 3, ..Size::default() };
    let (a, b) = pair_with(device, &size, &Knobs::default());
    let places = a.qp.query().cap;
    for round in 0..3u64 {
        for n in 0..places.max_recv_wr.into() {
            b.qp.post_receive(100 * round + n, &[]);
        }
        assert_eq!(a.qp.to_state(State::IBV_QPS_SQD), 0);
        for n in 0..places.max_send_wr.into() {
            a.qp.post(&Wr::send(100 * round + n, &[]));
        }
        a.qp.to_reset();
        b.qp.to_reset();
        connect_sides(&a, &b, &Knobs::default());
    }
    let count = u64::from(places.max_send_wr.min(places.max_recv_wr));
    for n in 0..count {
        b.qp.post_receive(n, &[]);
        a.qp.post(&Wr::send(n, &[]));
    }
    for n in 0..count {
        a.send_cq.expect_success(n);
        b.receive_cq.expect_success(n);
    }
}

fn reset_leaves_the_completions_of_other_queue_pairs(device: &Device) {
    let (a, b) = pair(device);
    let other = a.pd.qp(&a.send_cq, &a.send_cq, &Size::default());
    let (peer, knobs) = (alone(device, RC), Knobs::default());
    let at_other = endpoint(&a.context, &other);
    connect(&other, &at_other, &peer.endpoint(), &knobs);
    connect(&peer.qp, &peer.endpoint(), &at_other, &knobs);
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
    // Completions of the reset queue pair may remain in the completion queue, so this skips them.
    let mut next = 10;
    while next < 13 {
        let wc = a.send_cq.next();
        if wc.qp_num == other.number() {
            assert_eq!((wc.wr_id, wc.status), (next, Status::IBV_WC_SUCCESS));
            next += 1;
        }
    }
}

fn error_state_can_be_left_by_reset(device: &Device) {
    let (a, b) = pair(device);
    a.qp.to_error();
    a.qp.to_reset();
    b.qp.to_reset();
    connect_sides(&a, &b, &Knobs::default());
    expect_nothing_but_a_message(&a, &b);
}

fn a_queue_pair_is_connected_to_another_peer_after_reset(device: &Device) {
    let (a, b) = pair(device);
    expect_nothing_but_a_message(&a, &b);
    let c = alone(device, RC);
    a.qp.to_reset();
    connect_sides(&a, &c, &Knobs::default());
    expect_nothing_but_a_message(&a, &c);
    expect_nothing_but_a_message(&c, &a);
}

fn a_queue_pair_that_does_not_receive_is_not_reached(device: &Device) {
    let knobs = Knobs { timeout: 14, retries: 1, ..Knobs::default() };
    for state in [State::IBV_QPS_RESET, State::IBV_QPS_INIT, State::IBV_QPS_ERR] {
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let memory = b.pd.register(8, ALL_ACCESS);
        b.bring(state);
        let source = a.pd.register_filled(vec![7; 8], 0);
        a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &memory, 0));
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        assert_eq!(b.qp.state(), state);
        memory.assert_filled(0);
    }
}

fn attributes_alone_are_refused_where_the_state_cannot_stay(device: &Device) {
    let attr = rdma_sys::ibv_qp_attr { qp_access_flags: ALL_ACCESS, ..Default::default() };
    let side = alone(device, RC);
    for state in [State::IBV_QPS_RESET, State::IBV_QPS_RTR, State::IBV_QPS_ERR] {
        side.bring(state);
        let refused = side.qp.modify(attr, Mask::IBV_QP_ACCESS_FLAGS.0);
        assert_eq!(refused, REFUSED, "{state:?}");
        assert_eq!(side.qp.state(), state);
    }
}

fn a_modification_of_nothing_changes_nothing(device: &Device) {
    let (a, b) = pair(device);
    for qp in [&a.qp, &b.qp] {
        assert_eq!(qp.modify(Default::default(), 0), 0);
        qp.assert_ready();
    }
    expect_nothing_but_a_message(&a, &b);
    assert_eq!(a.qp.query().sq_psn, b.qp.query().rq_psn);
}

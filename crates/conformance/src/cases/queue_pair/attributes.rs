//! The attributes that each transition of a queue pair requires, accepts and refuses.

use rdma_sys::{
    Errno, ibv_device_cap_flags, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_qp_type, ibv_wc_status as Status,
};
use test_support::rig::ALL_ACCESS;
use test_support::rig::connect::pair;
use test_support::rig::post::Wr;
use test_support::rig::transition::{
    PATH_MIGRATION, RC, SERVICES, STATES, STEPS, UC, UD, alone, transition,
};

use crate::case::cases;
use crate::device::Device;

cases![
    each_attribute_that_a_step_needs_is_missed,
    optional_attributes_are_taken,
    the_way_of_a_drained_unreliable_connection_can_be_changed,
    attributes_that_a_transition_does_not_take_are_refused,
    refused_attributes_change_nothing,
    assumed_state_may_be_the_present_one,
    assumed_state_must_be_the_present_one,
    attributes_can_be_set_again_before_the_queue_pair_receives,
    attributes_of_a_running_queue_pair_can_be_changed,
    attributes_of_a_drained_queue_pair_can_be_changed,
];

const STATE: u32 = Mask::IBV_QP_STATE.0;
const REFUSED: i32 = Errno::EINVAL.raw();
const RTR: (State, State) = STEPS[1];
const RTS: (State, State) = STEPS[2];

fn bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|n| 1 << n).filter(move |bit| mask & bit != 0)
}

/// Returns the valid transitions, each with its required and its optional attributes.
fn ways(service: ibv_qp_type) -> impl Iterator<Item = ((State, State), u32, u32)> {
    let all = STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to)));
    all.filter_map(move |(from, to)| {
        let way = transition(service, from, to)?;
        Some(((from, to), way.required, way.optional))
    })
}

fn each_attribute_that_a_step_needs_is_missed(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        for (way, required, _) in ways(service) {
            for bit in bits(required) {
                side.bring(way.0);
                assert_eq!(side.transit(way, bit), REFUSED, "{service:?} {way:?} {bit:#x}");
                assert_eq!(side.qp.state(), way.0);
            }
        }
    }
}

/// Returns the attributes that the kernel refuses although the transition allows them.
fn not_by_the_kernel(service: ibv_qp_type, way: (State, State)) -> u32 {
    let is_it = service == UC && way == (State::IBV_QPS_SQD, State::IBV_QPS_SQD);
    if is_it { Mask::IBV_QP_AV.0 } else { 0 }
}

fn the_way_of_a_drained_unreliable_connection_can_be_changed(device: &Device) {
    device.needs_type(UC);
    let side = alone(device, UC);
    side.bring(State::IBV_QPS_SQD);
    let changed = side.transit((State::IBV_QPS_SQD, State::IBV_QPS_SQD), Mask::IBV_QP_AV.0);
    assert_eq!(
        changed,
        device.expected(0, "address-vector-alone-is-refused-when-drained", REFUSED)
    );
}

fn optional_attributes_are_taken(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        for (way, _, optional) in ways(service) {
            let taken = optional & !(PATH_MIGRATION | not_by_the_kernel(service, way));
            for bit in bits(taken) {
                side.bring(way.0);
                assert_eq!(side.transit(way, bit), 0, "{service:?} {way:?} {bit:#x}");
                assert_eq!(side.qp.state(), way.1);
            }
        }
    }
}

fn attributes_that_a_transition_does_not_take_are_refused(device: &Device) {
    let all = 2 * Mask::IBV_QP_DEST_QPN.0 - 1;
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        for (way, required, optional) in ways(service) {
            side.bring(way.0);
            for bit in bits(all & !(STATE | required | optional)) {
                assert_eq!(side.transit(way, bit), REFUSED, "{service:?} {way:?} {bit:#x}");
            }
            assert_eq!(side.qp.state(), way.0);
        }
    }
}

fn refused_attributes_change_nothing(device: &Device) {
    let side = alone(device, RC);
    side.bring(State::IBV_QPS_INIT);
    // Omits one of the attributes that RTR needs, and sets two others to values that differ from
    // the previous ones.
    let change = |attr: &mut ibv_qp_attr| (attr.qp_access_flags, attr.min_rnr_timer) = (0, 20);
    let mask = Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_DEST_QPN.0;
    assert_eq!(side.transit_with(RTR, mask, change), REFUSED);
    let found = side.qp.query();
    assert_eq!((found.qp_state, found.qp_access_flags), (State::IBV_QPS_INIT, ALL_ACCESS));
    assert_ne!(found.min_rnr_timer, 20);
    assert_eq!(side.transit(RTR, 0), 0);
}

fn assumed_state_may_be_the_present_one(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        side.bring(State::IBV_QPS_RTR);
        assert_eq!(side.transit(RTS, Mask::IBV_QP_CUR_STATE.0), 0, "{service:?}");
        side.qp.assert_ready();
    }
}

fn assumed_state_must_be_the_present_one(device: &Device) {
    let flag = ibv_device_cap_flags::IBV_DEVICE_CURR_QP_STATE_MOD.0;
    let has = device.attributes().device_cap_flags & flag != 0;
    device.needs(has, "the device does not take the state that a program assumes");
    let side = alone(device, RC);
    side.bring(State::IBV_QPS_RTS);
    let again = (State::IBV_QPS_RTS, State::IBV_QPS_RTS);
    let assume = |attr: &mut ibv_qp_attr| attr.cur_qp_state = State::IBV_QPS_SQD;
    assert_eq!(side.transit_with(again, Mask::IBV_QP_CUR_STATE.0, assume), REFUSED);
    side.qp.assert_ready();
}

fn attributes_can_be_set_again_before_the_queue_pair_receives(device: &Device) {
    let again = (State::IBV_QPS_INIT, State::IBV_QPS_INIT);
    for service in device.types(&[RC, UC]) {
        let side = alone(device, service);
        side.bring(State::IBV_QPS_INIT);
        let none = |attr: &mut ibv_qp_attr| attr.qp_access_flags = 0;
        assert_eq!(side.transit_with(again, Mask::IBV_QP_ACCESS_FLAGS.0, none), 0);
        assert_eq!(side.qp.query().qp_access_flags, 0, "{service:?}");
    }
    device.needs_type(UD);
    let side = alone(device, UD);
    side.bring(State::IBV_QPS_INIT);
    assert_eq!(side.transit_with(again, Mask::IBV_QP_QKEY.0, |attr| attr.qkey = 77), 0);
    assert_eq!(side.qp.query().qkey, 77);
}

fn attributes_of_a_running_queue_pair_can_be_changed(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register(8, ALL_ACCESS);
    let sink = b.pd.register(8, ALL_ACCESS);
    let attr = ibv_qp_attr { qp_access_flags: 0, ..Default::default() };
    assert_eq!(b.qp.modify(attr, Mask::IBV_QP_ACCESS_FLAGS.0), 0);
    b.qp.assert_ready();
    assert_eq!(b.qp.query().qp_access_flags, 0);
    a.qp.post(&Wr::write(1, &[source.sge(0, 8)], &sink, 0));
    a.send_cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR);
}

fn attributes_of_a_drained_queue_pair_can_be_changed(device: &Device) {
    let side = alone(device, RC);
    side.bring(State::IBV_QPS_SQD);
    let again = (State::IBV_QPS_SQD, State::IBV_QPS_SQD);
    let mask = Mask::IBV_QP_TIMEOUT | Mask::IBV_QP_RETRY_CNT | Mask::IBV_QP_RNR_RETRY;
    let change = |attr: &mut ibv_qp_attr| {
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (17, 3, 2);
    };
    assert_eq!(side.transit_with(again, mask.0, change), 0);
    assert_eq!(side.transit((State::IBV_QPS_SQD, State::IBV_QPS_RTS), 0), 0);
    let found = side.qp.query();
    assert_eq!((found.timeout, found.retry_cnt, found.rnr_retry), (17, 3, 2));
}

//! What a transition of a queue pair needs, what it takes besides, which values it refuses, and what a
//! query gives back.

use rdma_sys::{
    Errno, ibv_device_cap_flags, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as Mask,
    ibv_qp_state as State, ibv_qp_type, ibv_wc_status as Status,
};
use test_support::rig::connect::{Knobs, Side, pair, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::transition::{
    PATH_MIGRATION, RC, SERVICES, STATES, STEPS, UC, UD, alone, right, transition,
};
use test_support::rig::{ALL_ACCESS, Size};

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
    ports_that_the_device_lacks_are_refused,
    places_behind_the_partition_table_are_refused,
    access_flags_that_nobody_knows_are_refused,
    path_mtus_above_the_ports_are_refused,
    path_mtus_that_nobody_knows_are_refused,
    queue_pair_numbers_above_24_bits_are_refused,
    more_reads_from_the_peer_than_the_device_serves_are_refused,
    more_reads_at_once_than_the_device_has_are_refused,
    not_ready_timers_above_31_are_refused,
    timeouts_above_31_are_refused,
    retry_counts_above_7_are_refused,
    not_ready_retry_counts_above_7_are_refused,
    address_vectors_of_another_port_are_refused,
    source_gids_behind_the_table_are_refused,
    initial_attributes_are_given_back,
    attributes_of_receiving_are_given_back,
    attributes_of_sending_are_given_back,
    the_way_to_the_peer_is_given_back,
    the_present_state_is_given_back,
    the_present_state_is_given_back_as_the_assumed_one,
    a_reset_queue_pair_forgets_its_attributes,
    attributes_can_be_set_again_before_the_queue_pair_receives,
    attributes_of_a_running_queue_pair_can_be_changed,
    attributes_of_a_drained_queue_pair_can_be_changed,
    sequence_numbers_advance_by_packets,
    sequence_numbers_wrap,
];

const STATE: u32 = Mask::IBV_QP_STATE.0;
const REFUSED: i32 = Errno::EINVAL.raw();
const INIT: (State, State) = STEPS[0];
const RTR: (State, State) = STEPS[1];
const RTS: (State, State) = STEPS[2];

fn bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).map(|n| 1 << n).filter(move |bit| mask & bit != 0)
}

/// The states between which there is a way, with the attributes that go with it.
fn ways(service: ibv_qp_type) -> impl Iterator<Item = ((State, State), u32, u32)> {
    let all = STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to)));
    all.filter_map(move |(from, to)| {
        let way = transition(service, from, to)?;
        Some(((from, to), way.required, way.optional))
    })
}

fn each_attribute_that_a_step_needs_is_missed(device: &Device) {
    for service in SERVICES {
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

/// What the kernel takes for something that does not go with the transition.
fn not_by_the_kernel(service: ibv_qp_type, way: (State, State)) -> u32 {
    let is_it = service == UC && way == (State::IBV_QPS_SQD, State::IBV_QPS_SQD);
    if is_it { Mask::IBV_QP_AV.0 } else { 0 }
}

fn the_way_of_a_drained_unreliable_connection_can_be_changed(device: &Device) {
    let side = alone(device, UC);
    side.bring(State::IBV_QPS_SQD);
    let changed = side.transit((State::IBV_QPS_SQD, State::IBV_QPS_SQD), Mask::IBV_QP_AV.0);
    assert_eq!(
        changed,
        device.expected(0, "address-vector-alone-is-refused-when-drained", REFUSED)
    );
}

fn optional_attributes_are_taken(device: &Device) {
    for service in SERVICES {
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
    for service in SERVICES {
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
    // All that RTR needs but one, and values that differ from those of before.
    let change = |attr: &mut ibv_qp_attr| (attr.qp_access_flags, attr.min_rnr_timer) = (0, 20);
    let mask = Mask::IBV_QP_ACCESS_FLAGS.0 | Mask::IBV_QP_DEST_QPN.0;
    assert_eq!(side.transit_with(RTR, mask, change), REFUSED);
    let found = side.qp.query();
    assert_eq!((found.qp_state, found.qp_access_flags), (State::IBV_QPS_INIT, ALL_ACCESS));
    assert_ne!(found.min_rnr_timer, 20);
    assert_eq!(side.transit(RTR, 0), 0);
}

fn assumed_state_may_be_the_present_one(device: &Device) {
    for service in SERVICES {
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

/// Attributes with one bad value are refused, and the same with a good one are not.
#[track_caller]
fn expect_refused(
    device: &Device,
    services: &[ibv_qp_type],
    step: (State, State),
    spoil: impl Fn(&mut ibv_qp_attr),
) {
    for &service in services {
        let side = alone(device, service);
        side.bring(step.0);
        assert_eq!(side.transit_with(step, 0, &spoil), REFUSED, "{service:?}");
        assert_eq!(side.qp.state(), step.0);
        assert_eq!(side.transit(step, 0), 0, "{service:?}, afterwards");
    }
}

/// As [`expect_refused`] with the services that are connected, but that SoftRoCE takes it.
#[track_caller]
fn expect_refused_but(
    device: &Device,
    difference: &str,
    services: &[ibv_qp_type],
    step: (State, State),
    spoil: impl Fn(&mut ibv_qp_attr),
) {
    if !device.differs(difference) {
        return expect_refused(device, services, step, spoil);
    }
    for &service in services {
        let side = alone(device, service);
        side.bring(step.0);
        assert_eq!(side.transit_with(step, 0, &spoil), 0, "{service:?}");
        assert_eq!(side.qp.state(), step.1);
    }
}

fn ports_that_the_device_lacks_are_refused(device: &Device) {
    let ports = device.attributes().phys_port_cnt;
    for port in [0, ports + 1, u8::MAX] {
        expect_refused(device, &SERVICES, INIT, |attr| attr.port_num = port);
    }
}

fn places_behind_the_partition_table_are_refused(device: &Device) {
    let places = device.open().query_port().pkey_tbl_len;
    for place in [places, u16::MAX] {
        let spoil = |attr: &mut ibv_qp_attr| attr.pkey_index = place;
        expect_refused_but(device, "partition-key-index-is-not-checked", &SERVICES, INIT, spoil);
    }
}

fn access_flags_that_nobody_knows_are_refused(device: &Device) {
    let spoil = |attr: &mut ibv_qp_attr| attr.qp_access_flags = 1 << 30;
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC, UC], INIT, spoil);
}

fn path_mtus_above_the_ports_are_refused(device: &Device) {
    let most = device.open().query_port().max_mtu.0;
    for mtu in [most + 1, 6, u32::MAX] {
        expect_refused(device, &[RC, UC], RTR, |attr| attr.path_mtu = ibv_mtu(mtu));
    }
}

fn path_mtus_that_nobody_knows_are_refused(device: &Device) {
    let spoil = |attr: &mut ibv_qp_attr| attr.path_mtu = ibv_mtu(0);
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC, UC], RTR, spoil);
}

fn queue_pair_numbers_above_24_bits_are_refused(device: &Device) {
    let spoil = |attr: &mut ibv_qp_attr| attr.dest_qp_num = 1 << 24;
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC, UC], RTR, spoil);
}

fn more_reads_from_the_peer_than_the_device_serves_are_refused(device: &Device) {
    let most = u8::try_from(device.attributes().max_qp_rd_atom).unwrap_or(u8::MAX);
    device.needs(most < u8::MAX, "the device serves as many as the attribute can say");
    let spoil = |attr: &mut ibv_qp_attr| attr.max_dest_rd_atomic = most + 1;
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC], RTR, spoil);
}

fn more_reads_at_once_than_the_device_has_are_refused(device: &Device) {
    let most = u8::try_from(device.attributes().max_qp_init_rd_atom).unwrap_or(u8::MAX);
    device.needs(most < u8::MAX, "the device has as many as the attribute can say");
    expect_refused(device, &[RC], RTS, |attr| attr.max_rd_atomic = most + 1);
}

fn not_ready_timers_above_31_are_refused(device: &Device) {
    let spoil = |attr: &mut ibv_qp_attr| attr.min_rnr_timer = 32;
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC], RTR, spoil);
}

fn timeouts_above_31_are_refused(device: &Device) {
    for timeout in [32, u8::MAX] {
        expect_refused(device, &[RC], RTS, |attr| attr.timeout = timeout);
    }
}

fn retry_counts_above_7_are_refused(device: &Device) {
    let spoil = |attr: &mut ibv_qp_attr| attr.retry_cnt = 8;
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC], RTS, spoil);
}

fn not_ready_retry_counts_above_7_are_refused(device: &Device) {
    let spoil = |attr: &mut ibv_qp_attr| attr.rnr_retry = 8;
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC], RTS, spoil);
}

fn address_vectors_of_another_port_are_refused(device: &Device) {
    let ports = device.attributes().phys_port_cnt;
    for port in [0, ports + 1] {
        expect_refused(device, &[RC, UC], RTR, |attr| attr.ah_attr.port_num = port);
    }
}

fn source_gids_behind_the_table_are_refused(device: &Device) {
    let places = device.open().query_port().gid_tbl_len;
    let places = u8::try_from(places).unwrap_or(u8::MAX);
    device.needs(places < u8::MAX, "the table has as many as the attribute can say");
    for place in [places, u8::MAX] {
        expect_refused(device, &[RC, UC], RTR, |attr| {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.sgid_index = place;
        });
    }
}

/// What was set on the way to a state, and what a query then says.
fn set_and_found(side: &Side, state: State) -> (ibv_qp_attr, ibv_qp_attr) {
    side.bring(state);
    (right(&side.endpoint(), state, state), side.qp.query())
}

fn initial_attributes_are_given_back(device: &Device) {
    for service in SERVICES {
        let (set, found) = set_and_found(&alone(device, service), State::IBV_QPS_INIT);
        assert_eq!((found.port_num, found.pkey_index), (1, 0));
        match service {
            UD => assert_eq!(found.qkey, set.qkey),
            _ => assert_eq!(found.qp_access_flags, set.qp_access_flags),
        }
    }
}

fn attributes_of_receiving_are_given_back(device: &Device) {
    for service in [RC, UC] {
        let (set, found) = set_and_found(&alone(device, service), State::IBV_QPS_RTR);
        assert_eq!((found.path_mtu, found.rq_psn), (set.path_mtu, set.rq_psn));
        assert_eq!(found.dest_qp_num, set.dest_qp_num);
        if service == RC {
            assert_eq!(found.max_dest_rd_atomic, set.max_dest_rd_atomic);
            assert_eq!(found.min_rnr_timer, set.min_rnr_timer);
        }
    }
}

fn attributes_of_sending_are_given_back(device: &Device) {
    for service in SERVICES {
        let (set, found) = set_and_found(&alone(device, service), State::IBV_QPS_RTS);
        assert_eq!(found.sq_psn, set.sq_psn, "{service:?}");
        if service == RC {
            assert_eq!((found.timeout, found.retry_cnt), (set.timeout, set.retry_cnt));
            assert_eq!((found.rnr_retry, found.max_rd_atomic), (set.rnr_retry, set.max_rd_atomic));
        }
    }
}

fn the_way_to_the_peer_is_given_back(device: &Device) {
    for service in [RC, UC] {
        let (set, found) = set_and_found(&alone(device, service), State::IBV_QPS_RTS);
        let (set, found) = (set.ah_attr, found.ah_attr);
        assert_eq!((found.port_num, found.is_global), (set.port_num, set.is_global));
        if set.is_global == 0 {
            assert_eq!((found.dlid, found.sl), (set.dlid, set.sl));
            continue;
        }
        let gid =
            |attr: &rdma_sys::ibv_ah_attr| test_support::rig::datagram::gid_of(&attr.grh.dgid);
        assert_eq!(gid(&found), gid(&set));
        assert_eq!(found.grh.sgid_index, set.grh.sgid_index);
        assert_eq!(found.grh.hop_limit, set.grh.hop_limit);
    }
}

fn the_present_state_is_given_back(device: &Device) {
    for service in SERVICES {
        let side = alone(device, service);
        assert_eq!(side.qp.state(), State::IBV_QPS_RESET, "a new one");
        for state in STATES {
            side.bring(state);
            assert_eq!(side.qp.query().qp_state, state);
        }
    }
}

fn the_present_state_is_given_back_as_the_assumed_one(device: &Device) {
    let side = alone(device, RC);
    for state in STATES {
        side.bring(state);
        let first = State::IBV_QPS_RESET;
        let known = device.expected(state, "current-state-is-not-given-back", first);
        assert_eq!(side.qp.query().cur_qp_state, known);
    }
}

fn a_reset_queue_pair_forgets_its_attributes(device: &Device) {
    let side = alone(device, RC);
    side.bring(State::IBV_QPS_RTS);
    let before = side.qp.query();
    side.qp.to_reset();
    let found = side.qp.query();
    let (peer, timeout, port) = device.expected(
        (0, 0, 0),
        "reset-keeps-attributes",
        (before.dest_qp_num, before.timeout, 1),
    );
    assert_eq!((found.dest_qp_num, found.timeout, found.port_num), (peer, timeout, port));
}

fn attributes_can_be_set_again_before_the_queue_pair_receives(device: &Device) {
    let again = (State::IBV_QPS_INIT, State::IBV_QPS_INIT);
    for service in [RC, UC] {
        let side = alone(device, service);
        side.bring(State::IBV_QPS_INIT);
        let none = |attr: &mut ibv_qp_attr| attr.qp_access_flags = 0;
        assert_eq!(side.transit_with(again, Mask::IBV_QP_ACCESS_FLAGS.0, none), 0);
        assert_eq!(side.qp.query().qp_access_flags, 0, "{service:?}");
    }
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

/// The next numbers of A's requests, as A sends them and as B waits for them.
fn numbers(a: &Side, b: &Side) -> (u32, u32) {
    (a.qp.query().sq_psn, b.qp.query().rq_psn)
}

fn sequence_numbers_advance_by_packets(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register(3000, ALL_ACCESS);
    let sink = b.pd.register(3000, ALL_ACCESS);
    let requests = [
        (Wr::write(1, &[source.sge(0, 3000)], &sink, 0), 3, "of 1024 bytes each"),
        (Wr::write(2, &[], &sink, 0), 1, "an empty one"),
        (Wr::read(3, &[source.sge(0, 1024)], &sink, 0), 1, "a whole one"),
        (Wr::read(4, &[source.sge(0, 1025)], &sink, 0), 2, "answers count"),
    ];
    let (mut next, back) = (Knobs::default().psn, numbers(&b, &a));
    for (wr, packets, what) in requests {
        assert_eq!(numbers(&a, &b), (next, next));
        a.qp.post(&wr);
        a.send_cq.expect_success(wr.wr.wr_id);
        next += packets;
        assert_eq!(numbers(&a, &b), (next, next), "{what}");
    }
    assert_eq!(numbers(&b, &a), back, "the other way has numbers of its own");
}

fn sequence_numbers_wrap(device: &Device) {
    let knobs = Knobs { psn: 0x00ff_fffe, ..Knobs::default() };
    let (a, b) = pair_with(device, &Size::default(), &knobs);
    let source = a.pd.register_filled((0..=255).cycle().take(3000).collect(), ALL_ACCESS);
    let sink = b.pd.register(3000, ALL_ACCESS);
    assert_eq!(numbers(&a, &b), (0x00ff_fffe, 0x00ff_fffe));
    a.qp.post(&Wr::write(1, &[source.sge(0, 3000)], &sink, 0));
    a.send_cq.expect_success(1);
    assert_eq!(sink.bytes(), source.bytes());
    assert_eq!(numbers(&a, &b), (1, 1));
}

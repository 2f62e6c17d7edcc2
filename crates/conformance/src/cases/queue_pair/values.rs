//! Attribute values of queue pairs: which are refused, which are accepted, and which a query
//! returns.

use rdma_sys::{
    Errno, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state as State,
    ibv_qp_type,
};
use test_support::rig::connect::{Knobs, Side, pair, pair_with};
use test_support::rig::datagram::gid_of;
use test_support::rig::device::query_gid;
use test_support::rig::post::Wr;
use test_support::rig::transition::{RC, SERVICES, STATES, STEPS, UC, UD, alone, right};
use test_support::rig::{ALL_ACCESS, Size};

use crate::case::cases;
use crate::device::Device;

cases![
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
    source_gids_that_are_not_there_are_refused,
    initial_attributes_are_given_back,
    attributes_of_receiving_are_given_back,
    attributes_of_sending_are_given_back,
    the_way_to_the_peer_is_given_back,
    the_global_route_is_given_back,
    the_hop_limit_is_given_back,
    every_path_mtu_up_to_the_ports_is_taken,
    every_timer_and_count_is_taken,
    every_combination_of_accesses_is_taken,
    as_many_reads_as_the_device_has_are_taken,
    sequence_numbers_have_24_bits,
    the_present_state_is_given_back,
    the_present_state_is_given_back_as_the_assumed_one,
    a_reset_queue_pair_forgets_its_attributes,
    sequence_numbers_advance_by_packets,
    sequence_numbers_wrap,
];

const REFUSED: i32 = Errno::EINVAL.raw();
const INIT: (State, State) = STEPS[0];
const RTR: (State, State) = STEPS[1];
const RTS: (State, State) = STEPS[2];

/// Checks that attributes that `spoil` has changed are refused, and that the unchanged ones are
/// accepted.
#[track_caller]
fn expect_refused(
    device: &Device,
    services: &[ibv_qp_type],
    step: (State, State),
    spoil: impl Fn(&mut ibv_qp_attr),
) {
    for service in device.types(services) {
        let side = alone(device, service);
        side.bring(step.0);
        assert_eq!(side.transit_with(step, 0, &spoil), REFUSED, "{service:?}");
        assert_eq!(side.qp.state(), step.0);
        assert_eq!(side.transit(step, 0), 0, "{service:?}, afterwards");
    }
}

/// Like [`expect_refused`], except that SoftRoCE is expected to accept the bad value.
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
    for service in device.types(services) {
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
    device.needs(most < u8::MAX, "the device's limit is the attribute's largest value");
    let spoil = |attr: &mut ibv_qp_attr| attr.max_dest_rd_atomic = most + 1;
    expect_refused_but(device, "values-of-attributes-are-not-checked", &[RC], RTR, spoil);
}

fn more_reads_at_once_than_the_device_has_are_refused(device: &Device) {
    let most = u8::try_from(device.attributes().max_qp_init_rd_atom).unwrap_or(u8::MAX);
    device.needs(most < u8::MAX, "the device's limit is the attribute's largest value");
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

fn source_gids_that_are_not_there_are_refused(device: &Device) {
    let context = device.open();
    let is_there = |place: &u8| {
        let gid = query_gid(&context, 1, i32::from(*place));
        gid.is_ok_and(|gid| !gid.is_zero())
    };
    let none: Vec<_> = (0..=u8::MAX).filter(|place| !is_there(place)).collect();
    device.needs(!none.is_empty(), "the table is full, and as large as the attribute allows");
    for service in device.types(&[RC, UC]) {
        let side = alone(device, service);
        side.bring(State::IBV_QPS_INIT);
        for &place in [none.first(), none.last()].into_iter().flatten() {
            let refused = side.transit_with(RTR, 0, |attr| {
                attr.ah_attr.is_global = 1;
                attr.ah_attr.grh.sgid_index = place;
            });
            assert_ne!(refused, 0, "{service:?}: {place}");
        }
        assert_eq!(side.transit(RTR, 0), 0, "{service:?}, afterwards");
    }
}

/// Returns the attributes that were set on the way to this state, and those that a query then
/// returns.
fn set_and_found(side: &Side, state: State) -> (ibv_qp_attr, ibv_qp_attr) {
    side.bring(state);
    (right(&side.endpoint(), state, state), side.qp.query())
}

fn initial_attributes_are_given_back(device: &Device) {
    for service in device.types(&SERVICES) {
        let (set, found) = set_and_found(&alone(device, service), State::IBV_QPS_INIT);
        assert_eq!((found.port_num, found.pkey_index), (1, 0));
        match service {
            UD => assert_eq!(found.qkey, set.qkey),
            _ => assert_eq!(found.qp_access_flags, set.qp_access_flags),
        }
    }
}

fn attributes_of_receiving_are_given_back(device: &Device) {
    for service in device.types(&[RC, UC]) {
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
    for service in device.types(&SERVICES) {
        let (set, found) = set_and_found(&alone(device, service), State::IBV_QPS_RTS);
        assert_eq!(found.sq_psn, set.sq_psn, "{service:?}");
        if service == RC {
            assert_eq!((found.timeout, found.retry_cnt), (set.timeout, set.retry_cnt));
            assert_eq!((found.rnr_retry, found.max_rd_atomic), (set.rnr_retry, set.max_rd_atomic));
        }
    }
}

fn the_way_to_the_peer_is_given_back(device: &Device) {
    for service in device.types(&[RC, UC]) {
        let (set, found) = set_and_found(&alone(device, service), State::IBV_QPS_RTS);
        let (set, found) = (set.ah_attr, found.ah_attr);
        assert_eq!((found.port_num, found.is_global), (set.port_num, set.is_global));
        if set.is_global == 0 {
            assert_eq!((found.dlid, found.sl), (set.dlid, set.sl));
            continue;
        }
        assert_eq!(gid_of(&found.grh.dgid), gid_of(&set.grh.dgid));
        assert_eq!(found.grh.sgid_index, set.grh.sgid_index);
    }
}

fn the_present_state_is_given_back(device: &Device) {
    for service in device.types(&SERVICES) {
        let side = alone(device, service);
        assert_eq!(side.qp.state(), State::IBV_QPS_RESET, "a new queue pair");
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

/// Returns the PSN of A's next request, as A and as B report it.
fn numbers(a: &Side, b: &Side) -> (u32, u32) {
    (a.qp.query().sq_psn, b.qp.query().rq_psn)
}

fn sequence_numbers_advance_by_packets(device: &Device) {
    let (a, b) = pair(device);
    let source = a.pd.register(3000, ALL_ACCESS);
    // Requests on mapped memory take no sequence numbers.
    let sink = b.pd.register_private(vec![0; 3000], ALL_ACCESS);
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
    assert_eq!(numbers(&b, &a), back, "the other direction has separate numbers");
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

fn the_global_route_is_given_back(device: &Device) {
    for service in device.types(&[RC, UC]) {
        let side = alone(device, service);
        let end = side.endpoint();
        side.bring(State::IBV_QPS_INIT);
        let route = ibv_global_route {
            dgid: end.gid,
            flow_label: 0x000a_bcde,
            sgid_index: end.gid_index,
            hop_limit: 61,
            traffic_class: 0x2c,
        };
        let change =
            |attr: &mut ibv_qp_attr| (attr.ah_attr.is_global, attr.ah_attr.grh) = (1, route);
        assert_eq!(side.transit_with(RTR, 0, change), 0);
        let found = side.qp.query().ah_attr;
        assert_eq!((found.is_global, gid_of(&found.grh.dgid)), (1, gid_of(&end.gid)));
        assert_eq!(found.grh.flow_label, 0x000a_bcde);
        assert_eq!((found.grh.traffic_class, found.grh.sgid_index), (0x2c, end.gid_index));
    }
}

fn the_hop_limit_is_given_back(device: &Device) {
    let side = alone(device, RC);
    let end = side.endpoint();
    side.bring(State::IBV_QPS_INIT);
    let route = ibv_global_route {
        dgid: end.gid,
        sgid_index: end.gid_index,
        hop_limit: 61,
        ..Default::default()
    };
    let change = |attr: &mut ibv_qp_attr| (attr.ah_attr.is_global, attr.ah_attr.grh) = (1, route);
    assert_eq!(side.transit_with(RTR, 0, change), 0);
    let found = side.qp.query().ah_attr.grh.hop_limit;
    assert_eq!(found, device.expected(61, "hop-limit-is-the-routes", 64));
}

fn every_path_mtu_up_to_the_ports_is_taken(device: &Device) {
    let most = device.open().query_port().active_mtu.0;
    for service in device.types(&[RC, UC]) {
        let side = alone(device, service);
        for mtu in (1..=most).map(ibv_mtu) {
            side.bring(State::IBV_QPS_INIT);
            assert_eq!(side.transit_with(RTR, 0, |attr| attr.path_mtu = mtu), 0, "{mtu:?}");
            assert_eq!(side.qp.query().path_mtu, mtu);
        }
    }
}

fn every_timer_and_count_is_taken(device: &Device) {
    let side = alone(device, RC);
    for timer in 0..32 {
        side.bring(State::IBV_QPS_INIT);
        assert_eq!(side.transit_with(RTR, 0, |attr| attr.min_rnr_timer = timer), 0);
        let (retries, rnr_retries) = (timer % 8, 7 - timer % 8);
        let change = |attr: &mut ibv_qp_attr| {
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (timer, retries, rnr_retries);
        };
        assert_eq!(side.transit_with(RTS, 0, change), 0);
        let found = side.qp.query();
        assert_eq!((found.min_rnr_timer, found.timeout), (timer, timer));
        assert_eq!((found.retry_cnt, found.rnr_retry), (retries, rnr_retries));
    }
}

fn every_combination_of_accesses_is_taken(device: &Device) {
    let again = (State::IBV_QPS_RTS, State::IBV_QPS_RTS);
    for service in device.types(&[RC, UC]) {
        let side = alone(device, service);
        side.bring(State::IBV_QPS_RTS);
        // All combinations of the rights to write, to read and to execute atomics.
        for access in (0..8).map(|bits| bits << 1) {
            let change = |attr: &mut ibv_qp_attr| attr.qp_access_flags = access;
            assert_eq!(side.transit_with(again, Mask::IBV_QP_ACCESS_FLAGS.0, change), 0);
            assert_eq!(side.qp.query().qp_access_flags, access, "{service:?}");
        }
    }
}

fn as_many_reads_as_the_device_has_are_taken(device: &Device) {
    let attr = device.attributes();
    let side = alone(device, RC);
    let (served, had) = (attr.max_qp_rd_atom.min(255), attr.max_qp_init_rd_atom.min(255));
    for (served, had) in [(served, had), (1, 1), (0, 0)] {
        let (served, had) = (u8::try_from(served).unwrap(), u8::try_from(had).unwrap());
        side.bring(State::IBV_QPS_INIT);
        assert_eq!(side.transit_with(RTR, 0, |attr| attr.max_dest_rd_atomic = served), 0);
        assert_eq!(side.transit_with(RTS, 0, |attr| attr.max_rd_atomic = had), 0);
        let found = side.qp.query();
        assert_eq!((found.max_dest_rd_atomic, found.max_rd_atomic), (served, had));
    }
}

fn sequence_numbers_have_24_bits(device: &Device) {
    for service in device.types(&[RC, UC]) {
        let side = alone(device, service);
        side.bring(State::IBV_QPS_INIT);
        assert_eq!(side.transit_with(RTR, 0, |attr| attr.rq_psn = 0xab00_0017), 0);
        assert_eq!(side.transit_with(RTS, 0, |attr| attr.sq_psn = 0xcd00_0018), 0);
        let found = side.qp.query();
        assert_eq!((found.rq_psn, found.sq_psn), (0x17, 0x18), "{service:?}");
    }
}

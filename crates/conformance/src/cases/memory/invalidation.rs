//! The ways in which access through a memory window ends: local invalidation, invalidation by the
//! peer, deallocation, and destruction or reset of the queue pair.

use std::time::Instant;

use rdma_sys::{
    ibv_event_type as Event, ibv_mw_type, ibv_qp_state, ibv_qp_type, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status as Status,
};
use test_support::rig::connect::{Knobs, Side, connect_unreliably};
use test_support::rig::post::Wr;
use test_support::rig::window::{
    AT_A, AT_B, BINDABLE, BYTES, Grant, Mw, REMOTE, TYPE_1, TYPE_2, invalidated,
};
use test_support::rig::{LOCAL_WRITE, Mr, PATIENCE, REMOTE_WRITE, until};

use super::windows::{kinds, needs};
use crate::case::cases;
use crate::device::Device;

cases![
    after_a_local_invalidation_has_completed_the_peer_touches_nothing,
    after_a_local_invalidation_the_peer_reads_nothing,
    a_completion_says_that_it_is_of_a_local_invalidation,
    an_invalidated_window_lets_its_region_go,
    on_an_unreliable_connection_what_comes_after_the_end_of_a_window_is_dropped,
    on_an_unreliable_connection_what_comes_after_an_invalidation_is_dropped,
    on_an_unreliable_connection_a_failed_invalidation_stops_the_send_queue_alone,
    an_invalidated_window_can_be_bound_again,
    an_invalidated_window_can_be_bound_by_another_queue_pair,
    a_local_invalidation_of_a_key_of_no_window_of_type_2_fails,
    a_local_invalidation_under_another_key_fails,
    a_local_invalidation_of_an_unbound_window_fails,
    a_local_invalidation_of_another_queue_pairs_window_fails,
    a_failed_local_invalidation_flushes_what_is_behind_it,
    a_failed_local_invalidation_is_an_error_of_memory_management,
    a_key_with_another_low_byte_unbinds_nothing,
    a_key_that_cannot_be_invalidated_still_works,
    a_send_invalidates_at_its_receiver_before_the_receive_completes,
    a_receive_names_the_key_that_was_invalidated,
    a_send_that_invalidates_brings_its_data,
    only_the_named_window_is_invalidated,
    a_send_that_invalidates_no_window_of_type_2_is_delivered_and_ends_its_receiver,
    a_send_that_invalidates_another_key_is_delivered_and_ends_its_receiver,
    a_send_that_invalidates_an_unbound_window_is_delivered_and_ends_its_receiver,
    a_send_that_invalidates_nothing_is_an_event_of_its_receiver,
    deallocation_ends_a_bound_window,
    a_window_of_type_2_ends_with_the_reset_of_its_queue_pair,
    a_window_of_type_2_ends_with_its_queue_pair,
    a_window_of_type_1_outlives_the_queue_pair_that_bound_it,
    the_error_state_leaves_windows_bound,
    the_error_state_puts_windows_out_of_reach,
    a_peer_that_writes_all_the_time_stops_when_its_window_is_taken_back,
];

fn after_a_local_invalidation_has_completed_the_peer_touches_nothing(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE);
    grant.allows(&grant.write(key, 16, 8));
    grant.local_invalidate(key);
    grant.at_b.fill(AT_B);
    grant.refuses(&grant.write(key, 16, 8));
}

fn after_a_local_invalidation_the_peer_reads_nothing(device: &Device) {
    needs(device, TYPE_2);
    for atomic in [false, true] {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE);
        grant.local_invalidate(key);
        grant.refuses(&if atomic { grant.add(key, 16) } else { grant.read(key, 16, 8) });
        grant.at_a.assert_filled(AT_A);
    }
}

fn a_completion_says_that_it_is_of_a_local_invalidation(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE);
    grant.b.qp.post(&Wr::local_invalidate(7, key));
    let wc = grant.b.send_cq.expect_success(7);
    assert_eq!((wc.opcode, wc.qp_num), (ibv_wc_opcode::IBV_WC_LOCAL_INV, grant.b.qp.number()));
}

fn an_invalidated_window_lets_its_region_go(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE);
    grant.local_invalidate(key);
    let Grant { at_a, at_b, a, b } = grant;
    assert_eq!(at_b.deregister(), [AT_B; BYTES]);
    drop((_mw, at_a, a, b));
}

/// Returns the two ends of an unreliable connection.
fn unreliable_pair(device: &Device, access: u32) -> (Side, Side) {
    let size = device.size_of(ibv_qp_type::IBV_QPT_UC);
    let (a, b) = (Side::new(device, &size, 64), Side::new(device, &size, 64));
    let knobs = Knobs { access, ..Knobs::default() };
    connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &knobs);
    connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &knobs);
    (a, b)
}

/// Checks that an unreliable write is dropped if it arrives after B has revoked the window.
fn dropped_unreliably(device: &Device, take_back: impl FnOnce(&Grant, Mw, u32) -> Option<Mw>) {
    let (a, b) = unreliable_pair(device, REMOTE_WRITE);
    let at_a = a.pd.register_filled(vec![AT_A; BYTES], 0);
    let at_b = b.pd.register_filled(vec![AT_B; BYTES], BINDABLE);
    let grant = Grant { at_a, at_b, a, b };
    let (mw, key) = grant.window(TYPE_2, REMOTE_WRITE);
    // A later message shows that all earlier writes have arrived or were dropped.
    let later = |wr_id| {
        grant.b.qp.post_receive(wr_id, &[]);
        grant.allows(&Wr::send(1, &[]));
        grant.b.receive_cq.expect_success(wr_id);
    };
    grant.allows(&grant.write(key, 16, 8));
    later(1);
    assert_eq!(grant.at_b.bytes()[16], AT_A);
    let _left = take_back(&grant, mw, key);
    grant.at_b.fill(AT_B);
    // The sender does not learn that its write is dropped.
    grant.allows(&grant.write(key, 16, 8));
    later(2);
    grant.at_b.assert_filled(AT_B);
}

fn on_an_unreliable_connection_what_comes_after_the_end_of_a_window_is_dropped(device: &Device) {
    needs(device, TYPE_2);
    dropped_unreliably(device, |_, mw, _| {
        drop(mw);
        None
    });
}

fn on_an_unreliable_connection_what_comes_after_an_invalidation_is_dropped(device: &Device) {
    needs(device, TYPE_2);
    if device.differs("no-local-invalidation-on-uc") {
        let (a, _b) = unreliable_pair(device, Knobs::default().access);
        let region = a.pd.register(BYTES, BINDABLE);
        let mw = a.pd.mw(TYPE_2);
        let key = a.qp.post_bind(1, &mw, region.part(0, 8, REMOTE_WRITE));
        a.send_cq.expect_success(1);
        a.qp.post(&Wr::local_invalidate(2, key));
        a.send_cq.expect(2, Status::IBV_WC_LOC_QP_OP_ERR);
        drop(mw);
        return;
    }
    dropped_unreliably(device, |grant, mw, key| {
        grant.local_invalidate(key);
        Some(mw)
    });
}

fn on_an_unreliable_connection_a_failed_invalidation_stops_the_send_queue_alone(device: &Device) {
    needs(device, TYPE_2);
    let (a, b) = unreliable_pair(device, REMOTE_WRITE);
    a.qp.post_receive(1, &[]);
    let region = a.pd.register(BYTES, BINDABLE);
    a.qp.post(&Wr::local_invalidate(2, region.key()));
    if device.differs("no-local-invalidation-on-uc") {
        a.send_cq.expect(2, Status::IBV_WC_LOC_QP_OP_ERR);
        return a.qp.wait_for_error();
    }
    a.send_cq.expect(2, Status::IBV_WC_MW_BIND_ERR);
    assert_eq!(a.qp.state(), ibv_qp_state::IBV_QPS_SQE);
    b.qp.post(&Wr::send(3, &[]));
    b.send_cq.expect_success(3);
    a.receive_cq.expect_success(1);
}

/// Returns a key for the next bind of a type 2 window: the low byte of its initial key plus `add`.
fn key_plus(mw: &Mw, add: u8) -> u32 {
    mw.key_with(mw.key().to_le_bytes()[0].wrapping_add(add))
}

fn an_invalidated_window_can_be_bound_again(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (mw, key) = grant.window(TYPE_2, REMOTE);
    grant.local_invalidate(key);
    let again = key_plus(&mw, 9);
    let bind = Wr::bind(1, &mw, again, grant.at_b.part(0, 8, REMOTE));
    if device.differs("second-bind-of-a-window") {
        grant.fails_at_b(|qp| qp.post(&bind));
        return;
    }
    grant.b.qp.post(&bind);
    grant.b.send_cq.expect_success(1);
    grant.allows(&grant.write(again, 0, 8));
    grant.refuses(&grant.write(key, 0, 8));
}

fn an_invalidated_window_can_be_bound_by_another_queue_pair(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (mw, key) = grant.window(TYPE_2, REMOTE);
    grant.local_invalidate(key);
    let (c, d) = grant.second_pair(device);
    let again = key_plus(&mw, 9);
    d.qp.post(&Wr::bind(1, &mw, again, grant.at_b.part(0, 8, REMOTE)));
    if device.differs("second-bind-of-a-window") {
        d.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
        drop(mw);
        return;
    }
    d.send_cq.expect_success(1);
    let at_c = c.pd.register(8, LOCAL_WRITE);
    c.qp.post(&Wr::write(1, &[at_c.sge(0, 8)], &grant.at_b, 0).remote(grant.at_b.address(), again));
    c.send_cq.expect_success(1);
    grant.refuses(&grant.write(again, 0, 8));
    drop(mw);
}

/// Checks that B's local invalidation of this key fails and moves B's queue pair to error.
#[track_caller]
fn fails(grant: &Grant, key: u32) {
    grant.b.qp.post(&Wr::local_invalidate(1, key).unsignaled());
    assert_ne!(grant.b.send_cq.next().status, Status::IBV_WC_SUCCESS);
    grant.b.qp.wait_for_error();
}

/// Runs `act` with a grant and, in turn, each of several keys that belong to no type 2 window.
fn with_other_keys(device: &Device, act: impl Fn(&Grant, u32)) {
    let grant = Grant::new(device);
    act(&grant, grant.at_b.key());
    let grant = Grant::new(device);
    act(&grant, 0x1234_5678);
    if kinds(device).contains(&TYPE_1) {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_1, REMOTE);
        act(&grant, key);
    }
}

fn a_local_invalidation_of_a_key_of_no_window_of_type_2_fails(device: &Device) {
    needs(device, TYPE_2);
    with_other_keys(device, fails);
}

fn a_local_invalidation_under_another_key_fails(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE);
    fails(&grant, key ^ 1);
}

/// Runs `act` with the keys of two unbound windows: one was never bound, one was invalidated.
fn with_unbound_windows(device: &Device, act: impl Fn(&Grant, u32)) {
    needs(device, TYPE_2);
    if device.differs("invalidation-of-an-unbound-window") {
        return; // it would crash the machine
    }
    let grant = Grant::new(device);
    let mw = grant.b.pd.mw(TYPE_2);
    act(&grant, mw.key());
    drop(mw);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE);
    grant.local_invalidate(key);
    act(&grant, key);
}

fn a_local_invalidation_of_an_unbound_window_fails(device: &Device) {
    with_unbound_windows(device, fails);
}

fn a_local_invalidation_of_another_queue_pairs_window_fails(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_c, d) = grant.second_pair(device);
    let others = grant.b.pd.mw(TYPE_2);
    let key = d.qp.post_bind(1, &others, grant.at_b.part(0, 8, REMOTE));
    d.send_cq.expect_success(1);
    if device.differs("invalidation-of-another-queue-pairs-window") {
        grant.local_invalidate(key);
    } else {
        fails(&grant, key);
    }
    drop(others);
}

fn a_failed_local_invalidation_flushes_what_is_behind_it(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let list = [Wr::local_invalidate(1, grant.at_b.key()), Wr::send(2, &[]), Wr::send(3, &[])];
    assert_eq!(grant.b.qp.try_post_list(&list), Ok(()));
    let wc = grant.b.send_cq.next();
    assert_eq!(wc.wr_id, 1);
    assert_ne!(wc.status, Status::IBV_WC_SUCCESS);
    grant.b.send_cq.expect_flushed([2, 3]);
}

fn a_failed_local_invalidation_is_an_error_of_memory_management(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    grant.b.qp.post(&Wr::local_invalidate(1, grant.at_b.key()));
    let status = device.expected(
        Status::IBV_WC_MW_BIND_ERR,
        "local-invalidation-status",
        Status::IBV_WC_LOC_QP_OP_ERR,
    );
    grant.b.send_cq.expect(1, status);
}

fn a_key_with_another_low_byte_unbinds_nothing(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE);
    fails(&grant, key ^ 1);
    grant.at_b.try_deregister();
}

fn a_key_that_cannot_be_invalidated_still_works(device: &Device) {
    needs(device, TYPE_2);
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(kind, REMOTE);
        let (_c, d) = grant.second_pair(device);
        let wrong = if kind == TYPE_1 { key } else { key ^ 1 };
        d.qp.post(&Wr::local_invalidate(1, wrong));
        assert_ne!(d.send_cq.next().status, Status::IBV_WC_SUCCESS);
        grant.allows(&grant.write(key, 16, 8));
    }
}

/// Invalidates B's window with a send from A. Returns the window, its key, and B's receive buffer.
fn invalidated_by_a(grant: &Grant, length: usize) -> (Mw, u32, Mr) {
    let (mw, key) = grant.window(TYPE_2, REMOTE);
    let room = grant.b.pd.register(BYTES, LOCAL_WRITE);
    grant.b.qp.post_receive(10, &[room.sge(0, BYTES)]);
    let send = Wr::send_with_invalidate(2, &[grant.at_a.sge(0, length)], key);
    // The write before the send shows that the window works until then.
    assert_eq!(grant.a.qp.try_post_list(&[grant.write(key, 16, 8), send]), Ok(()));
    grant.a.send_cq.expect_success(1);
    let wc = grant.a.send_cq.expect_success(2);
    assert_eq!(wc.opcode, ibv_wc_opcode::IBV_WC_SEND);
    (mw, key, room)
}

fn a_send_invalidates_at_its_receiver_before_the_receive_completes(device: &Device) {
    needs(device, TYPE_2);
    for length in [0, 24] {
        let grant = Grant::new(device);
        let (_mw, key, _room) = invalidated_by_a(&grant, length);
        grant.b.receive_cq.expect_success(10);
        grant.at_b.fill(AT_B);
        grant.refuses(&grant.write(key, 16, 8));
    }
}

fn a_receive_names_the_key_that_was_invalidated(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key, _room) = invalidated_by_a(&grant, 8);
    let wc = grant.b.receive_cq.expect_success(10);
    assert_eq!(wc.opcode, ibv_wc_opcode::IBV_WC_RECV);
    if device.differs("with-invalidate-flag") {
        assert_eq!(invalidated(&wc), None);
        assert_ne!(wc.wc_flags & ibv_wc_flags::IBV_WC_IP_CSUM_OK.0, 0);
    } else {
        assert_eq!(invalidated(&wc), Some(key));
        assert_eq!(wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0, 0);
    }
}

fn a_send_that_invalidates_brings_its_data(device: &Device) {
    needs(device, TYPE_2);
    for length in [0, 1, BYTES] {
        let grant = Grant::new(device);
        let (_mw, _key, room) = invalidated_by_a(&grant, length);
        assert_eq!(grant.b.receive_cq.expect_success(10).byte_len as usize, length);
        let bytes = room.bytes();
        assert_eq!(
            (&bytes[..length], &bytes[length..]),
            (&[AT_A; BYTES][..length], &[0; BYTES][length..])
        );
    }
}

fn only_the_named_window_is_invalidated(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_other, stays) = grant.window(TYPE_2, REMOTE);
    let (_mw, key, _room) = invalidated_by_a(&grant, 0);
    grant.b.receive_cq.expect_success(10);
    grant.allows(&grant.write(stays, 16, 8));
    grant.refuses(&grant.write(key, 16, 8));
}

/// Sends B a key that it cannot invalidate. Checks that B gets the data and then moves to error.
#[track_caller]
fn delivered_and_ended(grant: &Grant, key: u32) {
    let room = grant.b.pd.register(BYTES, LOCAL_WRITE);
    grant.b.qp.post_receive(10, &[room.sge(0, BYTES)]);
    grant.b.qp.post_receive(11, &[]);
    grant.a.qp.post(&Wr::send_with_invalidate(2, &[grant.at_a.sge(0, 8)], key));
    grant.a.send_cq.expect_success(2);
    grant.b.receive_cq.expect(10, Status::IBV_WC_REM_INV_REQ_ERR);
    grant.b.receive_cq.expect_flushed([11]);
    grant.b.qp.wait_for_error();
    assert_eq!(room.bytes()[..8], [AT_A; 8]);
}

fn a_send_that_invalidates_no_window_of_type_2_is_delivered_and_ends_its_receiver(device: &Device) {
    needs(device, TYPE_2);
    with_other_keys(device, delivered_and_ended);
}

fn a_send_that_invalidates_another_key_is_delivered_and_ends_its_receiver(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE);
    delivered_and_ended(&grant, key ^ 1);
}

fn a_send_that_invalidates_an_unbound_window_is_delivered_and_ends_its_receiver(device: &Device) {
    with_unbound_windows(device, delivered_and_ended);
}

fn a_send_that_invalidates_nothing_is_an_event_of_its_receiver(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    delivered_and_ended(&grant, grant.at_b.key());
    let context = &grant.b.context;
    if device.differs("refused-requests-are-no-events") {
        assert!(!context.has_async_events());
        return;
    }
    until("the event", || context.has_async_events());
    let expected = (Event::IBV_EVENT_QP_REQ_ERR, grant.b.qp.0.addr());
    assert_eq!(context.async_events(), [expected]);
}

/// Checks that A cannot write through a revoked window, and that B can deregister the region.
#[track_caller]
fn is_gone(grant: Grant, write: &Wr) {
    grant.refuses(write);
    let Grant { at_a, at_b, a, b } = grant;
    at_b.deregister();
    drop((at_a, a, b));
}

fn deallocation_ends_a_bound_window(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (mw, key) = grant.window(kind, REMOTE);
        let write = grant.write(key, 16, 8);
        drop(mw);
        is_gone(grant, &write);
    }
}

fn a_window_of_type_2_ends_with_the_reset_of_its_queue_pair(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (mw, _key) = grant.window(TYPE_2, REMOTE);
    grant.b.qp.to_reset();
    if device.differs("windows-outlive-their-queue-pair") {
        grant.at_b.try_deregister();
        drop(mw);
        return;
    }
    // The reset has unbound the window, so another queue pair can bind it.
    let (c, d) = grant.second_pair(device);
    d.qp.post_bind(1, &mw, grant.at_b.part(0, 8, REMOTE));
    d.send_cq.expect_success(1);
    drop((mw, c, d));
    let Grant { at_a, at_b, a, b } = grant;
    at_b.deregister();
    assert_eq!(b.qp.state(), ibv_qp_state::IBV_QPS_RESET);
    drop((at_a, a, b));
}

fn a_window_of_type_2_ends_with_its_queue_pair(device: &Device) {
    needs(device, TYPE_2);
    let (mw, Grant { at_a, at_b, a, mut b }) = {
        let grant = Grant::new(device);
        (grant.window(TYPE_2, REMOTE).0, grant)
    };
    at_b.try_deregister();
    b.qp.destroy();
    if device.differs("windows-outlive-their-queue-pair") {
        at_b.try_deregister();
        drop((mw, at_a, at_b, a, b));
        return;
    }
    assert_eq!(at_b.deregister(), [AT_B; BYTES]);
    drop((mw, at_a, a, b));
}

fn a_window_of_type_1_outlives_the_queue_pair_that_bound_it(device: &Device) {
    needs(device, TYPE_1);
    let grant = Grant::new(device);
    let mw = grant.b.pd.mw(TYPE_1);
    let (c, d) = grant.second_pair(device);
    let key = d.qp.post_bind(1, &mw, grant.at_b.part(16, 8, REMOTE));
    d.send_cq.expect_success(1);
    drop((d, c));
    grant.allows(&grant.write(key, 16, 8));
    drop(mw);
}

fn the_error_state_leaves_windows_bound(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, _key) = grant.window(TYPE_2, REMOTE);
    grant.b.qp.to_error();
    grant.at_b.try_deregister();
}

fn the_error_state_puts_windows_out_of_reach(device: &Device) {
    for kind in kinds(device) {
        let knobs = Knobs { access: REMOTE, timeout: 14, retries: 1, ..Knobs::default() };
        let grant = Grant::with(device, &knobs);
        let (_mw, key) = grant.window(kind, REMOTE);
        grant.b.qp.to_error();
        assert_eq!(grant.try_by_a(&grant.write(key, 16, 8)), Status::IBV_WC_RETRY_EXC_ERR);
        grant.at_b.assert_filled(AT_B);
    }
}

/// The ways in which B can revoke a window.
#[derive(Clone, Copy)]
enum Way {
    Invalidate,
    Unbind,
    Deallocate,
}

impl Way {
    fn kind(self) -> ibv_mw_type {
        if let Self::Invalidate = self { TYPE_2 } else { TYPE_1 }
    }
}

/// Revokes B's window while A writes through it continuously. After that, no write may arrive: the
/// memory belongs to the test again, although the region is still registered. The window is revoked
/// after `writes` writes have completed; how many more writes A begins is a race.
fn race(device: &Device, way: Way, writes: u32) {
    let length = if device.is_software() { 1 << 20 } else { 1024 };
    let grant = Grant::new(device);
    let from = grant.a.pd.register_filled(vec![AT_A; length], LOCAL_WRITE);
    let lent = grant.b.pd.register_filled(vec![AT_B; length], BINDABLE);
    let mw = grant.b.pd.mw(way.kind());
    let key = grant.bind(&mw, lent.part(0, length, REMOTE));
    let (written, wait) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        let (grant, from, lent) = (&grant, &from, &lent);
        let writer = threads.spawn(move || {
            let write = Wr::write(1, &[from.sge(0, length)], lent, 0).remote(lent.address(), key);
            let a = &grant.a;
            let end = Instant::now() + PATIENCE;
            while Instant::now() < end {
                a.qp.post(&write);
                match a.send_cq.next().status {
                    Status::IBV_WC_SUCCESS => {}
                    status => return status,
                }
                let _ = written.send(());
                // Otherwise the writer could starve the revoking thread if threads take turns.
                std::thread::yield_now();
            }
            panic!("the peer's writes still succeed");
        });
        (0..writes).for_each(|_| wait.recv().unwrap());
        match way {
            Way::Invalidate => grant.local_invalidate(key),
            Way::Unbind => assert_ne!(grant.bind(&mw, grant.at_b.part(0, 0, 0)), key),
            Way::Deallocate => {}
        }
        let left = if let Way::Deallocate = way {
            drop(mw);
            None
        } else {
            Some(mw)
        };
        // A write in progress reaches these bytes last.
        lent.fill_part(length - 64, 64, 7);
        assert_eq!(writer.join().unwrap(), Status::IBV_WC_REM_ACCESS_ERR);
        let last = &lent.bytes()[length - 64..];
        if device.differs("window-access-in-progress") {
            assert!(last.iter().all(|&byte| byte == 7 || byte == AT_A), "{last:?}");
        } else {
            assert_eq!(last, [7; 64]);
        }
        drop(left);
    });
}

fn a_peer_that_writes_all_the_time_stops_when_its_window_is_taken_back(device: &Device) {
    let rounds = if device.is_software() { 20 } else { 5 };
    for way in [Way::Invalidate, Way::Unbind, Way::Deallocate] {
        if kinds(device).contains(&way.kind()) {
            (0..rounds).for_each(|writes| race(device, way, writes % 5));
        }
    }
}

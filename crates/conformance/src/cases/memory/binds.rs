//! Binding memory windows: memory, queue pairs, keys, and results (IBTA volume 1, 10.6.7.2).

use rdma_sys::{
    Errno, ibv_inc_rkey, ibv_mw_bind_info, ibv_mw_type, ibv_wc_opcode, ibv_wc_status as Status,
};
use test_support::rig::connect::{Knobs, Side, pair_with};
use test_support::rig::post::Wr;
use test_support::rig::window::{BINDABLE, BYTES, Grant, Mw, REMOTE, TYPE_1, TYPE_2};
use test_support::rig::{
    ALL_ACCESS, LOCAL_WRITE, MW_BIND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, Size, ZERO_BASED,
};

use super::windows::{SIZE, kinds, needs};
use crate::case::cases;
use crate::device::Device;

cases![
    binding_a_window_of_type_1_again_moves_it,
    binding_a_window_of_type_1_again_ends_the_key_before,
    a_window_of_type_1_is_unbound_by_length_0,
    a_window_of_type_1_is_unbound_without_a_region,
    a_window_of_type_1_is_bound_through_any_queue_pair_of_its_domain,
    the_low_byte_of_a_key_of_type_2_is_the_programs_choice,
    a_key_of_type_2_may_be_the_one_before,
    a_bound_window_of_type_2_is_not_bound_again,
    length_0_unbinds_no_window_of_type_2,
    length_0_binds_no_window_of_type_2,
    a_window_lies_inside_its_region,
    a_window_does_not_go_round_the_end_of_all_addresses,
    a_window_gives_no_local_rights,
    a_bind_may_name_local_write_which_gives_nothing,
    a_region_is_bound_only_if_it_says_so,
    a_window_that_changes_memory_needs_a_region_that_may_be_written,
    a_zero_based_region_has_no_windows,
    a_window_is_bound_to_no_region_of_another_domain,
    a_window_of_another_domain_is_not_bound,
    binding_type_1_to_another_domain_is_refused_at_once,
    no_window_of_type_1_is_zero_based,
    a_completion_says_that_it_is_of_a_bind,
    an_unsignaled_bind_has_no_completion,
    a_message_behind_a_bind_comes_when_the_window_is_there,
    requests_around_a_bind_complete_in_order,
    a_failed_bind_completes_unsignaled_too_and_flushes_what_is_behind_it,
    the_function_that_binds_is_for_type_1,
    the_request_that_binds_is_for_type_2,
    binds_fill_the_queue_as_other_requests_do,
    a_queue_pair_that_is_not_connected_binds_nothing,
];

/// Binds a type 2 window to the first eight bytes of B's memory, and returns its key. The low byte
/// of this key is that of the window's initial key plus `low`.
fn bind_as(grant: &Grant, mw: &Mw, low: u8) -> u32 {
    let key = mw.key_with(mw.key().to_le_bytes()[0].wrapping_add(low));
    grant.b.qp.post(&Wr::bind(1, mw, key, grant.at_b.part(0, 8, REMOTE)));
    grant.b.send_cq.expect_success(1);
    key
}

fn binding_a_window_of_type_1_again_moves_it(device: &Device) {
    needs(device, TYPE_1);
    let grant = Grant::new(device);
    let (mw, first) = grant.window(TYPE_1, REMOTE);
    let second = grant.bind(&mw, grant.at_b.part(0, 8, REMOTE_READ));
    assert_ne!(second, first);
    grant.allows(&grant.read(second, 0, 8));
    // Only the first bind allowed writing.
    grant.refuses(&grant.write(second, 0, 8));
}

fn binding_a_window_of_type_1_again_ends_the_key_before(device: &Device) {
    needs(device, TYPE_1);
    let grant = Grant::new(device);
    let (mw, first) = grant.window(TYPE_1, REMOTE);
    grant.bind(&mw, grant.at_b.part(16, 32, REMOTE));
    grant.refuses(&grant.write(first, 16, 8));
}

/// Binds a type 1 window to a part of B's memory, then to `nothing`, and checks that neither key
/// works.
fn unbinds(device: &Device, nothing: impl Fn(&Grant) -> ibv_mw_bind_info) {
    for before in [true, false] {
        let grant = Grant::new(device);
        let (mw, first) = grant.window(TYPE_1, REMOTE);
        let second = grant.bind(&mw, nothing(&grant));
        grant.refuses(&grant.write(if before { first } else { second }, 16, 8));
    }
}

fn a_window_of_type_1_is_unbound_by_length_0(device: &Device) {
    needs(device, TYPE_1);
    unbinds(device, |grant| grant.at_b.part(0, 0, 0));
}

fn a_window_of_type_1_is_unbound_without_a_region(device: &Device) {
    needs(device, TYPE_1);
    if device.differs("unbind-without-a-region") {
        return; // the bind crashes the process
    }
    unbinds(device, |_| ibv_mw_bind_info::default());
}

fn a_window_of_type_1_is_bound_through_any_queue_pair_of_its_domain(device: &Device) {
    needs(device, TYPE_1);
    let grant = Grant::new(device);
    let (_c, d) = grant.second_pair(device);
    let (mw, _) = grant.window(TYPE_1, REMOTE);
    let key = d.qp.post_bind(1, &mw, grant.at_b.part(0, 8, REMOTE));
    d.send_cq.expect_success(1);
    grant.allows(&grant.write(key, 0, 8));
    drop(mw);
}

fn the_low_byte_of_a_key_of_type_2_is_the_programs_choice(device: &Device) {
    needs(device, TYPE_2);
    for add in [1, 7, 0xff] {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(TYPE_2);
        let key = bind_as(&grant, &mw, add);
        grant.allows(&grant.write(key, 0, 8));
        drop(mw);
    }
}

fn a_key_of_type_2_may_be_the_one_before(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let mw = grant.b.pd.mw(TYPE_2);
    let key = bind_as(&grant, &mw, 1);
    grant.local_invalidate(key);
    let again = Wr::bind(1, &mw, key, grant.at_b.part(0, 8, REMOTE));
    if device.differs("bind-with-the-key-before") {
        grant.fails_at_b(|qp| qp.post(&again));
    } else {
        grant.b.qp.post(&again);
        grant.b.send_cq.expect_success(1);
        grant.allows(&grant.write(key, 0, 8));
    }
    drop(mw);
}

/// Checks that binding a type 2 window a second time fails and leaves the window unchanged.
fn not_bound_again(device: &Device, length: usize) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (mw, key) = grant.window(TYPE_2, REMOTE);
    let low = key.to_le_bytes()[0].wrapping_add(1);
    let again = Wr::bind(1, &mw, mw.key_with(low), grant.at_b.part(0, length, REMOTE));
    // This uses another queue pair, because a bind that fails moves its queue pair to the error state.
    let (_c, d) = grant.second_pair(device);
    d.qp.post(&again);
    d.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
    grant.allows(&grant.write(key, 16, 8));
    grant.fails_at_b(|qp| qp.post(&again));
    drop(mw);
}

fn a_bound_window_of_type_2_is_not_bound_again(device: &Device) {
    not_bound_again(device, 8);
}

fn length_0_unbinds_no_window_of_type_2(device: &Device) {
    not_bound_again(device, 0);
}

fn length_0_binds_no_window_of_type_2(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let mw = grant.b.pd.mw(TYPE_2);
    grant.fails_at_b(|qp| {
        qp.post_bind(1, &mw, grant.at_b.part(0, 0, REMOTE));
    });
}

/// Returns the result of binding a new window to a modified part of B's memory.
fn bound_with(
    device: &Device,
    kind: ibv_mw_type,
    change: impl Fn(&mut ibv_mw_bind_info),
) -> Status {
    let grant = Grant::new(device);
    let mw = grant.b.pd.mw(kind);
    let mut info = grant.at_b.part(16, 32, REMOTE);
    change(&mut info);
    grant.b.qp.post_bind(1, &mw, info);
    let status = grant.b.send_cq.next().status;
    drop(mw);
    status
}

const FAILED: Status = Status::IBV_WC_MW_BIND_ERR;

fn a_window_lies_inside_its_region(device: &Device) {
    for kind in kinds(device) {
        assert_eq!(bound_with(device, kind, |info| info.addr -= 17), FAILED);
        assert_eq!(bound_with(device, kind, |info| info.length = SIZE - 15), FAILED);
        assert_eq!(bound_with(device, kind, |info| info.addr += SIZE), FAILED);
    }
}

fn a_window_does_not_go_round_the_end_of_all_addresses(device: &Device) {
    for kind in kinds(device) {
        let status = || device.expected(FAILED, "window-round-the-end", Status::IBV_WC_SUCCESS);
        assert_eq!(bound_with(device, kind, |info| info.length = u64::MAX), status());
    }
}

fn a_window_gives_no_local_rights(device: &Device) {
    for kind in kinds(device) {
        let status = bound_with(device, kind, |info| info.mw_access_flags |= MW_BIND);
        let rxe = Status::IBV_WC_SUCCESS;
        assert_eq!(status, device.expected(FAILED, "local-rights-of-a-window", rxe));
    }
}

/// Some programs pass the region's flags to a bind, and these include local write.
fn a_bind_may_name_local_write_which_gives_nothing(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(kind);
        let access = LOCAL_WRITE | REMOTE_READ;
        let key = grant.bind(&mw, grant.at_b.part(16, 32, access));
        grant.allows(&grant.read(key, 16, 8));
        grant.refuses(&grant.write(key, 16, 8));
        drop(mw);
    }
}

/// Checks that a window with rights `access` cannot be bound to a region with rights `memory`.
#[track_caller]
fn fails_on(device: &Device, kind: ibv_mw_type, memory: u32, access: u32) {
    let grant = Grant::new(device);
    let region = grant.b.pd.register(BYTES, memory);
    let mw = grant.b.pd.mw(kind);
    let part = region.part(0, 8, access);
    // Requests to a zero-based region count addresses from 0.
    let addr = if memory & ZERO_BASED == 0 { part.addr } else { 0 };
    grant.fails_at_b(|qp| {
        qp.post_bind(1, &mw, ibv_mw_bind_info { addr, ..part });
    });
}

fn a_region_is_bound_only_if_it_says_so(device: &Device) {
    for kind in kinds(device) {
        fails_on(device, kind, ALL_ACCESS, REMOTE_READ);
    }
}

fn a_window_that_changes_memory_needs_a_region_that_may_be_written(device: &Device) {
    for kind in kinds(device) {
        fails_on(device, kind, MW_BIND, REMOTE_WRITE);
        fails_on(device, kind, MW_BIND, REMOTE_ATOMIC);
    }
}

fn a_zero_based_region_has_no_windows(device: &Device) {
    for kind in kinds(device) {
        fails_on(device, kind, BINDABLE | ZERO_BASED, REMOTE_READ);
    }
}

fn a_window_is_bound_to_no_region_of_another_domain(device: &Device) {
    needs(device, TYPE_2);
    let (grant, other) = (Grant::new(device), Grant::new(device));
    let own = grant.b.pd.mw(TYPE_2);
    let status = device.expected(FAILED, "bind-to-another-domains-region", Status::IBV_WC_SUCCESS);
    grant.b.qp.post_bind(1, &own, other.at_b.part(0, 8, REMOTE));
    grant.b.send_cq.expect(1, status);
    drop(own);
}

fn a_window_of_another_domain_is_not_bound(device: &Device) {
    needs(device, TYPE_2);
    let (grant, other) = (Grant::new(device), Grant::new(device));
    let foreign = other.b.pd.mw(TYPE_2);
    grant.fails_at_b(|qp| {
        qp.post_bind(1, &foreign, grant.at_b.part(0, 8, REMOTE));
    });
}

fn binding_type_1_to_another_domain_is_refused_at_once(device: &Device) {
    needs(device, TYPE_1);
    let (grant, other) = (Grant::new(device), Grant::new(device));
    let one = grant.b.pd.mw(TYPE_1);
    let refused = grant.b.qp.try_bind(1, &one, other.at_b.part(0, 8, REMOTE), 0);
    assert_eq!(refused, Errno::EPERM.raw());
}

fn no_window_of_type_1_is_zero_based(device: &Device) {
    needs(device, TYPE_1);
    let grant = Grant::new(device);
    let one = grant.b.pd.mw(TYPE_1);
    let info = grant.at_b.part(16, 32, REMOTE | ZERO_BASED);
    // The device may refuse the bind when it is posted, or let it fail.
    match grant.b.qp.try_bind(1, &one, info, 0) {
        0 => drop(grant.b.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR)),
        refused => assert_eq!(refused, Errno::EINVAL.raw()),
    }
}

fn a_completion_says_that_it_is_of_a_bind(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(kind);
        grant.b.qp.post_bind(7, &mw, grant.at_b.part(0, 8, REMOTE));
        let wc = grant.b.send_cq.expect_success(7);
        assert_eq!((wc.opcode, wc.qp_num), (ibv_wc_opcode::IBV_WC_BIND_MW, grant.b.qp.number()));
    }
}

fn an_unsignaled_bind_has_no_completion(device: &Device) {
    needs(device, TYPE_1);
    let grant = Grant::new(device);
    let mw = grant.b.pd.mw(TYPE_1);
    assert_eq!(grant.b.qp.try_bind(1, &mw, grant.at_b.part(0, 8, REMOTE), 0), 0);
    grant.a.qp.post_receive(1, &[]);
    grant.b.qp.post(&Wr::send(2, &[]));
    grant.b.send_cq.expect_success(2);
    grant.allows(&grant.write(mw.key(), 0, 8));
}

fn a_message_behind_a_bind_comes_when_the_window_is_there(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        grant.a.qp.post_receive(10, &[]);
        let mw = grant.b.pd.mw(kind);
        let key = grant.b.qp.post_bind(1, &mw, grant.at_b.part(16, 32, REMOTE));
        grant.b.qp.post(&Wr::send(2, &[]));
        // Once the peer has received the message, it may use the key.
        grant.a.receive_cq.expect_success(10);
        grant.allows(&grant.write(key, 16, 8));
        grant.b.send_cq.expect_success(1);
        grant.b.send_cq.expect_success(2);
    }
}

fn requests_around_a_bind_complete_in_order(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let room = grant.a.pd.register(BYTES, LOCAL_WRITE);
    grant.a.qp.post_receive(10, &[room.sge(0, BYTES)]);
    let mw = grant.b.pd.mw(TYPE_2);
    let first = ibv_inc_rkey(mw.key());
    let list = [
        Wr::send(1, &[grant.at_b.sge(0, 4)]),
        Wr::bind(2, &mw, first, grant.at_b.part(16, 32, REMOTE)),
        Wr::local_invalidate(3, first).fenced(),
    ];
    assert_eq!(grant.b.qp.try_post_list(&list), Ok(()));
    for wr_id in 1..=3 {
        grant.b.send_cq.expect_success(wr_id);
    }
    grant.a.receive_cq.expect_success(10);
    grant.refuses(&grant.write(first, 16, 8));
}

fn a_failed_bind_completes_unsignaled_too_and_flushes_what_is_behind_it(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let mw = grant.b.pd.mw(TYPE_2);
    let (bad, key) = (grant.at_b.part(0, BYTES + 1, REMOTE), ibv_inc_rkey(mw.key()));
    let list = [
        Wr::bind(1, &mw, key, bad).unsignaled(),
        Wr::bind(2, &mw, key, grant.at_b.part(0, 8, REMOTE)),
        Wr::local_invalidate(3, key).unsignaled(),
    ];
    assert_eq!(grant.b.qp.try_post_list(&list), Ok(()));
    grant.b.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
    grant.b.send_cq.expect_flushed([2, 3]);
}

fn the_function_that_binds_is_for_type_1(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let two = grant.b.pd.mw(TYPE_2);
    let refused = grant.b.qp.try_bind(1, &two, grant.at_b.part(0, 8, REMOTE), 0);
    assert_eq!(refused, Errno::EINVAL.raw());
}

fn the_request_that_binds_is_for_type_2(device: &Device) {
    needs(device, TYPE_1);
    let grant = Grant::new(device);
    let one = grant.b.pd.mw(TYPE_1);
    let key = ibv_inc_rkey(one.key());
    let posted = grant.b.qp.try_post(&Wr::bind(1, &one, key, grant.at_b.part(0, 8, REMOTE)));
    if device.differs("posted-bind-of-type-1") {
        assert_eq!(posted, 0);
        grant.b.send_cq.expect_success(1);
    } else {
        assert_eq!(posted, Errno::EINVAL.raw());
    }
    drop(one);
}

fn binds_fill_the_queue_as_other_requests_do(device: &Device) {
    needs(device, TYPE_2);
    let (a, _b) = pair_with(device, &Size { send_wr: 4, ..Size::default() }, &Knobs::default());
    let region = a.pd.register(8, BINDABLE);
    let mw = a.pd.mw(TYPE_2);
    let bind = |n| {
        let key = ibv_inc_rkey(mw.key());
        Wr::bind(n, &mw, key, region.part(0, 8, REMOTE_READ))
    };
    let (posted, errno) = a.qp.try_post_list(&Vec::from_iter((0..256).map(bind))).unwrap_err();
    assert!(posted >= 4);
    assert_eq!(errno, Errno::ENOMEM.raw());
    // The first one binds the window, so the second fails.
    a.send_cq.expect_success(0);
    a.send_cq.expect(1, FAILED);
    a.send_cq.expect_flushed(2..posted as u64);
}

fn a_queue_pair_that_is_not_connected_binds_nothing(device: &Device) {
    needs(device, TYPE_1);
    let side = Side::new(device, &Size::default(), 8);
    let region = side.pd.register(8, BINDABLE);
    let mw = side.pd.mw(TYPE_1);
    let key = mw.key();
    assert_eq!(side.qp.try_bind(1, &mw, region.part(0, 8, REMOTE_READ), 0), Errno::EINVAL.raw());
    assert_eq!(mw.key(), key);
    drop(mw);
}

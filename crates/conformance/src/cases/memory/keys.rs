//! Keys, bounds, protection domains and rights. Both sides check them when they execute a request.
//! If a check fails, they copy nothing, except that a READ may fill the elements before a bad one.

use rdma_sys::{ibv_mr, ibv_sge, ibv_wc_status as Status};
use test_support::rig::connect::{Knobs, Side, connect, endpoint, pair};
use test_support::rig::map::Mapping;
use test_support::rig::memory::{deregister, key_of, rkey_of};
use test_support::rig::post::Wr;
use test_support::rig::scene::{AT_A, AT_B, BYTES, RECEIVE_A, RECEIVE_B, Scene};
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr, Pd, Qp, REMOTE_READ, REMOTE_WRITE, Size};

use crate::case::cases;
use crate::device::Device;

cases![
    wrong_rkey_is_refused,
    wrong_lkey_is_refused,
    remote_range_past_the_end_is_refused,
    remote_range_before_the_start_is_refused,
    remote_range_that_wraps_is_refused,
    range_that_wraps_back_into_a_region_is_refused,
    range_that_wraps_out_of_a_region_at_the_top_is_refused,
    remote_range_over_two_regions_is_refused,
    write_with_immediate_is_refused_as_a_write,
    write_with_immediate_that_is_refused_takes_no_receive,
    whole_region_is_in_bounds,
    local_element_out_of_bounds_is_refused,
    local_element_over_two_regions_is_refused,
    one_bad_element_among_good_ones_is_refused,
    element_that_may_not_be_used_is_a_protection_error,
    remote_key_of_another_protection_domain_is_refused,
    local_key_of_another_protection_domain_is_refused,
    keys_serve_all_queue_pairs_of_their_protection_domain,
    region_without_remote_write_refuses_writes,
    region_without_remote_read_refuses_reads,
    region_without_rights_for_peers_refuses_both,
    memory_is_read_here_without_any_right,
    read_into_a_region_without_local_write_is_refused,
    queue_pair_without_remote_write_refuses_writes,
    queue_pair_without_remote_read_refuses_reads,
    no_bytes_need_no_key,
    empty_elements_need_no_key_among_others,
    deregistered_rkey_is_refused,
    deregistered_lkey_is_refused,
    key_of_memory_that_was_registered_again_is_refused,
    refusal_leaves_other_queue_pairs_of_the_protection_domains,
    keys_of_another_opening_of_the_device_are_refused,
];

/// The indices of WRITE and READ in [`Scene::requests`].
const ONE_SIDED: [usize; 2] = [0, 2];

/// Checks that B refuses a WRITE and a READ that `spoil` has changed.
fn remote_refusals(device: &Device, spoil: impl Fn(&Scene, Wr) -> Wr) {
    for n in ONE_SIDED {
        let scene = Scene::new(device);
        let wr = spoil(&scene, scene.requests()[n].clone());
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

/// Posts a WRITE, a WRITE with immediate, a READ and a SEND, each with `element` as its local
/// memory. Checks that A refuses them, and returns the statuses.
fn local_refusals(device: &Device, element: impl Fn(&Scene) -> ibv_sge) -> [Status; 4] {
    [0, 1, 2, 3].map(|n| {
        let scene = Scene::new(device);
        let mut wr = scene.requests()[n].clone();
        wr.sges[0] = element(&scene);
        scene.local_refusal(&wr)
    })
}

fn wrong_rkey_is_refused(device: &Device) {
    for flip in [1, 0x100, 0x8000_0000] {
        remote_refusals(device, |scene, wr| {
            wr.remote(scene.at_b.address(), scene.at_b.rkey() ^ flip)
        });
    }
}

fn with_wrong_key(scene: &Scene, flip: u32) -> ibv_sge {
    let sge = scene.at_a.sge(8, 32);
    ibv_sge { lkey: sge.lkey ^ flip, ..sge }
}

fn wrong_lkey_is_refused(device: &Device) {
    for flip in [1, 0x100, 0x8000_0000] {
        local_refusals(device, |scene| with_wrong_key(scene, flip));
    }
}

fn remote_range_past_the_end_is_refused(device: &Device) {
    // The first range ends one byte beyond the region; the second is entirely outside.
    for offset in [BYTES - 31, BYTES] {
        remote_refusals(device, |scene, wr| {
            wr.remote(scene.at_b.address() + offset as u64, scene.at_b.rkey())
        });
    }
}

fn remote_range_before_the_start_is_refused(device: &Device) {
    remote_refusals(device, |scene, wr| wr.remote(scene.at_b.address() - 1, scene.at_b.rkey()));
}

fn remote_range_that_wraps_is_refused(device: &Device) {
    // 32 bytes that start here would wrap around and end with the 16th byte of the address space.
    remote_refusals(device, |scene, wr| wr.remote(u64::MAX - 15, scene.at_b.rkey()));
}

fn range_that_wraps_back_into_a_region_is_refused(device: &Device) {
    for n in ONE_SIDED {
        let scene = Scene::new(device);
        let memory = Mapping::writable(BYTES);
        memory.put(0, &[AT_B; BYTES]);
        let mr = scene.b.pd.try_register_range_at(memory.start(), BYTES, 0, ALL_ACCESS).unwrap();
        // The range would wrap around and end with the region's 16th byte.
        let wr = scene.requests()[n].clone().remote(u64::MAX - 15, rkey_of(mr));
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(memory.bytes(0, BYTES), [AT_B; BYTES]);
        deregister(mr);
    }
}

fn range_that_wraps_out_of_a_region_at_the_top_is_refused(device: &Device) {
    let scene = Scene::new(device);
    // The region ends just before the last byte of the address space.
    let (page, top) = (4096, u64::MAX - BYTES as u64);
    let memory = Mapping::writable(page);
    let from = page - BYTES - 1;
    memory.put(from, &[AT_B; BYTES]);
    let start = memory.start().wrapping_add(from);
    let mr = scene.b.pd.try_register_range_at(start, BYTES, top, ALL_ACCESS).unwrap();
    let all = [scene.at_a.sge(0, BYTES)];
    scene.a.qp.post(&Wr::read(1, &all, &scene.at_b, 0).remote(top, rkey_of(mr)));
    scene.a.send_cq.expect_success(1);
    scene.at_a.assert_filled(AT_B);
    scene.at_a.fill(AT_A);
    let behind = Wr::write(2, &all, &scene.at_b, 0).remote(u64::MAX - 8, rkey_of(mr));
    scene.expect_remote_refusal(&behind, Status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(memory.bytes(from, BYTES), [AT_B; BYTES]);
    deregister(mr);
}

/// Registers two adjacent regions of 32 bytes.
fn neighbours(pd: &Pd, memory: &Mapping) -> [*mut ibv_mr; 2] {
    [0, 32].map(|from| {
        let start = memory.start().wrapping_add(from);
        pd.try_register(start, 32, ALL_ACCESS).unwrap()
    })
}

fn remote_range_over_two_regions_is_refused(device: &Device) {
    for n in ONE_SIDED {
        let scene = Scene::new(device);
        let memory = Mapping::writable(64);
        let regions = neighbours(&scene.b.pd, &memory);
        let (address, key) = (memory.start().addr() as u64 + 1, rkey_of(regions[0]));
        let wr = scene.requests()[n].clone().remote(address, key);
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(memory.bytes(0, 64), [0; 64]);
        regions.into_iter().for_each(deregister);
    }
}

/// Checks that B refuses writes with immediate data that have a wrong key, are out of bounds or
/// lack a right. Then runs `then`.
fn refused_writes_with_immediate(device: &Device, then: impl Fn(&Scene)) {
    let spoils: [fn(&Scene, &Mr, Wr) -> Wr; 3] = [
        |scene, _, wr| wr.remote(scene.at_b.address(), scene.at_b.rkey() ^ 1),
        |scene, _, wr| wr.remote(scene.at_b.address() - 1, scene.at_b.rkey()),
        |_, readable, wr| wr.remote(readable.address(), readable.rkey()),
    ];
    for spoil in spoils {
        let scene = Scene::new(device);
        let readable = scene.b.pd.register_filled(vec![AT_B; BYTES], LOCAL_WRITE | REMOTE_READ);
        scene.a.qp.post(&spoil(&scene, &readable, scene.requests()[1].clone()));
        scene.a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        scene.a.qp.wait_for_error();
        scene.b.qp.wait_for_error();
        scene.a.receive_cq.expect_flushed([RECEIVE_A]);
        then(&scene);
        scene.assert_untouched();
        readable.assert_filled(AT_B);
    }
}

fn write_with_immediate_is_refused_as_a_write(device: &Device) {
    refused_writes_with_immediate(device, |scene| {
        assert_ne!(scene.b.receive_cq.next().status, Status::IBV_WC_SUCCESS);
    });
}

fn write_with_immediate_that_is_refused_takes_no_receive(device: &Device) {
    let status = device.expected(
        Status::IBV_WC_WR_FLUSH_ERR,
        "receive-of-a-refused-write-with-immediate",
        Status::IBV_WC_REM_ACCESS_ERR,
    );
    refused_writes_with_immediate(device, |scene| {
        scene.b.receive_cq.expect(RECEIVE_B, status);
    });
}

fn whole_region_is_in_bounds(device: &Device) {
    for n in 0..4 {
        let scene = Scene::new(device);
        let mut wr = scene.requests()[n].clone();
        wr.sges[0] = scene.at_a.sge(0, BYTES);
        let wr = if n < 3 { wr.remote(scene.at_b.address(), scene.at_b.rkey()) } else { wr };
        scene.a.qp.post(&wr);
        scene.a.send_cq.expect_success(1);
        let filled = if n == 2 { AT_B } else { AT_A };
        if n == 3 {
            scene.b.receive_cq.next();
        }
        scene.at_a.assert_filled(filled);
        scene.at_b.assert_filled(filled);
    }
}

fn local_element_out_of_bounds_is_refused(device: &Device) {
    local_refusals(device, |scene| scene.at_a.sge(BYTES - 31, 32));
    local_refusals(device, |scene| {
        let sge = scene.at_a.sge(0, 32);
        ibv_sge { addr: sge.addr - 1, ..sge }
    });
    local_refusals(device, |scene| ibv_sge { addr: u64::MAX - 15, ..scene.at_a.sge(0, 32) });
}

fn local_element_over_two_regions_is_refused(device: &Device) {
    for n in 0..4 {
        let scene = Scene::new(device);
        let memory = Mapping::writable(64);
        let regions = neighbours(&scene.a.pd, &memory);
        let mut wr = scene.requests()[n].clone();
        let lkey = key_of(regions[0]);
        wr.sges[0] = ibv_sge { addr: memory.start().addr() as u64 + 1, length: 32, lkey };
        scene.local_refusal(&wr);
        assert_eq!(memory.bytes(0, 64), [0; 64]);
        regions.into_iter().for_each(deregister);
    }
}

fn one_bad_element_among_good_ones_is_refused(device: &Device) {
    for n in 0..4 {
        let scene = Scene::new(device);
        let mut wr = scene.requests()[n].clone();
        let elements = [scene.at_a.sge(0, 8), scene.at_a.sge(BYTES - 7, 8)];
        wr.sges = elements.to_vec();
        scene.a.qp.post(&wr);
        assert_ne!(scene.a.send_cq.next().status, Status::IBV_WC_SUCCESS);
        scene.a.qp.wait_for_error();
        scene.b.qp.assert_ready();
        assert!(scene.b.receive_cq.is_empty());
        // A READ does not undo what it has already written to the valid first element.
        assert_eq!(scene.at_a.bytes()[8..], [AT_A; BYTES - 8]);
        scene.at_b.assert_filled(AT_B);
    }
}

fn element_that_may_not_be_used_is_a_protection_error(device: &Device) {
    let bounds = local_refusals(device, |scene| scene.at_a.sge(BYTES - 31, 32));
    assert_eq!(bounds, [Status::IBV_WC_LOC_PROT_ERR; 4]);
    let key = local_refusals(device, |scene| with_wrong_key(scene, 1));
    let sent = device.expected(
        Status::IBV_WC_LOC_PROT_ERR,
        "status-of-a-bad-lkey",
        Status::IBV_WC_LOC_QP_OP_ERR,
    );
    assert_eq!(key, [sent, sent, Status::IBV_WC_LOC_PROT_ERR, sent]);
}

fn remote_key_of_another_protection_domain_is_refused(device: &Device) {
    for n in ONE_SIDED {
        let scene = Scene::new(device);
        let other = scene.b.context.pd();
        let mr = other.register_filled(vec![AT_B; BYTES], ALL_ACCESS);
        let wr = scene.requests()[n].clone().remote(mr.address(), mr.rkey());
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        mr.assert_filled(AT_B);
    }
}

fn local_key_of_another_protection_domain_is_refused(device: &Device) {
    for n in 0..4 {
        let scene = Scene::new(device);
        let other = scene.a.context.pd();
        let mr = other.register_filled(vec![AT_A; BYTES], ALL_ACCESS);
        let mut wr = scene.requests()[n].clone();
        wr.sges[0] = mr.sge(0, 32);
        scene.local_refusal(&wr);
        mr.assert_filled(AT_A);
    }
}

fn connect_both(a: &Side, at_a: &Qp, b: &Side, at_b: &Qp) {
    let ends = [endpoint(&a.context, at_a), endpoint(&b.context, at_b)];
    connect(at_a, &ends[0], &ends[1], &Knobs::default());
    connect(at_b, &ends[1], &ends[0], &Knobs::default());
}

fn keys_serve_all_queue_pairs_of_their_protection_domain(device: &Device) {
    let (a, b) = pair(device);
    let (from, to) = (a.pd.register_filled(vec![1; 40], 0), b.pd.register(40, ALL_ACCESS));
    for n in 0..4 {
        let [qp, target] =
            [&a, &b].map(|side| side.pd.qp(&side.send_cq, &side.receive_cq, &Size::default()));
        connect_both(&a, &qp, &b, &target);
        qp.post(&Wr::write(1, &[from.sge(8 * n, 8)], &to, 8 * n));
        a.send_cq.expect_success(1);
    }
    assert_eq!(to.bytes(), [[1; 32].as_slice(), &[0; 8]].concat());
}

/// Posts request `n` to a region with rights `access`, and checks that B refuses it.
fn refused_by_region(device: &Device, n: usize, access: u32) {
    let scene = Scene::new(device);
    let mr = scene.b.pd.register_filled(vec![AT_B; BYTES], access);
    let wr = scene.requests()[n].clone().remote(mr.address(), mr.rkey());
    scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
    mr.assert_filled(AT_B);
}

fn region_without_remote_write_refuses_writes(device: &Device) {
    refused_by_region(device, 0, LOCAL_WRITE | REMOTE_READ);
}

fn region_without_remote_read_refuses_reads(device: &Device) {
    refused_by_region(device, 2, LOCAL_WRITE | REMOTE_WRITE);
}

fn region_without_rights_for_peers_refuses_both(device: &Device) {
    for n in ONE_SIDED {
        refused_by_region(device, n, LOCAL_WRITE);
        // The next request uses the local key, which peers must not use.
        let scene = Scene::new(device);
        let mr = scene.b.pd.register_filled(vec![AT_B; BYTES], LOCAL_WRITE);
        let wr = scene.requests()[n].clone().remote(mr.address(), mr.key());
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        mr.assert_filled(AT_B);
    }
}

fn memory_is_read_here_without_any_right(device: &Device) {
    let scene = Scene::new(device);
    let mr = scene.a.pd.register_filled(vec![7; BYTES], 0);
    scene.a.qp.post(&Wr::write(1, &[mr.sge(0, 32)], &scene.at_b, 0));
    scene.a.send_cq.expect_success(1);
    assert_eq!(scene.at_b.bytes()[..32], [7; 32]);
    scene.a.qp.post(&Wr::send(2, &[mr.sge(0, BYTES)]));
    scene.a.send_cq.expect_success(2);
    scene.at_b.assert_filled(7);
}

fn read_into_a_region_without_local_write_is_refused(device: &Device) {
    let scene = Scene::new(device);
    let mr = scene.a.pd.register_filled(vec![AT_A; BYTES], REMOTE_READ);
    let wr = Wr::read(1, &[mr.sge(0, 32)], &scene.at_b, 0);
    scene.expect_local_refusal(&wr, Status::IBV_WC_LOC_PROT_ERR);
    mr.assert_filled(AT_A);
}

/// Posts request `n` to a queue pair with rights `access`, and checks that B refuses it. The region
/// has all rights.
fn refused_by_queue_pair(device: &Device, n: usize, access: u32) {
    let knobs = Knobs { access, ..Knobs::default() };
    let scene = Scene::with(device, &Size::default(), &knobs);
    let wr = scene.requests()[n].clone();
    scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_INV_REQ_ERR);
}

fn queue_pair_without_remote_write_refuses_writes(device: &Device) {
    refused_by_queue_pair(device, 0, LOCAL_WRITE | REMOTE_READ);
}

fn queue_pair_without_remote_read_refuses_reads(device: &Device) {
    refused_by_queue_pair(device, 2, LOCAL_WRITE | REMOTE_WRITE);
}

fn no_bytes_need_no_key(device: &Device) {
    let scene = Scene::new(device);
    let nothing = ibv_sge { addr: 3, length: 0, lkey: 0xbad };
    for (wr_id, sges) in [(1, &[][..]), (2, &[nothing]), (3, &[nothing, nothing])] {
        let nowhere = |wr: Wr| wr.remote(u64::MAX, 0xbad);
        scene.a.qp.post(&nowhere(Wr::write(wr_id, sges, &scene.at_b, 0)));
        scene.a.qp.post(&nowhere(Wr::read(wr_id + 10, sges, &scene.at_b, 0)));
        scene.a.send_cq.expect_success(wr_id);
        assert_eq!(scene.a.send_cq.expect_success(wr_id + 10).byte_len, 0);
    }
    scene.b.qp.post_receive(50, &[nothing]);
    scene.a.qp.post(&Wr::send(20, &[]));
    scene.a.qp.post(&Wr::send(21, &[nothing]));
    scene.a.send_cq.expect_success(20);
    scene.a.send_cq.expect_success(21);
    assert_eq!(scene.b.receive_cq.next().byte_len, 0);
    assert_eq!(scene.b.receive_cq.expect_success(50).byte_len, 0);
    scene.assert_untouched();
}

fn empty_elements_need_no_key_among_others(device: &Device) {
    let scene = Scene::new(device);
    let nothing = ibv_sge { addr: 3, length: 0, lkey: 0xbad };
    let (first, second) = (scene.at_a.sge(0, 8), scene.at_a.sge(8, 8));
    for (wr_id, sges) in [
        (1, [nothing, first, second]),
        (2, [first, nothing, second]),
        (3, [first, second, nothing]),
    ] {
        scene.at_b.fill(0);
        scene.a.qp.post(&Wr::write(wr_id, &sges, &scene.at_b, 0));
        scene.a.send_cq.expect_success(wr_id);
        assert_eq!(scene.at_b.bytes()[..17], [[AT_A; 16].as_slice(), &[0]].concat());
    }
}

fn deregistered_rkey_is_refused(device: &Device) {
    for n in ONE_SIDED {
        let mut scene = Scene::new(device);
        let wr = scene.requests()[n].clone();
        let memory = replace(&mut scene, |scene| &mut scene.at_b, AT_B).deregister();
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(memory, [AT_B; BYTES]);
    }
}

fn deregistered_lkey_is_refused(device: &Device) {
    for n in 0..4 {
        let mut scene = Scene::new(device);
        let wr = scene.requests()[n].clone();
        let memory = replace(&mut scene, |scene| &mut scene.at_a, AT_A).deregister();
        scene.local_refusal(&wr);
        assert_eq!(memory, [AT_A; BYTES]);
    }
}

/// Registers new memory in place of one of the scene's regions. Returns the previous region.
fn replace(scene: &mut Scene, place: impl Fn(&mut Scene) -> &mut Mr, byte: u8) -> Mr {
    let side = if byte == AT_A { &scene.a } else { &scene.b };
    let fresh = side.pd.register_filled(vec![byte; BYTES], ALL_ACCESS);
    std::mem::replace(place(scene), fresh)
}

fn key_of_memory_that_was_registered_again_is_refused(device: &Device) {
    for n in ONE_SIDED {
        let mut scene = Scene::new(device);
        let wr = scene.requests()[n].clone();
        let old = replace(&mut scene, |scene| &mut scene.at_b, AT_B);
        let (old_lkey, old_rkey) = (old.key(), old.rkey());
        // The same memory is registered again with the same rights, so only the keys differ.
        let again = scene.b.pd.register_filled(old.deregister(), ALL_ACCESS);
        assert_ne!((again.key(), again.rkey()), (old_lkey, old_rkey));
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        again.assert_filled(AT_B);
    }
}

fn refusal_leaves_other_queue_pairs_of_the_protection_domains(device: &Device) {
    let (a, b) = pair(device);
    let qps = [&a, &b].map(|side| side.pd.qp(&side.send_cq, &side.receive_cq, &Size::default()));
    connect_both(&a, &qps[0], &b, &qps[1]);
    let (from, to) = (a.pd.register_filled(vec![1; 8], 0), b.pd.register(8, ALL_ACCESS));
    let wr = Wr::write(1, &[from.sge(0, 8)], &to, 0);
    a.qp.post(&wr.clone().remote(to.address(), to.rkey() ^ 1));
    a.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    qps[0].post(&wr);
    a.send_cq.expect_success(1);
    to.assert_filled(1);
    qps.iter().for_each(Qp::assert_ready);
}

fn keys_of_another_opening_of_the_device_are_refused(device: &Device) {
    for n in ONE_SIDED {
        let scene = Scene::new(device);
        let other = device.open();
        let pd = other.pd();
        let mr = pd.register_filled(vec![AT_B; BYTES], ALL_ACCESS);
        let wr = scene.requests()[n].clone().remote(mr.address(), mr.rkey());
        scene.expect_remote_refusal(&wr, Status::IBV_WC_REM_ACCESS_ERR);
        mr.assert_filled(AT_B);
    }
}

//! Memory windows: which memory they can be bound to, and which accesses they grant to a peer (IBTA
//! volume 1, 10.6.7).

use rdma_sys::{
    Errno, ibv_device_cap_flags as Cap, ibv_mw_bind_info, ibv_mw_type, ibv_wc_status as Status,
};
use test_support::rig::connect::Knobs;
use test_support::rig::post::Wr;
use test_support::rig::window::{AT_A, AT_B, BINDABLE, BYTES, Grant, REMOTE, TYPE_1, TYPE_2};
use test_support::rig::{
    ALL_ACCESS, LOCAL_WRITE, MW_BIND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, ZERO_BASED, imm_of,
};

use crate::case::cases;
use crate::device::Device;

cases![
    a_domain_with_a_window_stays,
    a_window_of_an_unknown_kind_is_refused,
    windows_have_keys_of_their_own,
    a_new_window_names_nothing,
    a_new_window_does_not_revive_one_that_is_gone,
    a_window_reaches_from_its_first_byte_to_its_last,
    what_reaches_out_of_a_window_is_refused,
    what_reaches_out_of_a_windows_region_is_refused,
    a_window_gives_the_rights_that_it_was_bound_with,
    a_window_gives_no_other_rights,
    a_write_with_immediate_goes_through_a_window,
    a_window_that_only_reads_needs_no_right_but_to_be_bound,
    a_queue_pair_without_the_right_gives_none_by_a_window,
    the_key_of_a_window_is_no_local_key,
    a_window_of_type_1_is_for_every_queue_pair_of_its_domain,
    a_window_of_type_2_is_for_the_queue_pair_that_bound_it,
    a_window_of_another_domain_means_nothing,
    a_zero_based_window_counts_from_its_own_beginning,
    a_zero_based_window_ends_where_it_ends,
    a_zero_based_window_knows_no_addresses,
    a_window_counts_as_its_region_does,
    windows_of_one_region_are_independent,
    a_regions_own_key_works_beside_its_windows,
    a_region_stays_registered_while_a_window_is_bound_to_it,
    a_region_that_a_window_is_bound_to_is_busy,
    a_region_stays_registered_until_its_last_window_is_gone,
];

pub(super) const SIZE: u64 = BYTES as u64;

/// Returns true if the device has windows of this type.
fn has(device: &Device, kind: ibv_mw_type) -> bool {
    let attributes = device.attributes();
    let flags = match kind {
        TYPE_1 => Cap::IBV_DEVICE_MEM_WINDOW,
        _ => Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2A | Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B,
    };
    attributes.max_mw > 0 && attributes.device_cap_flags & flags.0 != 0
}

pub(super) fn needs(device: &Device, kind: ibv_mw_type) {
    let what = if kind == TYPE_1 { "type 1" } else { "type 2" };
    device.needs(has(device, kind), &format!("the device has no memory windows of {what}"));
}

/// Returns the types of windows that the device has. Skips the case if it has none.
pub(super) fn kinds(device: &Device) -> Vec<ibv_mw_type> {
    let kinds = Vec::from_iter([TYPE_1, TYPE_2].into_iter().filter(|&kind| has(device, kind)));
    device.needs(!kinds.is_empty(), "the device has no memory windows");
    kinds
}

fn a_domain_with_a_window_stays(device: &Device) {
    for kind in kinds(device) {
        let context = device.open();
        let pd = context.pd();
        let mw = pd.mw(kind);
        assert_eq!(pd.try_dealloc(), Errno::EBUSY.raw());
        drop(mw);
    }
}

fn a_window_of_an_unknown_kind_is_refused(device: &Device) {
    kinds(device);
    let context = device.open();
    let pd = context.pd();
    for unknown in [0, 3, 200] {
        assert_eq!(pd.try_mw(ibv_mw_type(unknown)).err(), Some(Errno::EINVAL));
    }
}

fn windows_have_keys_of_their_own(device: &Device) {
    let context = device.open();
    let pd = context.pd();
    let windows =
        Vec::from_iter(kinds(device).into_iter().flat_map(|kind| [pd.mw(kind), pd.mw(kind)]));
    let mut places = Vec::from_iter(windows.iter().map(|mw| mw.key() >> 8));
    places.sort_unstable();
    places.dedup();
    // Only the upper bytes are compared, because the program chooses the low byte of a type 2 key.
    assert_eq!(places.len(), windows.len());
}

fn a_new_window_names_nothing(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(kind);
        grant.refuses(&grant.write(mw.key(), 16, 8));
    }
}

fn a_new_window_does_not_revive_one_that_is_gone(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (mw, gone) = grant.window(kind, REMOTE);
        drop(mw);
        let (new, key) = grant.window(kind, REMOTE);
        assert_ne!(key, gone);
        grant.allows(&grant.write(key, 16, 8));
        grant.refuses(&grant.write(gone, 16, 8));
        drop(new);
    }
}

fn a_window_reaches_from_its_first_byte_to_its_last(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(kind, REMOTE);
        for (from, length) in [(16, 1), (47, 1)] {
            grant.allows(&grant.write(key, from, length));
        }
        let mut expected = vec![AT_B; BYTES];
        (expected[16], expected[47]) = (AT_A, AT_A);
        assert_eq!(grant.at_b.bytes(), expected);
        grant.allows(&grant.write(key, 16, 32));
        expected[16..48].fill(AT_A);
        assert_eq!(grant.at_b.bytes(), expected);
    }
}

fn what_reaches_out_of_a_window_is_refused(device: &Device) {
    for kind in kinds(device) {
        for (from, length) in [(15, 1), (15, 33), (16, 33), (47, 2), (48, 1), (0, BYTES)] {
            let grant = Grant::new(device);
            let (_mw, key) = grant.window(kind, REMOTE);
            let write = grant.write(key, from, length);
            if device.differs("window-bounds") {
                grant.allows(&write);
            } else {
                grant.refuses(&write);
            }
        }
    }
}

fn what_reaches_out_of_a_windows_region_is_refused(device: &Device) {
    for kind in kinds(device) {
        for (from, length) in [(u64::MAX, 1), (u64::MAX, BYTES), (1, BYTES), (SIZE, 1)] {
            let grant = Grant::new(device);
            let (_mw, key) = grant.window(kind, REMOTE);
            grant.refuses(&grant.write(key, from, length));
        }
    }
}

/// Returns a request that A can execute only with this right.
fn using(grant: &Grant, key: u32, right: u32) -> Wr {
    match right {
        REMOTE_WRITE => grant.write(key, 16, 8),
        REMOTE_READ => grant.read(key, 16, 8),
        _ => grant.add(key, 16),
    }
}

const RIGHTS: [u32; 3] = [REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC];

fn a_window_gives_the_rights_that_it_was_bound_with(device: &Device) {
    for kind in kinds(device) {
        for right in RIGHTS {
            let grant = Grant::new(device);
            let (_mw, key) = grant.window(kind, right);
            grant.allows(&using(&grant, key, right));
            let (at_a, at_b) = (grant.at_a.bytes(), grant.at_b.bytes());
            match right {
                REMOTE_WRITE => assert_eq!(at_b[16..24], [AT_A; 8]),
                REMOTE_READ => assert_eq!(at_a[..8], [AT_B; 8]),
                _ => {
                    let before = u64::from_ne_bytes([AT_B; 8]);
                    assert_eq!(
                        (&at_a[..8], &at_b[16..24]),
                        (&[AT_B; 8][..], &(before + 1).to_ne_bytes()[..])
                    );
                }
            }
        }
    }
}

fn a_window_gives_no_other_rights(device: &Device) {
    for kind in kinds(device) {
        for right in RIGHTS {
            let grant = Grant::new(device);
            let (_mw, key) = grant.window(kind, REMOTE & !right);
            grant.refuses(&using(&grant, key, right));
            grant.at_a.assert_filled(AT_A);
        }
    }
}

fn a_write_with_immediate_goes_through_a_window(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(kind, REMOTE_WRITE);
        grant.b.qp.post_receive(10, &[]);
        grant.allows(&grant.write(key, 16, 8).with_imm(7));
        let wc = grant.b.receive_cq.expect_success(10);
        assert_eq!((imm_of(&wc), wc.byte_len), (7, 8));
        assert_eq!(grant.at_b.bytes()[16..24], [AT_A; 8]);
    }
}

fn a_window_that_only_reads_needs_no_right_but_to_be_bound(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let region = grant.b.pd.register_filled(vec![7; 8], MW_BIND);
        let mw = grant.b.pd.mw(kind);
        let key = grant.bind(&mw, region.part(0, 8, REMOTE_READ));
        grant.allows(&grant.read(key, 0, 8).remote(region.address(), key));
        assert_eq!(&grant.at_a.bytes()[..8], [7; 8]);
        drop(mw);
    }
}

fn a_queue_pair_without_the_right_gives_none_by_a_window(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::with(device, &Knobs { access: REMOTE_READ, ..Knobs::default() });
        let (_mw, key) = grant.window(kind, REMOTE);
        assert_eq!(grant.try_by_a(&grant.write(key, 16, 8)), Status::IBV_WC_REM_INV_REQ_ERR);
        grant.at_b.assert_filled(AT_B);
    }
}

fn the_key_of_a_window_is_no_local_key(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(kind, REMOTE);
        let mut sge = grant.at_b.sge(16, 8);
        sge.lkey = key;
        grant.a.qp.post_receive(1, &[]);
        grant.b.qp.post(&Wr::send(1, &[sge]));
        let status = device.expected(
            Status::IBV_WC_LOC_PROT_ERR,
            "status-of-a-bad-lkey",
            Status::IBV_WC_LOC_QP_OP_ERR,
        );
        grant.b.send_cq.expect(1, status);
    }
}

/// Writes through B's window from a third queue pair. Whatever the result, A can still use the
/// window afterwards.
#[track_caller]
fn by_another(device: &Device, kind: ibv_mw_type, expected: Status) {
    let grant = Grant::new(device);
    let (c, _d) = grant.second_pair(device);
    let (_mw, key) = grant.window(kind, REMOTE);
    let at_c = c.pd.register_filled(vec![0xcc; 8], LOCAL_WRITE);
    let write = Wr::write(1, &[at_c.sge(0, 8)], &grant.at_b, 16);
    c.qp.post(&write.remote(grant.at_b.address() + 16, key));
    c.send_cq.expect(1, expected);
    let succeeded = expected == Status::IBV_WC_SUCCESS;
    assert_eq!(grant.at_b.bytes()[16] == 0xcc, succeeded);
    grant.allows(&grant.write(key, 16, 8));
}

fn a_window_of_type_1_is_for_every_queue_pair_of_its_domain(device: &Device) {
    needs(device, TYPE_1);
    by_another(device, TYPE_1, Status::IBV_WC_SUCCESS);
}

fn a_window_of_type_2_is_for_the_queue_pair_that_bound_it(device: &Device) {
    needs(device, TYPE_2);
    by_another(device, TYPE_2, Status::IBV_WC_REM_ACCESS_ERR);
}

fn a_window_of_another_domain_means_nothing(device: &Device) {
    for kind in kinds(device) {
        let (grant, other) = (Grant::new(device), Grant::new(device));
        let (_mw, key) = other.window(kind, REMOTE);
        grant.refuses(&grant.write(key, 0, 8).remote(other.at_b.address() + 16, key));
        other.at_b.assert_filled(AT_B);
    }
}

fn a_zero_based_window_counts_from_its_own_beginning(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE | ZERO_BASED);
    grant.allows(&grant.write(key, 0, 4).remote(28, key));
    let mut expected = vec![AT_B; BYTES];
    expected[44..48].fill(AT_A);
    assert_eq!(grant.at_b.bytes(), expected);
}

fn a_zero_based_window_ends_where_it_ends(device: &Device) {
    needs(device, TYPE_2);
    for (address, length) in [(28, 5), (32, 1)] {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE | ZERO_BASED);
        let write = grant.write(key, 0, length).remote(address, key);
        if device.differs("window-bounds") {
            grant.allows(&write);
        } else {
            grant.refuses(&write);
        }
    }
}

fn a_zero_based_window_knows_no_addresses(device: &Device) {
    needs(device, TYPE_2);
    let grant = Grant::new(device);
    let (_mw, key) = grant.window(TYPE_2, REMOTE | ZERO_BASED);
    grant.refuses(&grant.write(key, 16, 4));
}

fn a_window_counts_as_its_region_does(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let memory = vec![AT_B; BYTES];
        // The address for requests has the memory's offset within a page, as devices with pages
        // require.
        let start = 0x1000_0000 + memory.as_ptr().addr() as u64 % 4096;
        let region = grant.b.pd.register_at(memory, start, BINDABLE);
        let mw = grant.b.pd.mw(kind);
        let part = region.part(0, 32, REMOTE);
        let key = grant.bind(&mw, ibv_mw_bind_info { addr: start + 16, ..part });
        grant.allows(&grant.write(key, 0, 4).remote(start + 44, key));
        assert_eq!(region.bytes()[44..48], [AT_A; 4]);
        grant.refuses(&grant.write(key, 0, 4).remote(region.address() + 44, key));
        drop(mw);
    }
}

fn windows_of_one_region_are_independent(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (reads, writes) = (grant.b.pd.mw(kind), grant.b.pd.mw(kind));
        let read = grant.bind(&reads, grant.at_b.part(0, 32, REMOTE_READ));
        let write = grant.bind(&writes, grant.at_b.part(16, 32, REMOTE_WRITE));
        grant.allows(&grant.write(write, 16, 16));
        grant.allows(&grant.read(read, 16, 16));
        drop(reads);
        grant.allows(&grant.write(write, 32, 16));
        grant.refuses(&grant.read(read, 0, 8));
        drop(writes);
    }
}

fn a_regions_own_key_works_beside_its_windows(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let region = grant.b.pd.register(BYTES, ALL_ACCESS | MW_BIND);
        let mw = grant.b.pd.mw(kind);
        grant.bind(&mw, region.part(0, 8, REMOTE_READ));
        grant.allows(&grant.write(0, 0, 8).remote(region.address(), region.key()));
        assert_eq!(region.bytes()[..8], [AT_A; 8]);
        drop(mw);
    }
}

/// Revokes the access that a window of either type grants.
fn take_back(grant: &Grant, mw: &test_support::rig::window::Mw, key: u32) {
    if mw.kind() == TYPE_1 {
        grant.bind(mw, grant.at_b.part(0, 0, 0));
    } else {
        grant.local_invalidate(key);
    }
}

fn a_region_stays_registered_while_a_window_is_bound_to_it(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (mw, key) = grant.window(kind, REMOTE);
        grant.at_b.try_deregister();
        grant.allows(&grant.write(key, 16, 8));
        take_back(&grant, &mw, key);
        let Grant { at_a, at_b, a, b } = grant;
        assert_eq!(at_b.deregister()[16], AT_A);
        drop((mw, at_a, a, b));
    }
}

fn a_region_that_a_window_is_bound_to_is_busy(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (_mw, _key) = grant.window(kind, REMOTE);
        let busy = device.expected(Errno::EBUSY, "bound-region-einval", Errno::EINVAL);
        assert_eq!(grant.at_b.try_deregister(), busy.raw());
    }
}

fn a_region_stays_registered_until_its_last_window_is_gone(device: &Device) {
    for kind in kinds(device) {
        let grant = Grant::new(device);
        let (first, second) = (grant.b.pd.mw(kind), grant.b.pd.mw(kind));
        grant.bind(&first, grant.at_b.part(0, 8, REMOTE));
        let key = grant.bind(&second, grant.at_b.part(0, 8, REMOTE));
        drop(first);
        grant.at_b.try_deregister();
        take_back(&grant, &second, key);
        let Grant { at_a, at_b, a, b } = grant;
        at_b.deregister();
        drop((second, at_a, a, b));
    }
}

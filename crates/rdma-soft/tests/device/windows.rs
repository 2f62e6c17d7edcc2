//! Memory windows: what they are bound to, and what a peer may do through them.

use rdma_soft::{Builder, SoftDevice};
use rdma_sys::{
    Errno, ibv_device_cap_flags as Cap, ibv_mw_bind_info, ibv_mw_type, ibv_send_flags,
    ibv_wc_status as Status,
};

use crate::rig::connect::{Knobs, Side, pair_with};
use crate::rig::post::Wr;
use crate::rig::window::{AT_A, AT_B, BINDABLE, BYTES, Grant, REMOTE, TYPE_1, TYPE_2};
use crate::rig::{
    Context, LOCAL_WRITE, MW_BIND, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, Size, ZERO_BASED,
    on_each_device, on_each_held_device, soft,
};

/// On devices of all schedules, with each kind of window.
fn with_both_kinds(name: &str, test: impl Fn(&str, ibv_mw_type)) {
    for (kind, of) in [(TYPE_1, "one"), (TYPE_2, "two")] {
        on_each_device(&format!("{name}-{of}"), |device| test(device, kind));
        on_each_held_device(&format!("{name}-{of}"), |device: &SoftDevice| {
            test(device.name(), kind);
        });
    }
}

#[test]
fn a_device_says_that_it_has_windows_and_how_many() {
    let windows = Cap::IBV_DEVICE_MEM_WINDOW.0 | Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    Builder::new("windows-three").max_memory_windows(3).install().unwrap();
    let context = Context::open("windows-three");
    let attr = context.query_device();
    assert_eq!((attr.max_mw, attr.device_cap_flags & windows), (3, windows));
    let pd = context.pd();
    let made = [pd.mw(TYPE_1), pd.mw(TYPE_2), pd.mw(TYPE_2)];
    assert_eq!(pd.try_mw(TYPE_1).err(), Some(Errno::ENOMEM));
    drop(made);
    drop(pd.mw(TYPE_1));
    for unknown in [0, 3, u32::MAX] {
        assert_eq!(pd.try_mw(ibv_mw_type(unknown)).err(), Some(Errno::EINVAL));
    }

    Builder::new("windows-none").max_memory_windows(0).install().unwrap();
    let context = Context::open("windows-none");
    let attr = context.query_device();
    assert_eq!((attr.max_mw, attr.device_cap_flags & windows), (0, 0));
    assert_eq!(context.pd().try_mw(TYPE_1).err(), Some(Errno::EOPNOTSUPP));
}

#[test]
fn windows_and_regions_are_counted_apart() {
    let builder = Builder::new("windows-apart").max_memory_windows(1).max_memory_regions(1);
    builder.install().unwrap();
    let pd = Context::open("windows-apart");
    let pd = pd.pd();
    let mr = pd.register(8, 0);
    let mw = pd.mw(TYPE_1);
    let mut more = [0; 8];
    assert_eq!(pd.try_register(more.as_mut_ptr(), 8, 0).err(), Some(Errno::ENOMEM));
    assert_eq!(pd.try_mw(TYPE_2).err(), Some(Errno::ENOMEM));
    drop(mr);
    assert_eq!(pd.try_mw(TYPE_2).err(), Some(Errno::ENOMEM));
    drop((mw, pd.register(8, 0)));
}

#[test]
fn a_domain_with_a_window_stays() {
    let context = crate::rig::open_default("soft0");
    let pd = context.pd();
    let mw = pd.mw(TYPE_2);
    assert_eq!(pd.try_dealloc(), Errno::EBUSY.raw());
    drop(mw);
}

#[test]
fn a_new_window_names_nothing() {
    with_both_kinds("window-new", |device, kind| {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(kind);
        grant.refuses(&grant.write(mw.key(), 16, 8));
    });
}

#[test]
fn a_window_reaches_from_its_first_byte_to_its_last() {
    with_both_kinds("window-bounds", |device, kind| {
        let inside = [(16, 32), (16, 1), (47, 1)];
        let outside = [(15, 1), (15, 33), (16, 33), (47, 2), (48, 1), (0, BYTES), (u64::MAX, 1)];
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(kind, REMOTE);
        for (from, length) in inside {
            grant.allows(&grant.write(key, from, length));
        }
        let mut expected = vec![AT_B; BYTES];
        expected[16..48].fill(AT_A);
        assert_eq!(grant.at_b.bytes(), expected);
        for (from, length) in outside {
            let grant = Grant::new(device);
            let (_mw, key) = grant.window(kind, REMOTE);
            grant.refuses(&grant.write(key, from, length));
        }
    });
}

#[test]
fn a_window_gives_its_own_rights_and_no_others() {
    with_both_kinds("window-rights", |device, kind| {
        let all = [REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC];
        for access in all {
            for needed in all {
                let grant = Grant::new(device);
                let (_mw, key) = grant.window(kind, access);
                let wr = match needed {
                    REMOTE_WRITE => grant.write(key, 16, 8),
                    REMOTE_READ => grant.read(key, 16, 8),
                    _ => grant.add(key, 16),
                };
                let before = grant.at_a.bytes();
                if needed == access {
                    grant.allows(&wr);
                } else {
                    grant.refuses(&wr);
                    assert_eq!(grant.at_a.bytes(), before);
                }
            }
        }
    });
}

#[test]
fn a_region_whose_windows_only_read_needs_no_right_but_to_be_bound() {
    with_both_kinds("window-read-only", |device, kind| {
        let grant = Grant::new(device);
        let region = grant.b.pd.register_filled(vec![7; 8], MW_BIND);
        let mw = grant.b.pd.mw(kind);
        let key = grant.bind(&mw, region.part(0, 8, REMOTE_READ));
        let wr = grant.read(key, 0, 8).remote(region.address(), key);
        grant.allows(&wr);
        assert_eq!(&grant.at_a.bytes()[..8], [7; 8]);
    });
}

#[test]
fn a_queue_pair_without_the_right_gives_none_by_a_window() {
    with_both_kinds("window-qp-access", |device, kind| {
        let knobs = Knobs { access: REMOTE_READ, ..Knobs::default() };
        let (a, b) = pair_with(device, &Size::default(), &knobs);
        let at_a = a.pd.register_filled(vec![AT_A; BYTES], LOCAL_WRITE);
        let at_b = b.pd.register_filled(vec![AT_B; BYTES], BINDABLE);
        let grant = Grant { at_a, at_b, a, b };
        let (_mw, key) = grant.window(kind, REMOTE);
        assert_eq!(grant.try_by_a(&grant.write(key, 16, 8)), Status::IBV_WC_REM_INV_REQ_ERR);
        grant.at_b.assert_filled(AT_B);
    });
}

#[test]
fn the_key_of_a_window_is_no_local_key() {
    with_both_kinds("window-lkey", |device, kind| {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(kind, REMOTE);
        let mut sge = grant.at_b.sge(16, 8);
        sge.lkey = key;
        grant.b.qp.post(&Wr::send(1, &[sge]));
        soft(device).release_all();
        grant.b.send_cq.expect(1, Status::IBV_WC_LOC_PROT_ERR);
    });
}

#[test]
fn a_window_of_type_1_is_for_every_queue_pair_of_its_domain_and_one_of_type_2_for_its_own() {
    with_both_kinds("window-scope", |device, kind| {
        let grant = Grant::new(device);
        let (c, _d) = grant.second_pair(device);
        let (_mw, key) = grant.window(kind, REMOTE);
        let at_c = c.pd.register(8, LOCAL_WRITE);
        let sges = [at_c.sge(0, 8)];
        let write = Wr::write(1, &sges, &grant.at_b, 16);
        c.qp.post(&write.remote(grant.at_b.address() + 16, key));
        soft(device).release_all();
        let expected = match kind {
            TYPE_1 => Status::IBV_WC_SUCCESS,
            _ => Status::IBV_WC_REM_ACCESS_ERR,
        };
        c.send_cq.expect(1, expected);
        assert_eq!(grant.at_b.bytes()[16] == 0, kind == TYPE_1);
        grant.allows(&grant.write(key, 16, 8));
    });
}

#[test]
fn a_window_of_another_domain_means_nothing() {
    with_both_kinds("window-domain", |device, kind| {
        let (grant, other) = (Grant::new(device), Grant::new(device));
        let (_mw, key) = other.window(kind, REMOTE);
        let wr = grant.write(key, 0, 8).remote(other.at_b.address() + 16, key);
        grant.refuses(&wr);
        other.at_b.assert_filled(AT_B);
    });
}

#[test]
fn binding_a_window_of_type_1_again_gives_it_another_key_and_ends_the_one_before() {
    on_each_device("window-rebind", |device| {
        let grant = Grant::new(device);
        let (mw, first) = grant.window(TYPE_1, REMOTE);
        let second = grant.bind(&mw, grant.at_b.part(0, 8, REMOTE));
        assert_eq!(second, rdma_sys::ibv_inc_rkey(first));
        grant.allows(&grant.write(second, 0, 8));
        grant.refuses(&grant.write(first, 16, 8));
    });
    on_each_device("window-rebind-end", |device| {
        let grant = Grant::new(device);
        let (mw, _) = grant.window(TYPE_1, REMOTE);
        let key = grant.bind(&mw, grant.at_b.part(0, 8, REMOTE));
        grant.refuses(&grant.write(key, 16, 8));
    });
}

#[test]
fn a_window_of_type_1_is_unbound_by_length_0() {
    on_each_device("window-unbind", |device| {
        for with_region in [true, false] {
            for before in [true, false] {
                let grant = Grant::new(device);
                let (mw, first) = grant.window(TYPE_1, REMOTE);
                let nothing = ibv_mw_bind_info::default();
                let info = if with_region { grant.at_b.part(0, 0, 0) } else { nothing };
                let second = grant.bind(&mw, info);
                grant.refuses(&grant.write(if before { first } else { second }, 16, 8));
            }
        }
    });
}

#[test]
fn a_window_of_type_1_is_bound_through_any_queue_pair_of_its_domain() {
    on_each_device("window-any-qp", |device| {
        let grant = Grant::new(device);
        let (c, d) = grant.second_pair(device);
        let (mw, _) = grant.window(TYPE_1, REMOTE);
        let key = d.qp.post_bind(1, &mw, grant.at_b.part(0, 8, REMOTE));
        d.send_cq.expect_success(1);
        grant.allows(&grant.write(key, 0, 8));
        drop(c);
    });
}

#[test]
fn the_low_byte_of_a_key_of_type_2_is_the_programs_choice() {
    on_each_device("window-low-byte", |device| {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(TYPE_2);
        for low in [0, 1, 0xff, 0xff] {
            let key = mw.key_with(low);
            grant.b.qp.post(&Wr::bind(1, &mw, key, grant.at_b.part(0, 8, REMOTE)));
            grant.b.send_cq.expect_success(1);
            grant.allows(&grant.write(key, 0, 8));
            grant.local_invalidate(key);
        }
        let foreign = mw.key() ^ 0x100;
        let bind = Wr::bind(1, &mw, foreign, grant.at_b.part(0, 8, REMOTE));
        grant.fails_at_b(|qp| qp.post(&bind));
    });
}

#[test]
fn a_bound_window_of_type_2_is_not_bound_again() {
    on_each_device("window-twice", |device| {
        for length in [8, 0] {
            let grant = Grant::new(device);
            let (mw, key) = grant.window(TYPE_2, REMOTE);
            let other = grant.at_b.part(0, length, REMOTE);
            let again = Wr::bind(1, &mw, mw.key_with(77), other);
            // With another queue pair, since a failed bind ends the one that it is posted to.
            let (c, d) = grant.second_pair(device);
            d.qp.post(&again);
            d.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
            grant.allows(&grant.write(key, 16, 8));
            grant.fails_at_b(|qp| qp.post(&again));
            drop(c);
        }
    });
}

#[test]
fn what_a_window_cannot_be_bound_to() {
    with_both_kinds("window-bad-bind", |device, kind| {
        let fails = |spoil: &dyn Fn(&Grant, &mut ibv_mw_bind_info)| {
            let grant = Grant::new(device);
            let mw = grant.b.pd.mw(kind);
            let mut info = grant.at_b.part(16, 32, REMOTE);
            spoil(&grant, &mut info);
            grant.fails_at_b(|qp| {
                qp.post_bind(900, &mw, info);
            });
        };
        let start = |grant: &Grant| grant.at_b.address();
        fails(&|grant, info| info.addr = start(grant) - 1);
        fails(&|_, info| info.length = BYTES as u64 - 15);
        fails(&|grant, info| info.addr = start(grant) + BYTES as u64);
        fails(&|_, info| info.length = u64::MAX);
        fails(&|_, info| info.addr = u64::MAX);
        for access in [LOCAL_WRITE, MW_BIND, 1 << 20, 1 << 31] {
            fails(&|_, info| info.mw_access_flags |= access);
        }
        let on = |memory: u32, access: u32| {
            let grant = Grant::new(device);
            let region = grant.b.pd.register(BYTES, memory);
            let mw = grant.b.pd.mw(kind);
            let part = region.part(0, 8, access);
            // Requests count from there.
            let addr = if memory & ZERO_BASED == 0 { part.addr } else { 0 };
            grant.fails_at_b(|qp| {
                qp.post_bind(900, &mw, ibv_mw_bind_info { addr, ..part });
            });
        };
        on(LOCAL_WRITE, REMOTE_READ);
        on(MW_BIND, REMOTE_WRITE);
        on(MW_BIND, REMOTE_ATOMIC);
        on(BINDABLE | ZERO_BASED, REMOTE_READ);
    });
}

#[test]
fn a_bind_whose_window_or_region_is_of_another_domain_fails() {
    on_each_device("window-foreign", |device| {
        let (grant, other) = (Grant::new(device), Grant::new(device));
        let own = grant.b.pd.mw(TYPE_2);
        let bind = Wr::bind(1, &own, own.key(), other.at_b.part(0, 8, REMOTE));
        grant.fails_at_b(|qp| qp.post(&bind));
        let grant = Grant::new(device);
        let foreign = other.b.pd.mw(TYPE_2);
        let bind = Wr::bind(1, &foreign, foreign.key(), grant.at_b.part(0, 8, REMOTE));
        grant.fails_at_b(|qp| qp.post(&bind));
        // The inline function itself refuses a region of another domain.
        let one = grant.b.pd.mw(TYPE_1);
        let refused = grant.b.qp.try_bind(1, &one, other.at_b.part(0, 8, REMOTE), 0);
        assert_eq!(refused, Errno::EPERM.raw());
    });
}

#[test]
fn a_bind_outlives_neither_its_window_nor_its_region() {
    on_each_held_device("window-gone", |device| {
        for kind in [TYPE_1, TYPE_2] {
            let grant = Grant::new(device.name());
            let mw = grant.b.pd.mw(kind);
            grant.b.qp.post_bind(1, &mw, grant.at_b.part(0, 8, REMOTE));
            drop(mw);
            // It gets the place of the one before.
            let _next = grant.b.pd.mw(kind);
            device.release_all();
            grant.b.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);

            let grant = Grant::new(device.name());
            let mw = grant.b.pd.mw(kind);
            let region = grant.b.pd.register(BYTES, BINDABLE);
            grant.b.qp.post_bind(1, &mw, region.part(0, 8, REMOTE));
            drop(region);
            device.release_all();
            grant.b.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
        }
    });
}

#[test]
fn a_zero_based_window_counts_from_its_own_beginning() {
    on_each_device("window-zero-based", |device| {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE | ZERO_BASED);
        grant.allows(&grant.write(key, 0, 4).remote(28, key));
        let mut expected = vec![AT_B; BYTES];
        expected[44..48].fill(AT_A);
        assert_eq!(grant.at_b.bytes(), expected);
        grant.refuses(&grant.write(key, 0, 5).remote(28, key));
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE | ZERO_BASED);
        grant.refuses(&grant.write(key, 16, 4));
        let grant = Grant::new(device);
        let one = grant.b.pd.mw(TYPE_1);
        let info = grant.at_b.part(16, 32, REMOTE | ZERO_BASED);
        grant.fails_at_b(|qp| {
            qp.post_bind(1, &one, info);
        });
    });
}

#[test]
fn a_region_stays_registered_while_a_window_is_bound_to_it() {
    with_both_kinds("window-dereg", |device, kind| {
        let grant = Grant::new(device);
        let (mw, key) = grant.window(kind, REMOTE);
        assert_eq!(grant.at_b.try_deregister(), Errno::EBUSY.raw());
        grant.allows(&grant.write(key, 16, 8));
        if kind == TYPE_1 {
            grant.bind(&mw, ibv_mw_bind_info::default());
        } else {
            grant.local_invalidate(key);
        }
        let Grant { at_a, at_b, a, b } = grant;
        assert_eq!(at_b.deregister()[16], AT_A);
        drop((mw, at_a, a, b));
    });
}

#[test]
fn requests_around_a_bind_keep_their_order() {
    on_each_device("window-order", |device| {
        let grant = Grant::new(device);
        let room = grant.a.pd.register(BYTES, LOCAL_WRITE);
        grant.a.qp.post_receive(10, &[room.sge(0, BYTES)]);
        let mw = grant.b.pd.mw(TYPE_2);
        let (first, second) = (mw.key_with(1), mw.key_with(2));
        let part = grant.at_b.part(16, 32, REMOTE);
        let list = [
            Wr::bind(1, &mw, first, part).unsignaled(),
            Wr::local_invalidate(2, first).unsignaled(),
            Wr::bind(3, &mw, second, part).fenced(),
            Wr::send(4, &[grant.at_b.sge(0, 4)]),
        ];
        assert_eq!(grant.b.qp.try_post_list(&list), Ok(()));
        // Who gets the message may use the key.
        grant.a.receive_cq.expect_success(10);
        grant.allows(&grant.write(second, 16, 8));
        grant.b.send_cq.expect_success(3);
        grant.b.send_cq.expect_success(4);
        grant.refuses(&grant.write(first, 16, 8));
    });
}

#[test]
fn a_failed_bind_flushes_what_is_behind_it() {
    on_each_device("window-flush", |device| {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(TYPE_2);
        let bad = grant.at_b.part(0, BYTES + 1, REMOTE);
        let list = [
            Wr::bind(1, &mw, mw.key(), bad).unsignaled(),
            Wr::bind(2, &mw, mw.key(), grant.at_b.part(0, 8, REMOTE)),
            Wr::local_invalidate(3, mw.key()).unsignaled(),
        ];
        assert_eq!(grant.b.qp.try_post_list(&list), Ok(()));
        grant.b.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
        grant.b.send_cq.expect_flushed([2, 3]);
        grant.b.qp.post(&Wr::local_invalidate(4, mw.key()));
        grant.b.send_cq.expect_flushed([4]);
    });
}

#[test]
fn a_bind_that_makes_no_sense_is_refused_at_its_post() {
    let grant = Grant::new("soft0");
    let (one, two) = (grant.b.pd.mw(TYPE_1), grant.b.pd.mw(TYPE_2));
    let part = grant.at_b.part(0, 8, REMOTE);
    let invalid = Errno::EINVAL.raw();
    assert_eq!(grant.b.qp.try_bind(1, &two, part, 0), invalid);
    assert_eq!(grant.b.qp.try_post(&Wr::bind(1, &one, one.key(), part)), invalid);
    let key = one.key();
    for flags in [ibv_send_flags::IBV_SEND_INLINE, ibv_send_flags::IBV_SEND_SOLICITED] {
        assert_eq!(grant.b.qp.try_bind(1, &one, part, flags.0), invalid);
    }
    assert_eq!(one.key(), key, "a refused bind leaves the key");
    let mut nothing = Wr::bind(1, &two, two.key(), part);
    nothing.wr.__bindgen_anon_2.bind_mw.mw = std::ptr::null_mut();
    assert_eq!(grant.b.qp.try_post(&nothing), invalid);
    let reset = Side::new("soft0", &Size::default(), 8);
    assert_eq!(reset.qp.try_post(&Wr::local_invalidate(1, 7)), invalid, "not connected");
}

#[test]
fn binds_fill_the_queue_as_other_requests_do() {
    let size = Size { send_wr: 2, ..Size::default() };
    let (a, _b) = pair_with("soft0", &size, &Knobs::default());
    let region = a.pd.register(8, BINDABLE);
    let mw = a.pd.mw(TYPE_1);
    for n in 0..2 {
        assert_eq!(a.qp.try_bind(n, &mw, region.part(0, 8, REMOTE_READ), 2), 0);
    }
    let full = a.qp.try_bind(2, &mw, region.part(0, 8, REMOTE_READ), 2);
    assert_eq!(full, Errno::ENOMEM.raw());
    a.send_cq.expect_success(0);
    assert_eq!(a.qp.try_bind(2, &mw, ibv_mw_bind_info::default(), 2), 0);
}

//! Memory windows: the choices of this device.

use rdma_soft::{Builder, Limits, Schedule, SoftDevice};
use rdma_sys::{
    Errno, ibv_device_cap_flags as Cap, ibv_mw_bind_info, ibv_mw_type, ibv_send_flags,
    ibv_wc_status as Status,
};

use crate::device::rig::connect::{Knobs, Side, pair_with};
use crate::device::rig::post::Wr;
use crate::device::rig::window::{BINDABLE, BYTES, Grant, REMOTE, TYPE_1, TYPE_2};
use crate::device::rig::{Context, REMOTE_READ, Size, on_each_device, on_each_held_device};

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
fn a_device_reports_windows_and_their_number() {
    let windows = Cap::IBV_DEVICE_MEM_WINDOW.0 | Cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    Builder::new("windows-three").limits(Limits::default().max_mw(3)).install().unwrap();
    let context = Context::open("windows-three");
    let attr = context.query_device();
    assert_eq!((attr.max_mw, attr.device_cap_flags & windows), (3, windows));
    let pd = context.pd();
    let made = [pd.mw(TYPE_1), pd.mw(TYPE_2), pd.mw(TYPE_2)];
    assert_eq!(pd.try_mw(TYPE_1).err(), Some(Errno::ENOMEM));
    drop(made);
    drop(pd.mw(TYPE_1));

    Builder::new("windows-none").limits(Limits::default().max_mw(0)).install().unwrap();
    let context = Context::open("windows-none");
    let attr = context.query_device();
    assert_eq!((attr.max_mw, attr.device_cap_flags & windows), (0, 0));
    assert_eq!(context.pd().try_mw(TYPE_1).err(), Some(Errno::EOPNOTSUPP));
}

#[test]
fn windows_and_regions_are_counted_separately() {
    let builder = Builder::new("windows-apart").limits(Limits::default().max_mw(1).max_mr(1));
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
fn each_bind_of_a_window_of_type_1_counts_its_key_up() {
    on_each_device("window-rebind", |device| {
        let grant = Grant::new(device);
        let (mw, first) = grant.window(TYPE_1, REMOTE);
        let second = grant.bind(&mw, grant.at_b.part(0, 8, REMOTE));
        assert_eq!(second, rdma_sys::ibv_inc_rkey(first));
    });
}

#[test]
fn only_the_low_byte_of_a_key_of_type_2_is_the_programs_choice() {
    on_each_device("window-low-byte", |device| {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(TYPE_2);
        let foreign = mw.key() ^ 0x100;
        let bind = Wr::bind(1, &mw, foreign, grant.at_b.part(0, 8, REMOTE));
        grant.fails_at_b(|qp| qp.post(&bind));
    });
}

#[test]
fn a_window_grants_no_undefined_rights() {
    with_both_kinds("window-bad-bind", |device, kind| {
        for access in [1 << 20, 1 << 31] {
            let grant = Grant::new(device);
            let mw = grant.b.pd.mw(kind);
            grant.fails_at_b(|qp| {
                qp.post_bind(900, &mw, grant.at_b.part(16, 32, REMOTE | access));
            });
        }
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
fn a_bind_that_makes_no_sense_is_refused_at_its_post() {
    rdma_soft::install();
    let grant = Grant::new("soft0");
    let (one, two) = (grant.b.pd.mw(TYPE_1), grant.b.pd.mw(TYPE_2));
    let part = grant.at_b.part(0, 8, REMOTE);
    let invalid = Errno::EINVAL.raw();
    let key = one.key();
    for flags in [ibv_send_flags::IBV_SEND_INLINE, ibv_send_flags::IBV_SEND_SOLICITED] {
        assert_eq!(grant.b.qp.try_bind(1, &one, part, flags.0), invalid);
    }
    assert_eq!(one.key(), key, "a refused bind must not change the key");
    let mut nothing = Wr::bind(1, &two, two.key(), part);
    nothing.wr.__bindgen_anon_2.bind_mw.mw = std::ptr::null_mut();
    assert_eq!(grant.b.qp.try_post(&nothing), invalid);
    let reset = Side::new("soft0", &Size::default(), 8);
    assert_eq!(reset.qp.try_post(&Wr::local_invalidate(1, 7)), invalid, "not connected");
}

#[test]
fn a_bind_takes_a_slot_until_its_completion_was_polled() {
    rdma_soft::install();
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

/// Not even if the later window reuses the slot of the earlier one.
#[test]
fn a_bind_of_a_window_that_is_gone_does_not_bind_a_later_one() {
    let builder = Builder::new("windows-later").schedule(Schedule::Held);
    let device = builder.limits(Limits::default().max_mw(1).max_mr(1)).install().unwrap();
    let (a, _b) = pair_with("windows-later", &Size::default(), &Knobs::default());
    let region = a.pd.register(BYTES, BINDABLE);
    let window = a.pd.mw(TYPE_2);
    let (key, place) = (window.key_with(7), window.key() >> 8);
    a.qp.post(&Wr::bind(1, &window, key, region.part(0, BYTES, REMOTE)));
    drop(window);
    let mut windows = (0..100).map(|_| a.pd.mw(TYPE_2));
    let later = windows.find(|later| later.key() >> 8 == place);
    assert!(later.is_some());
    device.release_all();
    a.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
}

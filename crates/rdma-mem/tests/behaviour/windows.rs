//! Memory windows: ownership of the region, and binds that are refused. Tests in `rdma-qp` cover the access of peers.

#![allow(unsafe_code)]

use std::sync::Arc;

use rdma_mem::{
    AccessFlags, BindError, BindableRegion, BufferPool, Error, MemoryWindow, ProtectionDomain,
    RangeError, WindowType, open_device,
};

fn pd() -> ProtectionDomain {
    rdma_soft::install();
    open_device("soft0").unwrap().allocate_pd().unwrap()
}

fn bindable() -> AccessFlags {
    AccessFlags::new().with_local_write().with_mw_bind()
}

fn everything() -> AccessFlags {
    AccessFlags::new().with_remote_read().with_remote_write().with_remote_atomic()
}

fn window<R: BindableRegion>(region: R, kind: WindowType) -> MemoryWindow<R> {
    match MemoryWindow::allocate(region, kind) {
        Ok(window) => window,
        Err((_, error)) => panic!("{error}"),
    }
}

#[test]
fn a_device_without_windows_refuses_and_returns_the_region() {
    rdma_soft::Builder::new("no-windows")
        .limits(rdma_soft::Limits::default().max_mw(0))
        .install()
        .unwrap();
    let pd = open_device("no-windows").unwrap().allocate_pd().unwrap();
    let mut region = pd.allocate_region(64).unwrap();
    region.fill(3);
    for kind in [WindowType::One, WindowType::Two] {
        let (back, error) = MemoryWindow::allocate(region, kind).unwrap_err();
        assert!(matches!(&error, Error::NoWindows { device } if device == "no-windows"));
        assert!(error.to_string().starts_with("the device `no-windows` has no memory windows"));
        region = back;
    }
    assert_eq!(&*region, [3; 64]);
}

#[test]
fn windows_above_the_limit_of_the_device_are_refused() {
    rdma_soft::Builder::new("one-window")
        .limits(rdma_soft::Limits::default().max_mw(1))
        .install()
        .unwrap();
    let pd = open_device("one-window").unwrap().allocate_pd().unwrap();
    let region = pd.allocate_shared_region(64, bindable()).unwrap();
    let only = window(&region, WindowType::One);
    let (_, error) = MemoryWindow::allocate(&region, WindowType::Two).unwrap_err();
    assert!(error.to_string().starts_with("ibv_alloc_mw: "), "{error}");
    drop(only);
    drop(window(&region, WindowType::Two));
}

#[test]
fn a_window_has_its_region_and_gives_it_back() {
    let pd = pd();
    let region = pd.allocate_bindable_region(64).unwrap();
    let mut window = window(region, WindowType::Two);
    assert_eq!((window.kind(), window.is_bound()), (WindowType::Two, false));
    assert_eq!((window.rkey(), window.remote()), (None, None));
    window.region_mut().unwrap().fill(7);
    assert!(window.pd().is_same(&pd));
    let region = window.close().unwrap();
    assert_eq!(&*region, [7; 64]);
}

#[test]
fn a_window_keeps_its_region_alive_and_its_domain() {
    let pd = pd();
    let region = Arc::new(pd.allocate_shared_region(64, bindable()).unwrap());
    let window = window(Arc::clone(&region), WindowType::One);
    assert_eq!(Arc::strong_count(&region), 2);
    let (pd, error) = pd.close().unwrap_err();
    assert!(matches!(error, Error::StillUsed { .. }));
    drop(window);
    assert_eq!(Arc::strong_count(&region), 1);
    drop(region);
    pd.close().unwrap();
}

#[test]
fn a_bound_window_has_a_key_and_hides_the_bytes() {
    let pool = BufferPool::new(&pd());
    let (first, buffer) = (pool.allocate(100).unwrap(), pool.allocate(100).unwrap());
    let address = buffer.as_ptr().addr() as u64;
    let mut window = window(buffer, WindowType::Two);
    let bind = window.prepare_bind(10..50, everything()).unwrap();
    let remote = window.remote().unwrap();
    assert_eq!((remote.address(), remote.length()), (address + 10, 40));
    assert_eq!((remote.rkey(), window.rkey()), (bind.rkey, Some(bind.rkey)));
    assert_eq!((bind.info.addr, bind.info.length), (address + 10, 40));
    assert_eq!(bind.info.mw_access_flags, everything().bits());
    assert!(window.is_bound() && window.region().is_none() && window.region_mut().is_none());
    assert_eq!(window.prepare_bind(0..8, everything()).unwrap_err(), BindError::StillBound);
    // SAFETY: the request was dropped.
    unsafe { window.never_bound() };
    assert_eq!(window.region().unwrap().len(), 100);
    drop(first);
}

#[test]
fn each_bind_has_the_next_key_but_one_that_was_never_posted() {
    let region = pd().allocate_shared_region(64, bindable()).unwrap();
    let mut window = window(&region, WindowType::Two);
    let mut bind = |posted: bool| {
        let key = window.prepare_bind(0..8, everything()).unwrap().rkey.get();
        match posted {
            // SAFETY: it was not posted, so no peer has access in either case.
            true => unsafe { window.unbound() },
            // SAFETY: as above.
            false => unsafe { window.never_bound() },
        }
        key
    };
    let first = bind(true);
    let (second, again) = (bind(false), bind(true));
    assert_eq!((second, again), (rdma_sys::ibv_inc_rkey(first), second));
    let keys: Vec<u32> = (0..254).map(|_| bind(true)).collect();
    assert!(keys.iter().all(|key| key >> 8 == first >> 8));
    assert!(!keys.contains(&first) && !keys.contains(&second));
}

#[test]
fn a_zero_based_window_of_type_2_counts_from_0() {
    let region = pd().allocate_shared_region(64, bindable()).unwrap();
    let mut two = window(&region, WindowType::Two);
    let access = everything().with_zero_based();
    two.prepare_bind(16..48, access).unwrap();
    let remote = two.remote().unwrap();
    assert_eq!((remote.address(), remote.length()), (0, 32));
    let refused = window(&region, WindowType::One).prepare_bind(16..48, access).unwrap_err();
    assert_eq!(refused, BindError::Access { access: AccessFlags::ZERO_BASED });
}

#[test]
fn invalid_binds_are_refused_before_the_device_sees_them() {
    let pd = pd();
    let refused = |region: AccessFlags, range, access| {
        let region = pd.allocate_shared_region(64, region).unwrap();
        let mut window = window(&region, WindowType::Two);
        let error = window.prepare_bind(range, access).unwrap_err();
        assert!(!window.is_bound(), "nothing has changed");
        error
    };
    for range in [60..65, 64..65, 65..65, 0..usize::MAX, usize::MAX..usize::MAX] {
        let error = refused(bindable(), range, everything());
        assert!(matches!(error, BindError::Range(RangeError::OutOfBounds { .. })), "{error}");
    }
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..0, 64..64, 8..4] {
        assert_eq!(refused(bindable(), range, everything()), BindError::Empty);
    }
    let local = AccessFlags::new().with_local_write();
    assert_eq!(refused(local, 0..8, everything()), BindError::NotBindable);
    let read_only = AccessFlags::new().with_mw_bind();
    for access in [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC] {
        assert_eq!(refused(read_only, 0..8, access), BindError::NoLocalWrite { access });
    }
    for access in [AccessFlags::LOCAL_WRITE, AccessFlags::MW_BIND, AccessFlags::RELAXED_ORDERING] {
        let error = refused(bindable(), 0..8, access.with_remote_read());
        assert_eq!(error, BindError::Access { access });
    }
    assert_eq!(refused(bindable().with_zero_based(), 0..8, everything()), BindError::ZeroBased);
}

#[test]
fn a_region_of_another_domain_does_not_get_into_a_window() {
    let (pd, other) = (pd(), pd());
    let (own, foreign) =
        (pd.allocate_bindable_region(64).unwrap(), other.allocate_bindable_region(64).unwrap());
    let mut window = window(own, WindowType::Two);
    *window.region_mut().unwrap() = foreign;
    assert_eq!(window.prepare_bind(0..8, everything()).unwrap_err(), BindError::WrongDomain);
    *window.region_mut().unwrap() = pd.allocate_bindable_region(64).unwrap();
    window.prepare_bind(0..8, everything()).unwrap();
}

#[test]
fn only_a_bound_window_of_type_1_is_unbound() {
    let region = pd().allocate_shared_region(64, bindable()).unwrap();
    let mut one = window(&region, WindowType::One);
    assert_eq!(one.prepare_unbind().unwrap_err(), BindError::NotBound);
    one.prepare_bind(0..8, everything()).unwrap();
    assert_eq!(one.prepare_unbind().unwrap().info.length, 0);
    let mut two = window(&region, WindowType::Two);
    two.prepare_bind(0..8, everything()).unwrap();
    assert_eq!(two.prepare_unbind().unwrap_err(), BindError::Kind { kind: 2 });
}

#[test]
fn an_owned_region_is_bindable_only_if_it_was_asked_for() {
    let pd = pd();
    let mut plain = window(pd.allocate_region(64).unwrap(), WindowType::Two);
    let error = plain.prepare_bind(0..8, everything()).unwrap_err();
    assert_eq!(error, BindError::NotBindable);
    assert!(error.to_string().contains("allocate_bindable"), "{error}");
    let memory = plain.close().unwrap().close().unwrap();
    let region = pd.register_bindable(memory).unwrap();
    window(region, WindowType::Two).prepare_bind(0..8, everything()).unwrap();
}

//! Memory windows: lent to a peer, and revoked.

#![allow(unsafe_code)]

use crate::common::{DEVICES, TestPeer, forget, pair, pair_with, parts, try_connect};
use rdma_mem::{
    AccessFlags, BindError, BindableRegion, BufferPool, GatherElement, MemoryWindow,
    RemoteMemoryRegion, ScatterElement, WindowType,
};
use rdma_qp::{
    BindWindow, CompletionQueue, LocalInvalidate, PostErrorKind, QpState, ReadWorkRequest,
    ReceiveWorkRequest, SendWithInvalidate, SendWorkRequest, WcOpcode, WorkErrorCode, WorkResult,
    WriteWorkRequest,
};

fn write() -> AccessFlags {
    AccessFlags::new().with_remote_write()
}

fn window<R: BindableRegion>(region: R, kind: WindowType) -> MemoryWindow<R> {
    match MemoryWindow::allocate(region, kind) {
        Ok(window) => window,
        Err((_, error)) => panic!("{error}"),
    }
}

/// Binds a window at `end` and waits for it.
fn bind<R: BindableRegion>(
    end: &TestPeer,
    window: &mut MemoryWindow<R>,
    range: std::ops::Range<usize>,
) {
    let access = write().with_remote_read();
    // SAFETY: SAFETY.md F8: regions that show no bytes while they are bound.
    unsafe { end.qp.bind(window, range, access, 50) }.unwrap();
    let done = end.next();
    assert_eq!((done.wr_id(), done.result().unwrap().opcode()), (50, WcOpcode::BIND_MW));
}

fn invalidate(end: &TestPeer, window: &mut MemoryWindow<impl BindableRegion>) {
    let request = LocalInvalidate::new(window.rkey().unwrap());
    // SAFETY: a request without memory.
    unsafe { end.qp.post(request, 51) }.unwrap();
    let done = end.next();
    assert_eq!((done.wr_id(), done.result().unwrap().opcode()), (51, WcOpcode::LOCAL_INV));
    // SAFETY: it has completed with success.
    unsafe { window.unbound() };
}

/// Returns the result of a write of eight nines by `end`.
fn write_nines(end: &TestPeer, to: RemoteMemoryRegion) -> WorkResult {
    end.board.write(0, &[9; 8]).unwrap();
    let data = [GatherElement::from(end.board.element(0..8).unwrap())];
    // SAFETY: SAFETY.md F8: a shared region, which outlives the request.
    unsafe { end.qp.post_write(WriteWorkRequest::new(&data, to), 60) }.unwrap();
    end.next().result()
}

fn assert_no_access(end: &TestPeer, to: RemoteMemoryRegion) {
    let error = write_nines(end, to).unwrap_err();
    assert_eq!(error.code(), WorkErrorCode::RemoteAccessError);
}

#[test]
fn a_window_lends_a_part_of_a_region_and_takes_it_back() {
    for device in DEVICES {
        for kind in [WindowType::One, WindowType::Two] {
            let (a, b) = pair(device);
            let mut window = window(b.pd.allocate_bindable_region(64).unwrap(), kind);
            window.region_mut().unwrap().fill(1);
            bind(&b, &mut window, 16..32);
            let remote = window.remote().unwrap();
            write_nines(&a, remote).unwrap();
            if kind == WindowType::Two {
                invalidate(&b, &mut window);
            } else {
                // SAFETY: a request without memory.
                unsafe { b.qp.unbind(&mut window, 52) }.unwrap();
                b.next().result().unwrap();
                // SAFETY: it has completed with success.
                unsafe { window.unbound() };
            }
            let mut expected = [1; 64];
            expected[16..24].fill(9);
            assert_eq!(**window.region().unwrap(), expected);
            assert_no_access(&a, remote);
            assert_eq!(**window.region().unwrap(), expected);
        }
    }
}

/// Hole 16: a peer with the key of a whole arena can access every neighbour, also after its lease.
#[test]
fn h16_leases_are_revoked_by_invalidation_and_reach_no_neighbour() {
    for device in DEVICES {
        let lend = |past_the_end: bool| {
            let (a, b) = pair(device);
            let pool = BufferPool::new(&b.pd);
            let mut buffers = [(); 3].map(|()| pool.allocate(64).unwrap());
            buffers.iter_mut().for_each(|buffer| buffer.fill(1));
            let [before, lent, behind] = buffers;
            let mut window = window(lent, WindowType::Two);
            bind(&b, &mut window, 0..64);
            let remote = window.remote().unwrap();
            if past_the_end {
                // The lease is valid, but not for adjacent bytes in the same registered region.
                let forged = RemoteMemoryRegion::new(remote.address() + 64, 8, remote.rkey());
                assert_no_access(&a, forged);
            } else {
                write_nines(&a, remote).unwrap();
                invalidate(&b, &mut window);
                window.region_mut().unwrap().fill(2);
                // The peer kept the descriptor of the lease.
                assert_no_access(&a, remote);
                assert_eq!(**window.region().unwrap(), [2; 64]);
            }
            assert!(before.iter().chain(behind.iter()).all(|&byte| byte == 1));
        };
        lend(true);
        lend(false);
    }
}

#[test]
fn closing_a_window_ends_the_access_without_a_completion() {
    for device in DEVICES {
        for kind in [WindowType::One, WindowType::Two] {
            let (a, b) = pair(device);
            let mut window = window(b.pd.allocate_bindable_region(64).unwrap(), kind);
            bind(&b, &mut window, 0..64);
            let remote = window.remote().unwrap();
            let mut region = window.close().unwrap();
            region.fill(3);
            assert_no_access(&a, remote);
            assert_eq!(*region, [3; 64]);
        }
    }
}

#[test]
fn a_dropped_window_goes_before_its_region() {
    for device in DEVICES {
        for kind in [WindowType::One, WindowType::Two] {
            let (a, b) = pair(device);
            let mut window = window(b.pd.allocate_bindable_region(64).unwrap(), kind);
            bind(&b, &mut window, 0..64);
            let remote = window.remote().unwrap();
            // A region with a window could not be deregistered, and would keep its domain.
            drop(window);
            assert_no_access(&a, remote);
            let TestPeer { qp, cq, pd, board } = b;
            drop((qp, cq, board));
            pd.close().unwrap();
        }
    }
}

/// A forgotten window stays bound, and its region registered.
#[test]
fn a_forgotten_window_keeps_its_region_registered() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let access = AccessFlags::new().with_local_write().with_mw_bind();
        let region = Box::into_raw(Box::new(b.pd.allocate_shared_region(64, access).unwrap()));
        // SAFETY: SAFETY.md F1: it is alive while it is used through this reference.
        let mut window = window(unsafe { &*region }, WindowType::Two);
        bind(&b, &mut window, 0..64);
        let remote = window.remote().unwrap();
        // The window is neither used nor dropped after this.
        forget(window);
        // SAFETY: SAFETY.md F1: created above, and converted back once.
        let region = unsafe { Box::from_raw(region) };
        let (region, error) = region.close().unwrap_err();
        assert!(error.to_string().contains("EBUSY"), "{error}");
        write_nines(&a, remote).unwrap();
        let mut bytes = [0; 8];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 8]);
        // The end of the queue pair ends its windows.
        b.qp.close().unwrap();
        region.close().unwrap();
    }
}

#[test]
fn a_peer_gives_a_window_back_with_its_message() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let mut window = window(b.pd.allocate_bindable_region(64).unwrap(), WindowType::Two);
        bind(&b, &mut window, 0..64);
        let remote = window.remote().unwrap();
        let mut room = [ScatterElement::from(b.board.element(0..64).unwrap())];
        // SAFETY: SAFETY.md F8: a shared region, which outlives the request.
        unsafe { b.qp.post_receive(ReceiveWorkRequest::new(&mut room), 70) }.unwrap();
        a.board.write(0, b"done").unwrap();
        let data = [GatherElement::from(a.board.element(0..4).unwrap())];
        let send = SendWithInvalidate::new(&data, remote.rkey());
        // SAFETY: SAFETY.md F8: as above.
        unsafe { a.qp.post(send, 71) }.unwrap();
        assert_eq!(a.next().result().unwrap().invalidated_rkey(), None);
        let success = b.next().result().unwrap();
        assert_eq!(success.invalidated_rkey(), window.rkey());
        assert_eq!((success.immediate_data(), success.scattered_bytes()), (None, Some(4)));
        assert_eq!(b.read(0), *b"done");
        // SAFETY: the receive reported this key.
        unsafe { window.unbound() };
        // Bound again, it has another key, and the previous one stays invalid.
        bind(&b, &mut window, 0..64);
        assert_ne!(window.rkey(), Some(remote.rkey()));
        write_nines(&a, window.remote().unwrap()).unwrap();
        assert_no_access(&a, remote);
    }
}

#[test]
fn a_bind_is_executed_before_a_later_send_of_its_key() {
    for device in DEVICES {
        let (a, b) = pair(device);
        // SAFETY: a request without memory.
        unsafe { a.qp.post_receive(ReceiveWorkRequest::only_immediate(), 80) }.unwrap();
        let mut window = window(b.pd.allocate_bindable_region(64).unwrap(), WindowType::Two);
        let bind = BindWindow::new(&mut window, 8..16, write()).unwrap();
        let remote = bind.remote();
        let tell = SendWorkRequest::only_immediate(remote.rkey().get());
        let mut batch = [bind.signaled(false).fence().with_id(81), tell.with_id(82)];
        // SAFETY: SAFETY.md F8: the window's own region, and requests without elements.
        unsafe { b.qp.post_batch(&mut batch) }.unwrap();
        let told = a.next().result().unwrap().immediate_data().unwrap();
        write_nines(&a, RemoteMemoryRegion::new(remote.address(), 8, told)).unwrap();
        assert_eq!(b.next().wr_id(), 82, "the bind was unsignaled");
        assert_eq!(window.remote(), Some(remote));
    }
}

#[test]
fn an_unbind_through_another_queue_pair_does_not_wait_for_the_bind() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let own = CompletionQueue::create(b.pd.context(), 256).unwrap();
        let (_c, other) = try_connect(parts(device), (b.pd.clone(), own), |knobs| knobs).unwrap();
        let mut window = window(b.pd.allocate_bindable_region(64).unwrap(), WindowType::One);
        // SAFETY: a request without memory. It waits for a receive, and later requests wait too.
        unsafe { b.qp.post_send(SendWorkRequest::only_immediate(1), 90) }.unwrap();
        // SAFETY: SAFETY.md F8: the window's own region.
        unsafe { b.qp.bind(&mut window, 0..64, write(), 91) }.unwrap();
        let remote = window.remote().unwrap();
        // SAFETY: a request without memory.
        unsafe { other.qp.unbind(&mut window, 92) }.unwrap();
        assert!(
            other.next().result().is_ok() && window.is_bound(),
            "the window is not informed yet"
        );
        // SAFETY: a request without memory.
        unsafe { a.qp.post_receive(ReceiveWorkRequest::only_immediate(), 93) }.unwrap();
        assert_eq!((b.next().wr_id(), b.next().wr_id(), a.next().wr_id()), (90, 91, 93));
        write_nines(&a, remote).unwrap();
        assert!(window.region().is_none(), "the peer has it still");
    }
}

#[test]
fn rights_and_bounds_are_those_of_the_window() {
    for device in DEVICES {
        let (a, b) = pair(device);
        let mut lent = window(b.pd.allocate_bindable_region(64).unwrap(), WindowType::Two);
        // SAFETY: SAFETY.md F8: the window's own region.
        unsafe { b.qp.bind(&mut lent, 0..8, write(), 1) }.unwrap();
        b.next().result().unwrap();
        let remote = lent.remote().unwrap();
        write_nines(&a, remote).unwrap();
        let mut room = [ScatterElement::from(a.board.element(0..8).unwrap())];
        // SAFETY: SAFETY.md F8: a shared region, which outlives the request.
        unsafe { a.qp.post_read(ReadWorkRequest::new(&mut room, remote), 2) }.unwrap();
        let error = a.next().result().unwrap_err();
        assert_eq!(error.code(), WorkErrorCode::RemoteAccessError);
    }
}

#[test]
fn refused_requests_leave_the_window_unbound_and_the_queue_pair_unchanged() {
    for device in DEVICES {
        let (_a, b) = pair(device);
        let (foreign, _) = parts(device);
        let refused = |window: &mut MemoryWindow<rdma_mem::OwnedRegion>, range| {
            // SAFETY: SAFETY.md F8: the window's own region.
            let error = unsafe { b.qp.bind(window, range, write(), 1) }.unwrap_err();
            assert_eq!((error.kind(), error.posted()), (PostErrorKind::Window, 0), "{error}");
            assert!(!window.is_bound());
            error.to_string()
        };
        for kind in [WindowType::One, WindowType::Two] {
            let mut outside = window(b.pd.allocate_bindable_region(64).unwrap(), kind);
            let text = refused(&mut outside, 60..70);
            assert_eq!(text, "10 bytes at offset 60 are not within a region of 64 bytes");
            let mut plain = window(b.pd.allocate_region(64).unwrap(), kind);
            assert!(refused(&mut plain, 0..8).contains("with_mw_bind"));
            let mut elsewhere = window(foreign.allocate_bindable_region(64).unwrap(), kind);
            assert!(refused(&mut elsewhere, 0..8).contains("different protection domains"));
        }
        let mut elsewhere = window(foreign.allocate_bindable_region(64).unwrap(), WindowType::Two);
        let request = BindWindow::new(&mut elsewhere, 0..8, write()).unwrap();
        // SAFETY: SAFETY.md F8: the window's own region.
        let error = unsafe { b.qp.post(request, 1) }.unwrap_err();
        assert_eq!((error.kind(), error.posted()), (PostErrorKind::Window, 0), "{error}");
        let mut one = window(b.pd.allocate_bindable_region(64).unwrap(), WindowType::One);
        let error = BindWindow::new(&mut one, 0..8, write()).unwrap_err();
        assert_eq!(error, BindError::Kind { kind: 1 });
        let mut two = window(b.pd.allocate_bindable_region(64).unwrap(), WindowType::Two);
        bind(&b, &mut two, 0..8);
        // SAFETY: a request without memory.
        let error = unsafe { b.qp.unbind(&mut two, 1) }.unwrap_err();
        assert_eq!(error.kind(), PostErrorKind::Window);
        // SAFETY: SAFETY.md F8: the window's own region.
        let error = unsafe { b.qp.bind(&mut two, 0..8, write(), 1) }.unwrap_err();
        assert!(two.is_bound() && error.to_string().starts_with("the window is bound"), "{error}");
        assert_eq!(b.qp.state().unwrap(), QpState::RTS);
        invalidate(&b, &mut two);
    }
}

#[test]
fn a_full_queue_leaves_the_window_unbound() {
    for kind in [WindowType::One, WindowType::Two] {
        let (_a, b) = pair_with("soft0", |builder| builder.max_send_wr(1));
        let mut windows =
            [(); 2].map(|()| window(b.pd.allocate_bindable_region(64).unwrap(), kind));
        // SAFETY: SAFETY.md F8: the window's own region, here and below.
        unsafe { b.qp.bind(&mut windows[0], 0..8, write(), 1) }.unwrap();
        // SAFETY: as above.
        let error = unsafe { b.qp.bind(&mut windows[1], 0..8, write(), 2) }.unwrap_err();
        assert_eq!(error.kind(), PostErrorKind::WouldBlock, "{error}");
        assert!(windows[0].is_bound() && !windows[1].is_bound());
        b.next().result().unwrap();
        bind(&b, &mut windows[1], 0..8);
    }
}

#[test]
fn invalidating_an_invalid_key_fails_the_queue_pair() {
    for device in DEVICES {
        let (a, b) = pair(device);
        // SAFETY: a request without memory.
        unsafe { a.qp.post(LocalInvalidate::new(a.board.rkey()), 1) }.unwrap();
        let error = a.next().result().unwrap_err();
        assert_eq!(error.code(), WorkErrorCode::MemoryWindowBindError);
        assert_eq!(a.qp.state().unwrap(), QpState::ERR);
        assert_eq!(b.qp.state().unwrap(), QpState::RTS);
    }
}

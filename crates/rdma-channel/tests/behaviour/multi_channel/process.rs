//! Endings that end the process because of one of several queue pairs, and endings in a process that does not own the
//! channels.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use rdma_channel::{
    CloseReason, PeerReceiveWorkRequest, PeerSendWorkRequest, ScopeError, TransportError,
};
use rdma_mem::GatherElement;

use crate::common::child::{must_abort, must_live, wait_for};
use crate::common::provider::{KEPT, POLL, STAY, faulty};
use crate::common::stuck::Handles;
use crate::multi_channel::{DRAIN, HELD, LATE, Star, everything};

fn star(device: &str) -> Star {
    Star::on(&faulty(device), |builder| builder)
}

/// Runs a scope with three requests to each peer, which do not complete, and `leave` at its end.
fn leave(device: &str, kept: usize, leave: impl FnOnce()) {
    let mut star = star(device);
    let (mut stuck, qpn) = (star.stuck(), star.qpns[kept].get());
    let _ = star.center.scope(|s| {
        for (peer, stuck) in stuck.iter_mut().enumerate() {
            stuck.post_to(peer, s, Handles::Dropped)?;
        }
        KEPT.set(Some(qpn));
        leave();
        Ok::<(), TransportError>(())
    });
}

#[test]
fn a_scope_with_one_indestructible_queue_pair_aborts() {
    let test = "multi_channel::process::a_scope_with_one_indestructible_queue_pair_aborts";
    must_abort(test, |device| leave(device, 1, || STAY.set(true)));
}

#[test]
fn a_panic_does_not_unwind_out_of_a_scope_that_has_to_abort() {
    let test = "multi_channel::process::a_panic_does_not_unwind_out_of_a_scope_that_has_to_abort";
    must_abort(test, |device| {
        leave(device, 2, || {
            POLL.set(Some(-1));
            panic!("unwinding would free the memory")
        });
    });
}

#[test]
fn a_collective_with_one_indestructible_queue_pair_aborts() {
    let test = "multi_channel::process::a_collective_with_one_indestructible_queue_pair_aborts";
    must_abort(test, |device| {
        let mut star = star(device);
        let mut memory = star.pd.allocate_region(8).unwrap();
        let mut room = memory.as_slice_mut();
        let mut room = [room.scatter_element()];
        KEPT.set(Some(star.qpns[2].get()));
        STAY.set(true);
        let only = [0, 1].map(PeerReceiveWorkRequest::only_immediate);
        let rooms = only.into_iter().chain([PeerReceiveWorkRequest::new(2, &mut room)]);
        let _ = star.center.within(DRAIN).gather_receive(rooms);
    });
}

/// Memory in flight is then not borrowed: it is leaked with its queue pair, and the others are released.
#[test]
fn an_indestructible_queue_pair_of_dropped_channels_keeps_its_unpolled_work() {
    let test = "multi_channel::process::an_indestructible_queue_pair_of_dropped_channels_keeps_its_unpolled_work";
    must_live(test, |device| {
        let star = star(device);
        let data = star.pd.allocate_shared_region(8, everything(&star.pd)).unwrap();
        let element = [GatherElement::from(data.element(0..8).unwrap())];
        for peer in 0..3 {
            let request = PeerSendWorkRequest::new(peer, &element);
            // SAFETY: SAFETY.md F8: the region is shared, and outlives the checks of the test.
            drop(unsafe { star.center.send_unpolled(request) }.unwrap());
        }
        let under_way =
            || star.qpns.iter().map(|&qpn| star.device.in_flight(qpn)).collect::<Vec<_>>();
        assert_eq!(under_way(), [1, 1, 1]);
        KEPT.set(Some(star.qpns[1].get()));
        drop(star.center);
        let good = under_way() == [0, 1, 0];
        // SAFETY: SAFETY.md F15: no work is left, and a leak checker does not check the intended leak.
        unsafe { libc::_exit(i32::from(!good)) };
    });
}

#[test]
fn a_forked_child_that_leaves_a_scope_touches_nothing_of_its_parents_peers() {
    for device in LATE {
        let mut star = Star::new(device);
        let (mut stuck, soft, qpns) = (star.stuck(), star.device, star.qpns.clone());
        let mut child = false;
        let begin = Instant::now();
        let left = star.center.scope(|s| {
            for (peer, stuck) in stuck.iter_mut().enumerate() {
                stuck.post_to(peer, s, Handles::Forgotten)?;
            }
            // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
            let pid = unsafe { libc::fork() };
            child = pid == 0;
            if child {
                // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
                unsafe { libc::alarm(120) };
            } else {
                wait_for(pid);
                assert!(qpns.iter().all(|&qpn| soft.in_flight(qpn) == 2), "nothing has changed");
            }
            Ok::<(), TransportError>(())
        });
        let Err(ScopeError::AutoPollError(errors)) = &left else { panic!("{left:?}") };
        let peers: Vec<_> = errors.iter().map(|lost| lost.peer.unwrap()).collect();
        let named = peers == [0, 0, 0, 1, 1, 1, 2, 2, 2];
        if child {
            let forked = Some(CloseReason::Forked);
            let sends = [0, 2].map(|peer| PeerSendWorkRequest::only_immediate(peer, 1));
            let good = begin.elapsed() < Duration::from_secs(60)
                && named
                && (0..3).all(|peer| star.center.closed(peer).unwrap() == forked)
                && matches!(
                    star.center.scatter_send(sends),
                    Err(TransportError::Closed { reason: CloseReason::Forked, .. })
                );
            // SAFETY: SAFETY.md F15: no other thread runs in this child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        assert!(named, "{peers:?}");
        for peer in 0..3 {
            let closed = star.center.closed(peer).unwrap();
            assert!(matches!(closed, Some(CloseReason::Timeout { .. })), "{closed:?}");
        }
        star.assert_given_back(stuck);
    }
}

/// Its completions go to the parent. This test runs in a child process, on the device without a thread. The forked
/// child posts, and would otherwise wait for a lock that another thread held at the fork.
#[test]
fn a_collective_without_a_limit_ends_in_a_forked_child() {
    must_live(
        "multi_channel::process::a_collective_without_a_limit_ends_in_a_forked_child",
        |device| {
            if device != HELD {
                return;
            }
            let mut star = Star::new(device);
            // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
                unsafe { libc::alarm(120) };
                let rooms = [0, 1, 2].map(PeerReceiveWorkRequest::only_immediate);
                let error = star.center.gather_receive(rooms).unwrap_err();
                let good =
                    matches!(error, TransportError::Closed { reason: CloseReason::Forked, .. });
                // SAFETY: SAFETY.md F15: no other thread runs in this child.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            wait_for(pid);
            assert_eq!(star.open(), [0, 1, 2]);
            star.assert_usable(&[0, 1, 2]);
        },
    );
}

/// This test uses the device without a thread, like the one above.
#[test]
fn a_forked_child_neither_adds_nor_removes_its_parents_peers() {
    must_live(
        "multi_channel::process::a_forked_child_neither_adds_nor_removes_its_parents_peers",
        |device| {
            if device != HELD {
                return;
            }
            let mut star = Star::new(device);
            star.center.remove(1).unwrap();
            let prepared = star.center.prepare().unwrap();
            // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: SAFETY.md F15: the alarm ends a child that hangs.
                unsafe { libc::alarm(120) };
                let end = prepared.endpoint();
                let errors = [
                    star.center.add(prepared, end).unwrap_err(),
                    star.center.prepare().unwrap_err(),
                    star.center.remove(0).unwrap_err(),
                ];
                let is_forked = |error: &TransportError| {
                    matches!(error, TransportError::Closed { reason: CloseReason::Forked, .. })
                };
                // SAFETY: SAFETY.md F15: no other thread runs in this child.
                unsafe { libc::_exit(i32::from(!errors.iter().all(is_forked))) };
            }
            wait_for(pid);
            let end = prepared.endpoint();
            assert_eq!(star.center.add(prepared, end).unwrap(), 1); // to itself
            star.assert_usable(&[0, 2]);
        },
    );
}

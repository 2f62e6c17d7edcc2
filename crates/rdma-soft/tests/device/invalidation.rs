//! How the access that a memory window gives is taken back: by invalidation here or by the peer, by
//! deallocation, by the end of its queue pair.

use std::any::Any;
use std::time::Instant;

use rdma_soft::{Schedule, SoftDevice};
use rdma_sys::{
    Errno, ibv_event_type as Event, ibv_mw_bind_info, ibv_mw_type, ibv_qp_type, ibv_wc_opcode,
    ibv_wc_status as Status,
};

use crate::rig::connect::{Knobs, Side, connect_unreliably};
use crate::rig::memory::deregister;
use crate::rig::post::Wr;
use crate::rig::window::{AT_A, AT_B, BINDABLE, BYTES, Grant, REMOTE, TYPE_1, TYPE_2, invalidated};
use crate::rig::{
    LOCAL_WRITE, PATIENCE, REMOTE_WRITE, Size, on_each_device, on_each_held_device, soft,
};

/// On devices of all schedules.
fn everywhere(name: &str, test: impl Fn(&str)) {
    on_each_device(name, &test);
    on_each_held_device(name, |device: &SoftDevice| test(device.name()));
}

#[test]
fn after_a_local_invalidation_has_completed_the_peer_touches_nothing() {
    everywhere("invalidate-local", |device| {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE);
        grant.allows(&grant.write(key, 16, 8));
        grant.local_invalidate(key);
        grant.at_b.fill(AT_B);
        grant.refuses(&grant.write(key, 16, 8));
        grant.at_b.assert_filled(AT_B);
    });
}

#[test]
fn on_an_unreliable_connection_what_comes_after_an_invalidation_is_dropped() {
    everywhere("invalidate-unreliable", |device| {
        let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
        let (a, b) = (Side::new(device, &size, 64), Side::new(device, &size, 64));
        let knobs = Knobs { access: REMOTE_WRITE, ..Knobs::default() };
        connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &knobs);
        connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &knobs);
        let at_a = a.pd.register_filled(vec![AT_A; BYTES], 0);
        let at_b = b.pd.register_filled(vec![AT_B; BYTES], BINDABLE);
        let grant = Grant { at_a, at_b, a, b };
        let (_mw, key) = grant.window(TYPE_2, REMOTE_WRITE);
        grant.allows(&grant.write(key, 16, 8));
        assert_eq!(grant.at_b.bytes()[16], AT_A);
        grant.local_invalidate(key);
        grant.at_b.fill(AT_B);
        // Nobody tells the sender.
        grant.allows(&grant.write(key, 16, 8));
        grant.at_b.assert_filled(AT_B);
    });
}

#[test]
fn an_invalidated_window_can_be_bound_again_and_by_another_queue_pair() {
    everywhere("invalidate-rebind", |device| {
        let grant = Grant::new(device);
        let (mw, key) = grant.window(TYPE_2, REMOTE);
        grant.local_invalidate(key);
        let again = grant.bind(&mw, grant.at_b.part(0, 8, REMOTE));
        assert_eq!(again, key, "the choice of who binds");
        grant.allows(&grant.write(again, 0, 8));
        grant.local_invalidate(again);
        let (c, d) = grant.second_pair(device);
        d.qp.post(&Wr::bind(1, &mw, key, grant.at_b.part(16, 8, REMOTE)));
        soft(device).release_all();
        d.send_cq.expect_success(1);
        grant.refuses(&grant.write(key, 16, 8));
        drop(c);
    });
}

#[test]
fn a_send_invalidates_at_its_receiver_before_the_receive_completes() {
    everywhere("invalidate-send", |device| {
        for length in [0, 24] {
            let grant = Grant::new(device);
            let (mw, key) = grant.window(TYPE_2, REMOTE);
            let room = grant.b.pd.register(BYTES, LOCAL_WRITE);
            grant.b.qp.post_receive(10, &[room.sge(0, BYTES)]);
            let write = grant.write(key, 16, 8);
            let sges = [grant.at_a.sge(0, length)];
            let send = Wr::send_with_invalidate(2, &sges, key);
            assert_eq!(grant.a.qp.try_post_list(&[write.clone(), send]), Ok(()));
            soft(device).release_all();
            grant.a.send_cq.expect_success(1);
            let wc = grant.a.send_cq.expect_success(2);
            assert_eq!((wc.opcode, invalidated(&wc)), (ibv_wc_opcode::IBV_WC_SEND, None));
            let wc = grant.b.receive_cq.expect_success(10);
            assert_eq!((wc.opcode, invalidated(&wc)), (ibv_wc_opcode::IBV_WC_RECV, Some(key)));
            assert_eq!((wc.byte_len as usize, wc.wc_flags), (length, 8));
            assert_eq!(room.bytes()[..length], vec![AT_A; length]);
            grant.at_b.fill(AT_B);
            // It can be bound again, so it is no longer bound.
            let again = Wr::bind(3, &mw, mw.key_with(9), grant.at_b.part(0, 8, REMOTE));
            grant.b.qp.post(&again);
            soft(device).release_all();
            grant.b.send_cq.expect_success(3);
            grant.refuses(&write);
        }
    });
}

/// Keys that cannot be invalidated, and what else must live as long.
fn stubborn_keys(grant: &Grant, device: &str) -> Vec<(&'static str, u32, Box<dyn Any>)> {
    let region = grant.at_b.key();
    let (one, first) = grant.window(TYPE_1, REMOTE);
    let (gone, second) = grant.window(TYPE_2, REMOTE);
    grant.local_invalidate(second);
    let new = grant.b.pd.mw(TYPE_2);
    let bound = grant.b.pd.mw(TYPE_2);
    let other_low = bound.key_with(2);
    grant.b.qp.post(&Wr::bind(1, &bound, bound.key_with(1), grant.at_b.part(0, 8, REMOTE)));
    let (c, d) = grant.second_pair(device);
    let others = grant.b.pd.mw(TYPE_2);
    d.qp.post(&Wr::bind(1, &others, others.key(), grant.at_b.part(0, 8, REMOTE)));
    soft(device).release_all();
    grant.b.send_cq.expect_success(1);
    d.send_cq.expect_success(1);
    let (unbound, foreign) = (new.key(), others.key());
    vec![
        ("a region", region, Box::new(())),
        ("a window of type 1", first, Box::new(one)),
        ("an invalidated window", second, Box::new(gone)),
        ("a window that was never bound", unbound, Box::new(new)),
        ("another low byte", other_low, Box::new(bound)),
        ("a window of another queue pair", foreign, Box::new((others, c, d))),
        ("nothing", 0x1234_5678, Box::new(())),
    ]
}

#[test]
fn a_local_invalidation_of_any_other_key_fails() {
    everywhere("invalidate-wrong", |device| {
        for n in 0..7 {
            let grant = Grant::new(device);
            let keys = stubborn_keys(&grant, device);
            let (what, key, _) = &keys[n];
            println!("{what}");
            grant.fails_at_b(|qp| qp.post(&Wr::local_invalidate(1, *key).unsignaled()));
        }
    });
}

#[test]
fn a_key_with_another_low_byte_unbinds_nothing() {
    everywhere("invalidate-low-byte", |device| {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE);
        grant.fails_at_b(|qp| qp.post(&Wr::local_invalidate(1, key ^ 1)));
        assert_eq!(grant.at_b.try_deregister(), Errno::EBUSY.raw());
    });
}

#[test]
fn a_send_that_invalidates_any_other_key_is_delivered_and_ends_its_receiver() {
    everywhere("invalidate-send-wrong", |device| {
        for n in 0..7 {
            let grant = Grant::new(device);
            let keys = stubborn_keys(&grant, device);
            let (what, key, _) = &keys[n];
            println!("{what}");
            let room = grant.b.pd.register(BYTES, LOCAL_WRITE);
            grant.b.qp.post_receive(10, &[room.sge(0, BYTES)]);
            grant.b.qp.post_receive(11, &[]);
            let sges = [grant.at_a.sge(0, 8)];
            grant.a.qp.post(&Wr::send_with_invalidate(2, &sges, *key));
            soft(device).release_all();
            grant.a.send_cq.expect_success(2);
            grant.b.receive_cq.expect(10, Status::IBV_WC_REM_INV_REQ_ERR);
            grant.b.receive_cq.expect_flushed([11]);
            grant.b.qp.wait_for_error();
            let events = grant.b.context.async_events();
            let expected = (Event::IBV_EVENT_QP_REQ_ERR, grant.b.qp.0.addr());
            assert!(events.contains(&expected), "{events:?}");
            assert_eq!(room.bytes()[..8], [AT_A; 8]);
        }
    });
}

#[test]
fn a_key_that_cannot_be_invalidated_still_works() {
    everywhere("invalidate-not", |device| {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_1, REMOTE);
        let (c, d) = grant.second_pair(device);
        d.qp.post(&Wr::local_invalidate(1, key));
        soft(device).release_all();
        d.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
        grant.allows(&grant.write(key, 16, 8));
        let (c2, d2) = grant.second_pair(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE);
        d2.qp.post(&Wr::local_invalidate(1, key));
        soft(device).release_all();
        d2.send_cq.expect(1, Status::IBV_WC_MW_BIND_ERR);
        grant.allows(&grant.write(key, 16, 8));
        drop((c, c2));
    });
}

/// After `end`, A's write through a window of this kind touches nothing, and the region that it was
/// bound to can go.
fn ends_access(name: &str, kind: ibv_mw_type, end: impl Fn(&Grant, crate::rig::window::Mw)) {
    everywhere(name, |device| {
        let grant = Grant::new(device);
        let (mw, key) = grant.window(kind, REMOTE);
        let write = grant.write(key, 16, 8);
        end(&grant, mw);
        let before = grant.at_b.bytes();
        let status = grant.try_by_a(&write);
        assert!(
            [Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_RETRY_EXC_ERR].contains(&status),
            "{status:?}"
        );
        assert_eq!(grant.at_b.bytes(), before);
        let Grant { at_a, at_b, a, b } = grant;
        at_b.deregister();
        drop((at_a, a, b));
    });
}

#[test]
fn deallocation_ends_a_bound_window() {
    for (kind, name) in [(TYPE_1, "dealloc-one"), (TYPE_2, "dealloc-two")] {
        ends_access(name, kind, |_, mw| drop(mw));
    }
}

#[test]
fn a_window_of_type_2_ends_with_its_queue_pair() {
    ends_access("window-qp-reset", TYPE_2, |grant, mw| {
        grant.b.qp.to_reset();
        // Bound to nobody, it can be bound by somebody else.
        let (c, d) = grant.second_pair(grant.b.context.name());
        d.qp.post(&Wr::bind(1, &mw, mw.key(), grant.at_b.part(0, 8, REMOTE)));
        soft(grant.b.context.name()).release_all();
        d.send_cq.expect_success(1);
        drop((c, d));
        assert_eq!(grant.b.qp.state(), rdma_sys::ibv_qp_state::IBV_QPS_RESET);
    });
    everywhere("window-qp-destroy", |device| {
        let grant = Grant::new(device);
        let (_mw, key) = grant.window(TYPE_2, REMOTE);
        let write = grant.write(key, 16, 8);
        let Grant { at_a, at_b, a, mut b } = grant;
        assert_eq!(at_b.try_deregister(), Errno::EBUSY.raw());
        b.qp.destroy();
        assert_eq!(at_b.deregister(), [AT_B; BYTES]);
        a.qp.post(&write);
        drop(_mw);
        drop((at_a, a, b));
    });
}

#[test]
fn a_window_of_type_1_outlives_the_queue_pair_that_bound_it() {
    everywhere("window-survives", |device| {
        let grant = Grant::new(device);
        let mw = grant.b.pd.mw(TYPE_1);
        let (c, d) = grant.second_pair(device);
        let key = d.qp.post_bind(1, &mw, grant.at_b.part(16, 8, REMOTE));
        soft(device).release_all();
        d.send_cq.expect_success(1);
        drop((d, c));
        grant.allows(&grant.write(key, 16, 8));
    });
}

#[test]
fn the_error_state_leaves_windows_bound_but_out_of_reach() {
    everywhere("window-error", |device| {
        let grant = Grant::new(device);
        let (mw, key) = grant.window(TYPE_2, REMOTE);
        grant.b.qp.to_error();
        assert_eq!(grant.at_b.try_deregister(), Errno::EBUSY.raw());
        assert_eq!(grant.try_by_a(&grant.write(key, 16, 8)), Status::IBV_WC_RETRY_EXC_ERR);
        grant.at_b.assert_filled(AT_B);
        drop(mw);
        let Grant { at_a, at_b, a, b } = grant;
        at_b.deregister();
        drop((at_a, a, b));
    });
}

#[test]
fn a_write_that_was_half_done_does_not_go_on_after_its_window_is_taken_back() {
    on_each_held_device("invalidate-half", |device| {
        for way in 0..4 {
            let grant = Grant::new(device.name());
            let kind = if way == 3 { TYPE_1 } else { TYPE_2 };
            let (mw, key) = grant.window(kind, REMOTE);
            grant.a.qp.post(&grant.write(key, 16, 32));
            assert!(device.release_half(grant.a.qp.qpn()));
            let release = |side: &Side| assert_eq!(device.release(side.qp.qpn(), 1), 1);
            let mut mw = Some(mw);
            match way {
                0 => {
                    grant.b.qp.post(&Wr::local_invalidate(5, key));
                    release(&grant.b);
                    grant.b.send_cq.expect_success(5);
                }
                1 => drop(mw.take()),
                2 => grant.b.qp.to_reset(),
                _ => {
                    let nothing = grant.at_b.part(0, 0, 0);
                    grant.b.qp.post_bind(5, mw.as_ref().unwrap(), nothing);
                    release(&grant.b);
                    grant.b.send_cq.expect_success(5);
                }
            }
            let mut half = vec![AT_B; BYTES];
            half[16..32].fill(AT_A);
            assert_eq!(grant.at_b.bytes(), half);
            device.release_all();
            let status = grant.a.send_cq.next().status;
            assert_ne!(status, Status::IBV_WC_SUCCESS, "way {way}");
            assert_eq!(grant.at_b.bytes(), half, "way {way}");
        }
    });
}

/// How B takes a window back.
#[derive(Clone, Copy)]
enum Way {
    Invalidate,
    Unbind,
    Deallocate,
}

/// A peer writes all the time while its window is taken back, after which the region is deregistered and
/// its memory is the test's.
fn race(device: &str, way: Way, spins: u32) {
    let grant = Grant::new(device);
    let kind = if let Way::Invalidate = way { TYPE_2 } else { TYPE_1 };
    let mut lent = vec![AT_B; BYTES];
    let region = grant.b.pd.try_register(lent.as_mut_ptr(), BYTES, BINDABLE).unwrap();
    let mw = grant.b.pd.mw(kind);
    let start = lent.as_ptr().addr() as u64;
    let part =
        ibv_mw_bind_info { mr: region, addr: start, length: BYTES as u64, mw_access_flags: REMOTE };
    let key = grant.bind(&mw, part);
    std::thread::scope(|threads| {
        let grant = &grant;
        let writer = threads.spawn(move || {
            let (a, write) = (&grant.a, grant.write(key, 0, BYTES).remote(start, key));
            let end = Instant::now() + PATIENCE;
            while Instant::now() < end {
                a.qp.post(&write);
                match a.send_cq.next().status {
                    Status::IBV_WC_SUCCESS => {}
                    status => return status,
                }
            }
            panic!("it still writes");
        });
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        match way {
            Way::Invalidate => grant.local_invalidate(key),
            Way::Unbind => assert_ne!(grant.bind(&mw, ibv_mw_bind_info::default()), key),
            Way::Deallocate => {}
        }
        let left = if let Way::Deallocate = way {
            drop(mw);
            None
        } else {
            Some(mw)
        };
        deregister(region);
        lent.fill(7);
        assert_eq!(writer.join().unwrap(), Status::IBV_WC_REM_ACCESS_ERR);
        assert_eq!(lent, [7; BYTES]);
        drop(left);
    });
}

#[test]
fn a_peer_that_writes_all_the_time_stops_when_its_window_is_taken_back() {
    const ROUNDS: u32 = 30;
    for (n, schedule) in
        [Schedule::Immediate, Schedule::Deferred { seed: 7 }].into_iter().enumerate()
    {
        let name = format!("invalidate-race-{n}");
        rdma_soft::Builder::new(&name).schedule(schedule).install().unwrap();
        for round in 0..ROUNDS {
            for way in [Way::Invalidate, Way::Unbind, Way::Deallocate] {
                race(&name, way, round * 10);
            }
        }
    }
}

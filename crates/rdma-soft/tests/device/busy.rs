//! Many threads at once: destruction and deregistration under load, polling and posting from several
//! threads, queue pairs that talk to each other and to themselves.

use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::{Errno, ibv_sge, ibv_wc_status as Status, ibv_wr_opcode};

use crate::rig::connect::Side;
use crate::rig::post::Wr;
use crate::rig::scene::{AT_A, BYTES, Scene};
use crate::rig::{Cq, Mr, Qp, on_each_device, until};

/// Each case is repeated, since each run meets another moment.
const ROUNDS: u8 = 20;

/// Posts writes until one completes with an error, and gives its status.
fn write_until_failure(qp: &Qp, cq: &Cq, wr: &Wr, works: &AtomicBool) -> Status {
    let mut failure = None;
    until("a failure", || {
        match Errno::from_raw(qp.try_post(wr)) {
            Errno::ENOMEM => {}
            errno => assert_eq!(errno.raw(), 0),
        }
        for wc in cq.try_poll::<16>().unwrap() {
            match wc.status {
                Status::IBV_WC_SUCCESS => works.store(true, Ordering::Relaxed),
                status => failure = failure.or(Some(status)),
            }
        }
        failure.is_some()
    });
    failure.unwrap()
}

/// Runs `end` while A writes to B's memory, and gives A's failure.
fn while_a_writes(a: &Side, from: ibv_sge, to: (u64, u32), end: impl FnOnce()) -> Status {
    let works = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let wr = Wr::new(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, &[from]).remote(to.0, to.1);
            write_until_failure(&a.qp, &a.send_cq, &wr, &works)
        });
        until("the first write", || works.load(Ordering::Relaxed));
        end();
        writer.join().unwrap()
    })
}

#[test]
fn deregistered_memory_is_not_written_by_peers_any_more() {
    on_each_device("busy-dereg-remote", |device| {
        for _ in 0..ROUNDS {
            let Scene { a, b, at_a, at_b } = Scene::new(device);
            let mut memory = Vec::new();
            let failure =
                while_a_writes(&a, at_a.sge(0, BYTES), (at_b.address(), at_b.key()), || {
                    memory = at_b.deregister();
                    memory.fill(0);
                });
            assert_eq!(failure, Status::IBV_WC_REM_ACCESS_ERR);
            assert_eq!(memory, [0; BYTES]);
            b.qp.wait_for_error();
        }
    });
}

#[test]
fn deregistered_memory_is_not_sent_from_any_more() {
    on_each_device("busy-dereg-local", |device| {
        for _ in 0..ROUNDS {
            let Scene { a, b, at_a, at_b } = Scene::new(device);
            let (from, to) = (at_a.sge(0, BYTES), (at_b.address(), at_b.key()));
            let failure = while_a_writes(&a, from, to, || at_a.deregister().fill(0xee));
            assert_eq!(failure, Status::IBV_WC_LOC_PROT_ERR);
            // What was sent was sent before.
            at_b.assert_filled(AT_A);
            b.qp.assert_ready();
        }
    });
}

/// Posts `count` writes, waiting for room.
fn post_all(qp: &Qp, from: &Mr, to: &Mr, count: u64) {
    for n in 0..count {
        let wr = Wr::write(n, &[from.sge(0, 8)], to, 0);
        until("room", || match Errno::from_raw(qp.try_post(&wr)) {
            Errno::ENOMEM => false,
            errno => errno.raw() == 0 || panic!("{errno}"),
        });
    }
}

#[test]
fn every_accepted_request_completes_once_when_the_queue_pair_fails_under_load() {
    const REQUESTS: u64 = 500;
    on_each_device("busy-flush", |device| {
        for _ in 0..ROUNDS {
            let Scene { a, b: _b, at_a, at_b } = Scene::new(device);
            let (mut next, mut flushed, mut ended) = (0, false, false);
            std::thread::scope(|scope| {
                scope.spawn(|| post_all(&a.qp, &at_a, &at_b, REQUESTS));
                until("all completions", || {
                    if next >= 200 && !std::mem::replace(&mut ended, true) {
                        a.qp.to_error();
                    }
                    for wc in a.send_cq.try_poll::<4>().unwrap() {
                        assert_eq!(wc.wr_id, next, "in order, each once");
                        next += 1;
                        flushed |= wc.status == Status::IBV_WC_WR_FLUSH_ERR;
                        assert_eq!(flushed, wc.status == Status::IBV_WC_WR_FLUSH_ERR);
                    }
                    next == REQUESTS
                });
            });
            assert!(flushed && a.send_cq.is_empty());
        }
    });
}

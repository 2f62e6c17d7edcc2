//! Many threads at once: destruction and deregistration under load, polling and posting from several
//! threads, queue pairs that talk to each other and to themselves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rdma_sys::{Errno, ibv_sge, ibv_wc, ibv_wc_status as Status, ibv_wr_opcode};

use crate::rig::connect::{Knobs, Side, connect, connect_sides, pair, pair_with};
use crate::rig::post::Wr;
use crate::rig::scene::{AT_A, BYTES, Scene};
use crate::rig::{ALL_ACCESS, Cq, LOCAL_WRITE, Mr, Qp, Size, on_each_device, until};

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
fn destroyed_queue_pair_is_not_written_through_any_more() {
    on_each_device("busy-destroy", |device| {
        for _ in 0..ROUNDS {
            let Scene { a, mut b, at_a, at_b } = Scene::new(device);
            let failure =
                while_a_writes(&a, at_a.sge(0, BYTES), (at_b.address(), at_b.key()), || {
                    b.qp.destroy();
                    at_b.fill(0);
                });
            assert_eq!(failure, Status::IBV_WC_RETRY_EXC_ERR);
            at_b.assert_filled(0);
        }
    });
}

#[test]
fn queue_pair_in_error_is_not_written_through_any_more() {
    on_each_device("busy-error", |device| {
        for round in 0..ROUNDS {
            let Scene { a, b, at_a, at_b } = Scene::new(device);
            let failure =
                while_a_writes(&a, at_a.sge(0, BYTES), (at_b.address(), at_b.key()), || {
                    if round % 2 == 0 {
                        b.qp.to_error()
                    } else {
                        b.qp.to_reset()
                    }
                    at_b.fill(0);
                });
            assert_eq!(failure, Status::IBV_WC_RETRY_EXC_ERR);
            at_b.assert_filled(0);
        }
    });
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

/// Completions from several pollers: each request completes once.
#[test]
fn many_threads_poll_one_queue() {
    const REQUESTS: u64 = 2000;
    on_each_device("busy-poll", |device| {
        let Scene { a, b: _b, at_a, at_b } = Scene::new(device);
        let seen: Vec<AtomicU64> = (0..REQUESTS).map(|_| AtomicU64::new(0)).collect();
        let (count, posted) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    until("all completions", || {
                        for wc in a.send_cq.try_poll::<3>().unwrap() {
                            assert_eq!(wc.status, Status::IBV_WC_SUCCESS);
                            seen[wc.wr_id as usize].fetch_add(1, Ordering::Relaxed);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        posted.load(Ordering::Acquire) && count.load(Ordering::Relaxed) >= REQUESTS
                    });
                });
            }
            post_all(&a.qp, &at_a, &at_b, REQUESTS);
            posted.store(true, Ordering::Release);
        });
        assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        assert!(a.send_cq.is_empty());
    });
}

/// Counts completions of several posters, each of whose requests must come in order.
struct Order {
    next: [u64; 4],
}

impl Order {
    fn take(&mut self, wc: &ibv_wc) {
        assert_eq!(wc.status, Status::IBV_WC_SUCCESS);
        let (poster, n) = ((wc.wr_id >> 32) as usize, wc.wr_id & 0xffff_ffff);
        assert_eq!(n, self.next[poster], "poster {poster}");
        self.next[poster] += 1;
    }
}

#[test]
fn many_threads_post_to_one_queue_pair_and_each_ones_order_is_kept() {
    const EACH: u64 = 500;
    on_each_device("busy-post", |device| {
        let (a, b) = pair(device);
        let source = a.pd.register_filled((0..=255).collect(), 0);
        let sink = b.pd.register(256, LOCAL_WRITE);
        for n in 0..64u64 {
            b.qp.post_receive(n, &[sink.sge(4 * n as usize, 4)]);
        }
        std::thread::scope(|scope| {
            for poster in 0..4 {
                let (qp, source) = (&a.qp, &source);
                scope.spawn(move || {
                    for n in 0..EACH {
                        let wr = Wr::send(poster << 32 | n, &[source.sge(n as usize % 253, 4)]);
                        until("room", || qp.try_post(&wr) == 0);
                    }
                });
            }
            let (mut order, mut received) = (Order { next: [0; 4] }, 0u64);
            until("all completions", || {
                a.send_cq.try_poll::<16>().unwrap().iter().for_each(|wc| order.take(wc));
                for wc in b.receive_cq.try_poll::<16>().unwrap() {
                    assert_eq!((wc.wr_id, wc.status), (received % 64, Status::IBV_WC_SUCCESS));
                    let place = 4 * wc.wr_id as usize;
                    let message = &sink.bytes()[place..place + 4];
                    assert!(message.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{message:?}");
                    b.qp.post_receive(wc.wr_id, &[sink.sge(place, 4)]);
                    received += 1;
                }
                received == 4 * EACH && order.next == [EACH; 4]
            });
        });
        assert!(a.send_cq.is_empty() && b.receive_cq.is_empty());
    });
}

#[test]
fn queue_pair_connected_to_itself_sends_writes_and_reads() {
    on_each_device("busy-self", |device| {
        let side = Side::new(device, &Size::default(), 256);
        let at = side.endpoint();
        connect(&side.qp, &at, &at, &Knobs::default());
        let memory = side.pd.register_filled((0..64).collect(), ALL_ACCESS);
        for round in 0..50u64 {
            let id = |n| 10 * round + n;
            side.qp.post(&Wr::send(id(1), &[memory.sge(0, 8)]));
            side.qp.post(&Wr::write(id(2), &[memory.sge(0, 8)], &memory, 24));
            side.qp.post(&Wr::read(id(3), &[memory.sge(48, 8)], &memory, 0));
            side.qp.post_receive(id(4), &[memory.sge(8, 8)]);
            for n in 1..=3 {
                side.send_cq.expect_success(id(n));
            }
            side.receive_cq.expect_success(id(4));
        }
        let bytes = memory.bytes();
        for place in [8, 24, 48] {
            assert_eq!(bytes[place..place + 8], bytes[..8], "at {place}");
        }
        side.qp.post(&Wr::write(1, &[memory.sge(0, 8)], &memory, 0).remote(0, 0));
        side.send_cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
        side.qp.wait_for_error();
    });
}

/// Sends `count` messages to its peer and receives as many, each carrying its number.
fn converse(own: &Side, count: u64) {
    let source = own.pd.register_filled((0..=255).collect(), 0);
    let sink = own.pd.register(32, LOCAL_WRITE);
    let place = |n: u64| sink.sge(n as usize % 32, 1);
    let (mut sent, mut completed, mut received) = (0, 0, 0);
    for n in 0..32 {
        own.qp.post_receive(n, &[place(n)]);
    }
    until("the conversation", || {
        while sent < count && sent - completed < 32 {
            let byte = source.sge(sent as usize % 256, 1);
            own.qp.post(&Wr::send(sent, &[byte]));
            sent += 1;
        }
        for wc in own.send_cq.try_poll::<8>().unwrap() {
            assert_eq!((wc.wr_id, wc.status), (completed, Status::IBV_WC_SUCCESS));
            completed += 1;
        }
        for wc in own.receive_cq.try_poll::<8>().unwrap() {
            assert_eq!((wc.wr_id, wc.status), (received, Status::IBV_WC_SUCCESS));
            assert_eq!(u64::from(sink.bytes()[received as usize % 32]), received % 256);
            own.qp.post_receive(received + 32, &[place(received)]);
            received += 1;
        }
        completed == count && received == count
    });
    // The peer may still send to what is registered here, if anything was wrong.
    own.qp.to_error();
    until("the flushes", || own.receive_cq.try_poll::<8>().unwrap().is_empty());
}

#[test]
fn two_queue_pairs_send_to_each_other_at_once() {
    on_each_device("busy-both-ways", |device| {
        let (a, b) =
            (Side::new(device, &Size::default(), 256), Side::new(device, &Size::default(), 256));
        connect_sides(&a, &b, &Knobs::default());
        std::thread::scope(|scope| {
            scope.spawn(|| converse(&a, 1000));
            scope.spawn(|| converse(&b, 1000));
        });
    });
}

#[test]
fn many_queue_pairs_come_and_go_while_others_work() {
    on_each_device("busy-come-and-go", |device| {
        let (a, b) = pair_with(device, &Size::default(), &Knobs::default());
        std::thread::scope(|scope| {
            let workers = [scope.spawn(|| converse(&a, 1000)), scope.spawn(|| converse(&b, 1000))];
            let busy = || workers.iter().any(|worker| !worker.is_finished());
            let mut rounds = 0;
            while busy() || rounds < 3 {
                let scene = Scene::new(device);
                scene.a.qp.post(&scene.requests()[0]);
                scene.a.send_cq.expect_success(1);
                rounds += 1;
            }
        });
    });
}

//! More operations than the queues hold.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use rdma_channel::TransportError;
use rdma_qp::{MaxRnrRetries, MinRnrTimer};
use tokio::task::JoinSet;

use crate::operations::{Count, DEVICES, HELD, Pair, poll_for, poll_once, run};

#[test]
fn an_operation_waits_while_the_queue_is_full() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::with(device, |builder| builder.max_send_wr(2).max_recv_wr(2));
            let mut tasks = JoinSet::new();
            for _ in 0..20 {
                let (one, other) = (pair.one.clone(), pair.other.clone());
                let (from, into) = (pair.buffer(&[3; 16]), pair.buffer(&[0; 16]));
                tasks.spawn(async move {
                    assert_eq!(one.send(from).await.unwrap().len(), 16);
                });
                tasks.spawn(async move {
                    assert_eq!(*other.receive(into).await.unwrap().memory, [3; 16]);
                });
            }
            while let Some(done) = tasks.join_next().await {
                done.unwrap();
            }
            assert_eq!(pair.buffers(), 0);
        });
    }
}

#[test]
fn try_post_returns_the_memory_if_the_queue_is_full() {
    run(|| async {
        let pair = Pair::with(HELD, |builder| builder.max_recv_wr(1));
        let first = pair.other.receive(pair.buffer(&[0; 4])).try_post().unwrap();
        let refused = pair.other.receive(pair.buffer(&[5; 4])).try_post().unwrap_err();
        assert!(matches!(refused.error, TransportError::WouldBlock), "{refused}");
        assert_eq!(**refused.memory.as_ref().unwrap(), [5; 4]);
        drop((first, refused));
    });
}

/// The next waiter moves up, and a wake-up that it has received is passed on.
#[test]
fn a_dropped_waiter_passes_on_its_wake_up() {
    run(|| async {
        let pair = Pair::with("soft0", |builder| builder.max_recv_wr(1));
        let receive = || Box::pin(pair.other.receive(pair.buffer(&[0; 4])).into_future());
        let [mut first, mut a, mut b] = [receive(), receive(), receive()];
        let wakes = [(); 2].map(|()| Arc::new(Count::default()));
        let [wake_a, wake_b] = wakes.each_ref().map(|count| Waker::from(Arc::clone(count)));
        let counts = || wakes.each_ref().map(|count| count.0.load(Relaxed));
        assert!(poll_once(&mut first).is_pending());
        for (waits, waker) in [(&mut a, &wake_a), (&mut b, &wake_b)] {
            assert!(waits.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        pair.one.send(pair.buffer(b"one!")).await.unwrap();
        first.await.unwrap();
        assert_eq!(counts(), [1, 0]);
        drop(a); // it was woken but not polled
        assert_eq!(counts(), [1, 1], "the wake-up is passed on");
        assert!(b.as_mut().poll(&mut Context::from_waker(&wake_b)).is_pending());
        pair.one.send(pair.buffer(b"two!")).await.unwrap();
        assert_eq!(*b.await.unwrap().memory, *b"two!");
    });
}

/// The slot that it was woken for goes to the next waiter.
#[test]
fn a_refused_waiter_leaves_the_slot_to_the_next() {
    run(|| async {
        let pair = Pair::with("soft0", |builder| builder.max_recv_wr(1));
        let foreign = Pair::new("soft0");
        let first = pair.other.receive(pair.buffer(&[0; 4])).post().await.unwrap();
        let mut refused = Box::pin(pair.other.receive(foreign.buffer(&[0; 4])).into_future());
        let mut next = Box::pin(pair.other.receive(pair.buffer(&[0; 4])).into_future());
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(poll_once(&mut refused).is_pending());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        pair.one.send(pair.buffer(b"one!")).await.unwrap();
        first.await.unwrap();
        assert_eq!(wakes.0.load(Relaxed), 0);
        let failed = refused.await.unwrap_err();
        assert!(failed.to_string().contains("a different protection domain"), "{failed}");
        assert_eq!(wakes.0.load(Relaxed), 1, "handed on");
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        pair.one.send(pair.buffer(b"two!")).await.unwrap();
        assert_eq!(*next.await.unwrap().memory, *b"two!");
    });
}

#[test]
fn a_waiter_fails_with_its_connection() {
    for device in DEVICES {
        run(|| async move {
            let pair = Pair::with(device, |builder| builder.max_send_wr(1));
            let nowhere = rdma_mem::RemoteMemoryRegion::new(0x1000, 8, 0x1234_5678);
            let mut tasks = JoinSet::new();
            for _ in 0..5 {
                let (one, buffer) = (pair.one.clone(), pair.buffer(&[3; 8]));
                tasks.spawn(async move { one.write(buffer, nowhere).await.unwrap_err().error });
            }
            let (mut failed, mut closed) = (0, 0);
            while let Some(error) = tasks.join_next().await {
                match error.unwrap() {
                    TransportError::WorkError(_) => failed += 1,
                    TransportError::Closed { .. } => closed += 1,
                    other => panic!("{other}"),
                }
            }
            assert_eq!((failed, closed), (1, 4));
        });
    }
}

#[test]
fn a_panicking_waker_does_not_affect_others() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    run(|| async {
        let pair = Pair::new("soft0");
        let panics = Waker::from(Arc::new(Panics));
        let mut first = Box::pin(pair.other.receive(pair.buffer(&[0; 4])).into_future());
        assert!(first.as_mut().poll(&mut Context::from_waker(&panics)).is_pending());
        let op = pair.other.receive(pair.buffer(&[0; 4]));
        let second = op.into_owned(&pair.other).post().await.unwrap();
        let waits = tokio::spawn(async move { second.await.unwrap().length });
        tokio::task::yield_now().await;
        pair.one.send(pair.buffer(b"one!")).await.unwrap();
        pair.one.send(pair.buffer(b"two!")).await.unwrap();
        assert_eq!(waits.await.unwrap(), 4);
        assert_eq!(*first.await.unwrap().memory, *b"one!");
    });
}

/// A waiter that gets a slot without a wake-up leaves the queue of waiters, so that it consumes no wake-up of another.
#[test]
fn an_operation_posted_without_a_wake_up_leaves_it_to_others() {
    run(|| async {
        let pair = Pair::with("soft0", |builder| builder.max_recv_wr(2));
        let receive = || Box::pin(pair.other.receive(pair.buffer(&[0; 4])).into_future());
        let [mut first, mut second, mut a, mut b] = [receive(), receive(), receive(), receive()];
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&wakes));
        assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
        assert!(poll_for(&mut a, &waker).is_pending() && poll_once(&mut b).is_pending());
        // Waiter a gets the wake-up, and b the slot.
        pair.one.send(pair.buffer(b"one_")).await.unwrap();
        first.await.unwrap();
        assert_eq!(wakes.0.load(Relaxed), 1);
        assert!(poll_once(&mut b).is_pending() && poll_for(&mut a, &waker).is_pending());
        // The next slot is for a, which is woken.
        pair.one.send(pair.buffer(b"two_")).await.unwrap();
        second.await.unwrap();
        assert_eq!(wakes.0.load(Relaxed), 2);
        assert!(poll_for(&mut a, &waker).is_pending(), "it is posted");
        for text in [b"tri_", b"four"] {
            pair.one.send(pair.buffer(text)).await.unwrap();
        }
        assert_eq!((b.await.unwrap().length, a.await.unwrap().length), (4, 4));
    });
}

/// Even if no task awaits the operations in the slots, whose failure ends the connection.
#[test]
fn a_waiter_fails_even_if_no_outstanding_operation_is_awaited() {
    for device in DEVICES {
        run(|| async move {
            // Long enough that it does not fail before the second operation waits.
            let (twice, wait) = (MaxRnrRetries::limited(2).unwrap(), Duration::from_millis(20));
            let wait = MinRnrTimer::min_duration_greater_than(wait);
            let pair = Pair::with(device, |builder| {
                builder.max_send_wr(1).max_rnr_retries(twice).min_rnr_timer(wait)
            });
            // Until the driver's task sleeps.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            // The peer posts no receive.
            let first = pair.one.send(pair.buffer(&[1; 4])).post().await.unwrap();
            let second = pair.one.send(pair.buffer(&[2; 4])).post().await.unwrap_err();
            assert!(matches!(second.error, TransportError::Closed { .. }), "{second}");
            assert_eq!(*second.memory.unwrap(), [2; 4]);
            first.await.unwrap_err();
        });
    }
}

#[test]
fn a_queue_without_slots_is_not_waited_for() {
    run(|| async {
        let pair = Pair::with("soft0", |builder| builder.max_recv_wr(0));
        let refused = pair.one.receive(pair.buffer(&[7; 4])).await.unwrap_err();
        assert!(matches!(refused.error, TransportError::WouldBlock), "{refused}");
        assert_eq!(**refused.memory.as_ref().unwrap(), [7; 4]);
        let board = pair.board.remote().slice(0..4).unwrap();
        pair.one.write(refused.memory.unwrap(), board).await.unwrap();
    });
}

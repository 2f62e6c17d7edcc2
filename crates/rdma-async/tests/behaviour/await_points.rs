//! Every future is dropped after any number of polls, while the device proceeds step by step, and the documented
//! behaviour holds. Its memory is released, no message and no client is lost, and other operations continue. The same
//! holds when a task or a waker panics.

mod connecting;
mod connections;
mod leases;
mod messages;
mod streams;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Wake, Waker};

use rdma_async::{CloseReason, Connection, Driver, Received, TransportError};
use rdma_channel::Operation;
use rdma_mem::{AsyncEventKind, ProtectionDomain};
use rdma_qp::prelude::*;
use rdma_soft::{Builder, SoftDevice};
use tokio::time::timeout;

use crate::common::kinds::{BYTES, Kind, WAYS, Way};
use crate::common::provider::Provider;
use crate::common::{
    Count, DEFERRED, HANG, HELD, Pair, WIRE, device_with_port, poll_for, poll_once, polled, run,
};

/// More polls than any operation needs, if the device makes a step after each.
const POLLS: usize = 6;
/// Devices whose steps are known.
const STEPWISE: [&str; 2] = ["soft0", HELD];

#[test]
fn an_operation_is_dropped_after_any_poll() {
    for device in ["soft0", HELD, DEFERRED, WIRE] {
        run(|| async move {
            let (pair, provider) =
                Pair::faulty_with(device, |builder| builder.max_send_wr(2).max_recv_wr(2));
            pair.assert_works().await;
            pair.assert_given_back().await;
            let start = provider.live();
            for (kind, way) in Kind::ALL.into_iter().flat_map(|kind| WAYS.map(|way| (kind, way))) {
                for (polls, flag) in (0..=POLLS).flat_map(|n| [(n, false), (n, true)]) {
                    let is_over = if kind.operation() == Operation::Receive {
                        drop_receive(&pair, kind, way, polls, flag).await
                    } else {
                        drop_send(&pair, &provider, kind, way, polls, flag).await
                    };
                    let what = format!("{kind:?}, {way:?}, {flag}, after {polls} polls");
                    assert!(is_over || polls < POLLS || !STEPWISE.contains(&device), "{what}");
                    assert_settled(&pair, &provider).await;
                }
                pair.assert_works().await;
            }
            pair.assert_given_back().await;
            assert_eq!(provider.live(), start);
            drop(pair);
            provider.gone().await;
        });
    }
}

/// Drops an operation that needs a slot of the send queue, which may be full: a slot becomes free with each step.
/// Returns true if it had completed before.
async fn drop_send(
    pair: &Pair,
    provider: &Provider,
    kind: Kind,
    way: Way,
    polls: usize,
    is_full: bool,
) -> bool {
    let fills = if is_full { 2 } else { 0 };
    let mut fills: Vec<_> = (0..fills).map(|_| Kind::Write.begin(pair, Way::Tried)).collect();
    let answer = kind.answer(pair, Way::Tried);
    let before = provider.posted();
    let mut begun = kind.begin(pair, way);
    let mut outcome = None;
    for _ in 0..polls {
        if let Poll::Ready(done) = poll_once(&mut begun) {
            outcome = Some(done);
            break;
        }
        pair.release(1);
        drop(fills.pop());
    }
    let is_posted = provider.posted() > before;
    look(pair, polls);
    drop((begun, fills));
    match &outcome {
        None | Some(None) => {}
        Some(Some((TransportError::WouldBlock, bytes))) if way == Way::Tried && is_full => {
            assert_eq!(*bytes, kind.bytes());
        }
        Some(Some((error, _))) => panic!("{kind:?}, {way:?}: {error}"),
    }
    // The message has arrived at the peer if it was posted, and only then.
    if let Some(answer) = answer {
        if !is_posted {
            assert!(pair.released(kind.begin(pair, Way::Awaited)).await.is_none());
        }
        assert!(pair.released(answer).await.is_none());
    }
    outcome.is_some()
}

/// In half of the cases another operation polls the completions.
fn look(pair: &Pair, polls: usize) {
    if polls % 2 == 1 {
        let remote = pair.board.remote().slice(0..BYTES).unwrap();
        let mut read = pair.other.read(pair.buffer(&[0; BYTES]), remote).try_post().unwrap();
        let _ = poll_once(&mut read);
    }
}

/// Drops a receive whose message arrives before that or later. Returns true if it had completed before, or could not
/// complete.
async fn drop_receive(pair: &Pair, kind: Kind, way: Way, polls: usize, is_early: bool) -> bool {
    let mut begun = kind.begin(pair, way);
    let answer = || kind.answer(pair, Way::Tried).unwrap();
    let early = is_early.then(answer);
    for _ in 0..polls {
        if let Poll::Ready(outcome) = poll_once(&mut begun) {
            assert!(outcome.is_none(), "{kind:?}, {way:?}: {outcome:?}");
            assert!(pair.released(early.unwrap()).await.is_none());
            return true;
        }
        pair.release(1);
    }
    look(pair, polls);
    drop(begun);
    let first = early.unwrap_or_else(answer);
    if way != Way::Tried && polls == 0 {
        // It was not posted, so another receive gets the message.
        assert!(pair.released(kind.begin(pair, way)).await.is_none());
        assert!(pair.released(first).await.is_none());
    } else {
        // A second receive. Its message must not arrive at the first.
        let second = pair.one.receive(pair.buffer(&[1; BYTES])).try_post().unwrap();
        assert!(pair.released(first).await.is_none());
        let sent = pair.other.send_with_imm(pair.buffer(b"2nd text"), 2).try_post().unwrap();
        pair.released(sent).await.unwrap();
        let second = pair.released(second).await.unwrap();
        assert_eq!((&*second.memory, second.immediate), (&b"2nd text"[..], Some(2)));
        let kept = pair.released(by_dropped(&pair.one)).await;
        let bytes = kept.memory.map(|memory| memory.to_vec());
        match kind {
            Kind::Receive => assert_eq!(bytes.unwrap(), [9; BYTES]),
            _ => assert_eq!((bytes, kept.immediate), (None, Some(6))),
        }
    }
    assert!(pair.one.take_unclaimed().is_none());
    !is_early
}

/// Waits for the message of a dropped receive.
async fn by_dropped(end: &Connection) -> Received<Option<rdma_async::BufferSlice>> {
    loop {
        match end.take_unclaimed() {
            Some(received) => return received,
            None => tokio::task::yield_now().await,
        }
    }
}

/// Polls that many times, whenever it is woken, and then drops it. Returns `None` if it was not ready.
async fn give_up_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Checks that all requests complete, that all memory is released, and that the connection still works.
async fn assert_settled(pair: &Pair, provider: &Provider) {
    let settled = async {
        while provider.lent() > 0 {
            tokio::task::yield_now().await;
        }
    };
    pair.released(settled).await;
    pair.assert_given_back().await;
    assert_eq!((pair.one.closed(), pair.other.closed()), (None, None));
    provider.assert_kept();
}

/// Waits until that many queue pairs exist.
async fn assert_queue_pairs(provider: &Provider, count: usize) {
    let all = async {
        while provider.live()[5] != count {
            tokio::task::yield_now().await;
        }
    };
    let all = timeout(HANG, all).await;
    assert!(all.is_ok(), "{} queue pairs instead of {count}", provider.live()[5]);
}

/// No event is lost.
#[test]
fn next_is_dropped_after_any_poll() {
    run(|| async {
        let name = "soft-await-points";
        let device = device_with_port(name);
        let (pd, provider) = Provider::faulty(name);
        let driver = Driver::spawn(pd.context()).unwrap();
        let mut events = driver.events().unwrap();
        for polls in 0..4 {
            let kinds = [AsyncEventKind::PORT_ERR, AsyncEventKind::PORT_ACTIVE];
            for (kind, is_up) in kinds.into_iter().zip([false, true]) {
                let mut next = Box::pin(events.next());
                let mut came = None;
                for poll in 0..polls {
                    if poll == 1 {
                        device.set_port_up(is_up);
                    }
                    if let Poll::Ready(event) = poll_once(&mut next) {
                        came = Some(event);
                        break;
                    }
                    // Lets the runtime poll its files.
                    tokio::task::yield_now().await;
                }
                drop(next);
                if polls < 2 {
                    device.set_port_up(is_up);
                }
                let event = match came {
                    Some(event) => event,
                    None => timeout(HANG, events.next()).await.unwrap(),
                };
                assert_eq!(event.unwrap().kind, kind);
            }
        }
        drop((events, driver, pd));
        provider.gone().await;
    });
}

/// The driver ends nevertheless.
#[test]
fn shutdown_is_dropped_after_any_poll() {
    for polls in 1..4 {
        run(move || async move {
            let (pair, provider) = Pair::faulty(HELD);
            let receive = Kind::Receive.begin(&pair, Way::Posted);
            let receive = tokio::spawn(receive);
            let write = pair.one.write(pair.buffer(&[1; BYTES]), pair.board.remote());
            drop(write.try_post().unwrap());
            let shutdown = pair.driver.clone().shutdown();
            let _ = timeout(HANG, give_up_after(polls, shutdown)).await.unwrap();
            assert_queue_pairs(&provider, 0).await;
            let (error, bytes) = timeout(HANG, receive).await.unwrap().unwrap().unwrap();
            let is_destroyed =
                matches!(error, TransportError::Closed { reason: CloseReason::Destroyed, .. });
            assert!(is_destroyed && bytes == BYTES, "{error}");
            assert_eq!((pair.buffers(), provider.lent()), (0, 0));
            drop(pair);
            provider.gone().await;
        });
    }
}

/// A future that is never polled has not started.
#[test]
fn a_shutdown_that_is_not_polled_ends_nothing() {
    run(|| async {
        let pair = Pair::new("soft0");
        drop(pair.driver.clone().shutdown());
        pair.assert_works().await;
    });
}

/// A panicking task releases everything that it owns.
#[test]
fn a_panicking_task_leaks_nothing() {
    for device in ["soft0", HELD, DEFERRED] {
        run(move || async move {
            let (pair, provider) = Pair::faulty(device);
            pair.assert_works().await;
            for polls in 0..3 {
                for (kind, way) in
                    Kind::ALL.into_iter().flat_map(|kind| WAYS.map(|way| (kind, way)))
                {
                    let answer = kind.answer(&pair, Way::Tried);
                    let before = provider.posted();
                    let (mut begun, connection) = (kind.begin(&pair, way), pair.one.clone());
                    let op = connection.send(pair.buffer(&[3; BYTES])).into_owned(&connection);
                    let task = tokio::spawn(async move {
                        for _ in 0..polls {
                            if poll_once(&mut begun).is_ready() {
                                break;
                            }
                        }
                        let _all = (begun, connection, op);
                        panic!("on purpose");
                    });
                    let ended = timeout(HANG, task).await.unwrap();
                    assert!(ended.unwrap_err().is_panic());
                    let is_posted = provider.posted() > before || way == Way::Tried;
                    if let Some(answer) = answer {
                        if !is_posted {
                            assert!(pair.released(kind.begin(&pair, way)).await.is_none());
                        }
                        assert!(pair.released(answer).await.is_none(), "{kind:?}, {way:?}");
                    }
                    if kind.operation() == Operation::Receive {
                        // Its message was received, or is kept.
                        pair.released(async {
                            while pair.buffers() > 0 {
                                drop(pair.one.take_unclaimed());
                                tokio::task::yield_now().await;
                            }
                        })
                        .await;
                    }
                    assert_settled(&pair, &provider).await;
                }
            }
            pair.assert_works().await;
            drop(pair);
            provider.gone().await;
        });
    }
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

/// The event that wakes a task whose waker panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Completes,
    Closes,
    SlotIsFree,
    /// The wake-up was for another operation, whose post is refused.
    IsHandedOnByARefusal,
    /// The wake-up was for another operation, which is dropped.
    IsHandedOnByADrop,
}

/// The panic does not pass through other callers, and other operations are notified.
#[test]
fn a_panicking_waker_affects_no_other_task() {
    use Event::{Closes, Completes, IsHandedOnByADrop, IsHandedOnByARefusal, SlotIsFree};
    for event in [Completes, Closes, SlotIsFree, IsHandedOnByARefusal, IsHandedOnByADrop] {
        run(move || async move {
            let pair = Pair::with("soft0", |builder| builder.max_recv_wr(2));
            let foreign = Pair::new("soft0");
            let receive = |of: &Pair| {
                let op = pair.one.receive(of.buffer(&[1; BYTES]));
                Box::pin(op.into_owned(&pair.one).into_future())
            };
            let [mut first, mut second, mut refused, mut waits] =
                [&pair, &pair, &foreign, &pair].map(receive);
            let panics = Waker::from(Arc::new(Panics));
            let send = async || pair.other.send(pair.buffer(&[2; BYTES])).await.unwrap();
            let begins = matches!(event, Completes | Closes);
            let waker = if begins { &panics } else { Waker::noop() };
            assert!(
                poll_for(&mut first, waker).is_pending() && poll_once(&mut second).is_pending()
            );
            if !begins {
                if event != SlotIsFree {
                    assert!(poll_once(&mut refused).is_pending());
                }
                assert!(poll_for(&mut waits, &panics).is_pending());
            }
            if event == Closes {
                pair.one.close().unwrap();
                for ends in [first, second, waits] {
                    timeout(HANG, ends).await.unwrap().unwrap_err();
                }
                return;
            }
            send().await;
            timeout(HANG, first).await.unwrap().unwrap();
            match event {
                IsHandedOnByARefusal => drop(refused.await.unwrap_err()),
                _ => drop(refused),
            }
            assert!(poll_once(&mut second).is_pending() && poll_once(&mut waits).is_pending());
            for ends in [second, waits] {
                send().await;
                timeout(HANG, ends).await.unwrap().unwrap();
            }
            assert_eq!((pair.buffers(), foreign.buffers()), (0, 0));
        });
    }
}

/// Operations that wait for the other queue are notified nevertheless.
#[test]
fn a_panicking_waker_at_the_end_leaves_no_task_waiting() {
    run(|| async {
        let pair = Pair::with(HELD, |builder| builder.max_send_wr(1).max_recv_wr(1));
        let begin = |kind: Kind| {
            let first = kind.begin(&pair, Way::Tried);
            (first, kind.begin(&pair, Way::Awaited))
        };
        let [(_sends, mut send), (_receives, mut receive)] =
            [Kind::Write, Kind::Receive].map(begin);
        let count = Arc::new(Count::default());
        assert!(poll_for(&mut send, &Waker::from(Arc::new(Panics))).is_pending());
        assert!(poll_for(&mut receive, &Waker::from(Arc::clone(&count))).is_pending());
        pair.one.close().unwrap();
        assert_eq!(count.0.load(Relaxed), 1);
    });
}

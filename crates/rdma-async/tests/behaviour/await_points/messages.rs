//! The futures of messages. Short queues and one operation at a time make a lost slot stop the next message.

mod into_buffer;

use std::cell::Cell;
use std::future::pending;
use std::pin::Pin;

use rdma_async::Pool;
use rdma_async::message::{Message, MessageError, Messages, OperationError, Options};
use rdma_soft::Schedule;
use tokio::task::yield_now;

use crate::await_points::*;
use crate::common::run_long_in_one_thread;

/// A message in one frame, one in several frames, and one that is lent.
const LENGTHS: [usize; 3] = [20, 800, 5000];
const LENT: usize = LENGTHS[2];
/// Each end may have this many windows, with a byte of memory each. A second one is allocated if the first one's last
/// lease has not ended yet.
const WINDOWS: usize = 8;

/// One operation at a time. Longer messages than 1000 bytes are lent.
fn options() -> Options {
    let options = Options::new().receives(4).sends(6).frame_bytes(256).window_bytes(1024);
    options.operations(1).calls(1).eager_bytes(1000)
}

/// A message of that length, different for each number.
pub(super) fn message(number: u8, length: usize) -> Vec<u8> {
    (0..251).cycle().map(|byte| number ^ byte).take(length).collect()
}

/// The devices. Only that test uses the one with held requests, because `release_all` releases those of every test.
fn devices(held: &'static str) -> [&'static str; 3] {
    let _ = Builder::new(held).schedule(Schedule::Held).install();
    ["soft0", held, DEFERRED]
}

/// Two ends of a connection, and the objects below them.
struct Ends {
    one: Messages,
    other: Messages,
    pair: Pair,
    /// The largest number of buffers in use while no operation is pending.
    buffers: usize,
}

/// Polls the future that many times, and the peer's after each, while the device makes one step. Then drops it.
pub(super) async fn give_up<F: Future>(
    pair: &Pair,
    polls: usize,
    future: F,
    peer: &mut (impl Future + Unpin),
) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = poll_once(&mut future) {
            return Some(output);
        }
        assert!(poll_once(peer).is_pending(), "the peer is ready too early");
        pair.release(1);
        yield_now().await;
    }
    None
}

/// Polls the peer until it has set the value. The peer continues.
pub(super) async fn set_by<T>(
    peer: &mut (impl Future<Output = ()> + Unpin),
    value: &Cell<Option<T>>,
) -> T {
    poll_fn(|cx| {
        assert!(pin!(&mut *peer).poll(cx).is_pending());
        value.take().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

impl Ends {
    /// Both ends of that pair, after the driver has tested its windows.
    async fn create(pair: Pair) -> Self {
        let pool = Pool::from(pair.pool.clone());
        pool.grow(1 << 20).await.unwrap();
        let device = SoftDevice::find(pair.pd.context().device().name()).unwrap();
        let end = |end: &Connection| Messages::new(end.clone(), &pool, options());
        let mut both =
            Box::pin(async { (end(&pair.one).await.unwrap(), end(&pair.other).await.unwrap()) });
        let (one, other) = poll_fn(|cx| {
            device.release_all();
            let polled = both.as_mut().poll(cx);
            if polled.is_pending() {
                cx.waker().wake_by_ref();
            }
            polled
        })
        .await;
        drop(both);
        Self { one, other, pair, buffers: 0 }
    }

    fn device(&self) -> &str {
        self.pair.pd.context().device().name()
    }

    /// Drops both ends, and checks that nothing is left.
    async fn end(self, provider: &Provider) {
        let Self { one, other, pair, .. } = self;
        drop((one, other));
        pair.assert_given_back().await;
        drop(pair);
        assert_queue_pairs(provider, 0).await;
    }

    /// Both ends, after each has received some messages.
    async fn open(device: &str) -> (Self, Arc<Provider>) {
        let (pair, provider) = Pair::faulty_with(device, |qp| options().fit(qp));
        let mut ends = Self::create(pair).await;
        for number in 0..4 {
            for (from, to) in [(&ends.one, &ends.other), (&ends.other, &ends.one)] {
                let sent = message(number, LENT);
                let talk = async { tokio::join!(from.send(&sent), to.receive()) };
                let (result, received) = ends.pair.released(talk).await;
                result.unwrap();
                assert!(*received.unwrap().unwrap() == sent[..]);
            }
        }
        ends.buffers = ends.pair.buffers() + 2 * (WINDOWS - 1);
        (ends, provider)
    }

    /// Checks that no buffer is lost.
    async fn assert_returned(&self, what: &str) {
        let returned = async {
            while self.pair.buffers() > self.buffers {
                yield_now().await;
            }
        };
        let returned = timeout(HANG, self.pair.released(returned)).await;
        assert!(returned.is_ok(), "{what}: {} buffers are in use", self.pair.buffers());
    }
}

/// The number of polls of the next attempt, so that each await was once the last.
pub(super) fn next(polls: usize) -> usize {
    if polls < 30 { polls + 1 } else { polls * 2 }
}

/// The futures that send a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    Send,
    SendBuffer,
    Post,
    PostAndFlush,
    Call,
}

impl Sends {
    const ALL: [Self; 5] =
        [Self::Send, Self::SendBuffer, Self::Post, Self::PostAndFlush, Self::Call];

    async fn send(self, ends: &Ends, bytes: &[u8]) {
        let one = &ends.one;
        match self {
            Self::Send => one.send(bytes).await.unwrap(),
            Self::SendBuffer => one.send_buffer(ends.pair.buffer(bytes)).await.unwrap(),
            Self::Post => one.post(bytes).await.unwrap(),
            Self::PostAndFlush => {
                one.post(bytes).await.unwrap();
                one.flush().await.unwrap();
            }
            Self::Call => assert!(*one.call(bytes).await.unwrap() == *bytes),
        }
    }
}

/// Receives messages up to this one, and answers the requests. Some requests are no longer open.
async fn until(end: &Messages, last: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while all.last().is_none_or(|bytes| bytes != last) {
        let received = end.receive().await.unwrap().unwrap();
        all.push(received.to_vec());
        if received.is_request() {
            let answer = received.reply(all.last().unwrap()).await;
            assert!(answer.is_ok() || all.last().unwrap() != last, "{answer:?}");
        }
    }
    all
}

/// The message arrives whole or not at all, and at most once. The next one arrives after it, although only one
/// operation may be pending.
#[test]
fn a_message_is_dropped_after_any_poll() {
    for device in devices("soft-held-message") {
        run_long_in_one_thread(|| async {
            let (ends, provider) = Ends::open(device).await;
            for (what, length) in Sends::ALL.into_iter().flat_map(|what| LENGTHS.map(|n| (what, n)))
            {
                for is_busy in [false, true] {
                    let mut polls = 0;
                    while !drop_message(&ends, what, length, is_busy, polls).await {
                        polls = next(polls);
                    }
                }
            }
            ends.end(&provider).await;
            provider.gone().await;
        });
    }
}

/// Drops the future of a message, which has to wait for an earlier one if this end is busy. Returns true if it was
/// ready before.
async fn drop_message(
    ends: &Ends,
    what: Sends,
    length: usize,
    is_busy: bool,
    polls: usize,
) -> bool {
    let case = format!("{what:?} of {length} bytes, busy: {is_busy}, after {polls} polls");
    let [earlier, dropped, later] =
        [(1, 3000), (2, length), (3, length)].map(|(n, length)| message(n, length));
    // The earlier message of an attempt begins with its first poll, so the last attempt's messages must be over.
    ends.pair.released(ends.one.flush()).await.unwrap();
    let mut arrivals = Box::pin(until(&ends.other, &later));
    let mut busy = is_busy.then(|| Box::pin(ends.one.send(&earlier)));
    if let Some(busy) = &mut busy {
        assert!(poll_once(busy).is_pending());
    }
    let outcome = give_up(&ends.pair, polls, what.send(ends, &dropped), &mut arrivals).await;
    let sends = async {
        if let Some(busy) = busy {
            busy.await.unwrap();
        }
        what.send(ends, &later).await;
    };
    let both = async { tokio::join!(sends, &mut arrivals) };
    let ((), all) = ends.pair.released(both).await;
    drop(arrivals);
    let mut all = &all[..];
    if is_busy {
        assert!(all[0] == earlier, "{case}");
        all = &all[1..];
    }
    let has_arrived = all.len() == 2;
    assert!(*all == [&dropped[..], &later][usize::from(!has_arrived)..], "{case}: {}", all.len());
    assert!(has_arrived || outcome.is_none(), "{case}");
    // Other devices may have executed all of the earlier message during this poll.
    let is_waiting = is_busy && polls == 1 && !["soft0", DEFERRED].contains(&ends.device());
    if polls == 0 || is_waiting {
        assert!(!has_arrived, "{case}: it was sent");
    } else if !is_busy && length != LENT {
        assert!(has_arrived, "{case}: its first part was sent, but not the rest");
    }
    ends.assert_returned(&case).await;
    outcome.is_some()
}

/// The next call receives the message.
#[test]
fn receive_is_dropped_after_any_poll() {
    for device in devices("soft-held-receive") {
        run_long_in_one_thread(|| async {
            let (ends, provider) = Ends::open(device).await;
            for length in LENGTHS {
                let [first, second] = [1, 2].map(|number| message(number, length));
                let (mut polls, mut is_over) = (0, false);
                while !is_over {
                    let sends = async {
                        ends.one.send(&first).await.unwrap();
                        ends.one.send(&second).await.unwrap();
                        pending::<()>().await;
                    };
                    let mut sends = Box::pin(sends);
                    let taken = give_up(&ends.pair, polls, ends.other.receive(), &mut sends).await;
                    is_over = taken.is_some();
                    let receive = async {
                        let first = match taken {
                            Some(first) => first,
                            None => ends.other.receive().await,
                        };
                        [first, ends.other.receive().await].map(|one| one.unwrap().unwrap())
                    };
                    let both = async {
                        tokio::select! {
                            received = receive => received,
                            () = &mut sends => unreachable!(),
                        }
                    };
                    let received = ends.pair.released(both).await;
                    assert!(*received[0] == first[..], "{length} bytes, after {polls} polls");
                    assert!(*received[1] == second[..], "{length} bytes, after {polls} polls");
                    drop((received, sends));
                    let what = format!("receive of {length} bytes, after {polls} polls");
                    ends.assert_returned(&what).await;
                    polls = next(polls);
                }
            }
            ends.end(&provider).await;
            provider.gone().await;
        });
    }
}

/// A WRITE that has begun continues, and its bytes arrive before the next message.
#[test]
fn write_is_dropped_after_any_poll() {
    for device in devices("soft-held-write") {
        run_long_in_one_thread(|| async {
            let (ends, provider) = Ends::open(device).await;
            let (board, mut expected) = (&ends.pair.board, vec![0; 4096]);
            let (mut polls, mut is_over) = (0, false);
            while !is_over {
                let number = u8::try_from(polls % 251).unwrap() + 1;
                let (bytes, later) = (message(number, 4096), message(3, 20));
                let buffer = ends.pair.buffer(&bytes);
                let mut arrivals = Box::pin(until(&ends.other, &later));
                let write = ends.one.write(buffer, 0..4096, board.remote());
                let written = give_up(&ends.pair, polls, write, &mut arrivals).await;
                is_over = written.is_some();
                drop(written.map(Result::unwrap));
                let both = async { tokio::join!(ends.one.send(&later), &mut arrivals) };
                let (sent, _) = ends.pair.released(both).await;
                sent.unwrap();
                drop(arrivals);
                if polls > 0 {
                    expected = bytes;
                }
                let mut found = vec![0; 4096];
                board.read(0, &mut found).unwrap();
                assert!(found == expected, "after {polls} polls");
                ends.assert_returned(&format!("write, after {polls} polls")).await;
                polls = next(polls);
            }
            ends.end(&provider).await;
            provider.gone().await;
        });
    }
}

/// The reply arrives whole, or the request is refused. The next request gets its own reply.
#[test]
fn reply_is_dropped_after_any_poll() {
    for device in devices("soft-held-reply") {
        run_long_in_one_thread(|| async {
            let (ends, provider) = Ends::open(device).await;
            for length in LENGTHS {
                let mut polls = 0;
                while !drop_reply(&ends, length, polls).await {
                    polls = next(polls);
                }
            }
            ends.end(&provider).await;
            provider.gone().await;
        });
    }
}

/// Receives a message, while a future of its sender is not ready.
async fn receive_while<F: Future>(ends: &Ends, sender: &mut Pin<Box<F>>) -> Message {
    let mut receive = Box::pin(ends.other.receive());
    let received = poll_fn(|cx| {
        assert!(sender.as_mut().poll(cx).is_pending());
        receive.as_mut().poll(cx)
    });
    ends.pair.released(received).await.unwrap().unwrap()
}

/// Drops the future of a reply. Returns true if it was ready before.
async fn drop_reply(ends: &Ends, length: usize, polls: usize) -> bool {
    let case = format!("reply of {length} bytes, after {polls} polls");
    let replied = Cell::new(None);
    let (question, answer) = (message(1, 20), message(2, length));
    // Ready only after the second call.
    let mut calls = Box::pin(async {
        replied.set(Some(ends.one.call(&question).await));
        ends.one.call(&question).await.unwrap()
    });
    let request = receive_while(ends, &mut calls).await;
    let reply = request.reply(&answer);
    let outcome = give_up(&ends.pair, polls, reply, &mut calls).await;
    let answers = async {
        let request: Message = ends.other.receive().await.unwrap().unwrap();
        request.reply(&answer).await.unwrap();
    };
    let both = async { tokio::join!(&mut calls, answers) };
    let (second, ()) = ends.pair.released(both).await;
    drop(calls);
    assert!(*second == answer[..], "{case}");
    drop(second);
    let is_answered = match replied.into_inner().unwrap() {
        Ok(first) => {
            assert!(*first == answer[..], "{case}");
            true
        }
        Err(MessageError::Operation { error: OperationError::Refused, ended: None }) => false,
        Err(error) => panic!("{case}: {error}"),
    };
    match polls {
        0 => assert!(!is_answered, "{case}"),
        _ if length != LENT => assert!(is_answered, "{case}"),
        _ => {}
    }
    if let Some(outcome) = &outcome {
        assert!(is_answered && outcome.is_ok(), "{case}: {outcome:?}");
    }
    ends.assert_returned(&case).await;
    outcome.is_some()
}

/// The end is sent after the earlier messages if the future has begun. The other direction continues.
#[test]
fn finish_is_dropped_after_any_poll() {
    for device in devices("soft-held-finish") {
        run_long_in_one_thread(|| async {
            let mut polls = 0;
            while !drop_finish(device, polls).await {
                polls = next(polls);
            }
        });
    }
}

/// Drops the future that ends the messages of a new connection. Returns true if it was ready before.
async fn drop_finish(device: &str, polls: usize) -> bool {
    let (ends, provider) = Ends::open(device).await;
    let [first, second] = [1, 2].map(|number| message(number, 800));
    let ended = Cell::new(None);
    let mut arrivals = Box::pin(async {
        let first = ends.other.receive().await.unwrap().unwrap().to_vec();
        ended.set(Some((first, ends.other.receive().await.unwrap())));
        pending::<()>().await;
    });
    drop(poll_once(&mut Box::pin(ends.one.send(&first))));
    let finished = give_up(&ends.pair, polls, ends.one.finish(), &mut arrivals).await;
    let is_over = finished.map(Result::unwrap).is_some();
    if polls == 0 {
        let ready = async { ends.one.send(&second).await.unwrap() };
        let mut ready = Box::pin(ready);
        let sent = poll_fn(|cx| {
            assert!(arrivals.as_mut().poll(cx).is_pending());
            ready.as_mut().poll(cx)
        });
        ends.pair.released(sent).await;
    }
    let arrived = set_by(&mut arrivals, &ended);
    let (arrived, end) = ends.pair.released(arrived).await;
    drop(arrivals);
    assert!(arrived == first, "after {polls} polls");
    assert_eq!(end.is_some(), polls == 0, "after {polls} polls");
    drop(end);
    let back = async { tokio::join!(ends.other.send(&second), ends.one.receive()) };
    let (sent, received) = ends.pair.released(back).await;
    sent.unwrap();
    assert!(*received.unwrap().unwrap() == second[..], "after {polls} polls");
    ends.end(&provider).await;
    provider.gone().await;
    is_over
}

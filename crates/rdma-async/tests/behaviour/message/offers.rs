//! Long messages, which are lent to the peer.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Poll;

use rdma_async::message::{
    ConnectionError, MessageError, Messages, OperationError, Options, SendError,
};
use rdma_async::{ConnectionOptions, Endpoint, Pool};
use rdma_mem::{Buffer, BufferPool};
use rdma_qp::prelude::*;
use rdma_soft::{Builder as Device, Limits};
use test_support::events::{Event, Hears};
use test_support::program::in_own_process;
use tokio::runtime::Builder;
use tokio::task::{JoinSet, yield_now};

use super::rig::{endpoint, message, messages};
use crate::common::chance::Chance;
use crate::common::host::Host;
use crate::common::provider::{ALWAYS, Call, Provider};
use crate::common::{DEVICES, install, poll_once, run, run_in_one_thread};

/// Messages of more than 1,000 bytes are lent.
pub(super) fn lends() -> Options {
    Options::new().frame_bytes(1024).eager_bytes(1000)
}

/// Limits that allow one of everything.
fn tiny() -> Options {
    let options = Options::new().receives(1).sends(4).frame_bytes(128).window_bytes(256);
    options.operations(2).calls(1).eager_bytes(0).offer_bytes(1).fetch_bytes(1)
}

/// Both ends, after the hellos have arrived.
async fn open(endpoint: &Endpoint, options: Options) -> (Messages, Messages) {
    let (one, other) = messages(endpoint, options).await;
    for (from, to) in [(&one, &other), (&other, &one)] {
        let (sent, first) = tokio::join!(from.send(b"first"), to.receive());
        assert!(sent.is_ok() && first.unwrap().is_some());
    }
    (one, other)
}

async fn buffer(pool: &Pool, length: usize) -> Buffer {
    let mut buffer = pool.allocate(length).await.unwrap();
    buffer.copy_from_slice(&message(length));
    buffer
}

pub(super) async fn received(end: &Messages, length: usize) {
    let received = end.receive().await.unwrap().unwrap();
    assert_eq!(received.len(), length);
    assert!(*received == message(length)[..], "{length}");
}

/// Waits until the pool has only that many buffers in use.
pub(super) async fn returned(endpoint: &Endpoint, buffers: usize) {
    while endpoint.pool().usage().buffers > buffers {
        yield_now().await;
    }
}

#[test]
fn lengths_around_the_limit_arrive_in_order() {
    for device in DEVICES {
        run(move || async move {
            let endpoint = endpoint(device);
            // Memory for messages that are lent.
            endpoint.pool().grow(1 << 20).await.unwrap();
            let (client, server) = open(&endpoint, lends()).await;
            let lengths = || (995..1005).chain([1, 100_000, 0, 1001, 1024, 999]);
            let sends = async {
                for length in lengths() {
                    client.send(&message(length)).await.unwrap();
                    client.send_buffer(buffer(endpoint.pool(), length).await).await.unwrap();
                }
                client.finish().await.unwrap();
            };
            let receives = async {
                for length in lengths() {
                    received(&server, length).await;
                    received(&server, length).await;
                }
                assert!(server.receive().await.unwrap().is_none());
            };
            tokio::join!(sends, receives);
        });
    }
}

#[test]
fn the_longest_messages_arrive() {
    run_in_one_thread(|| async {
        let endpoint = endpoint("soft0");
        let (client, server) = open(&endpoint, Options::new()).await;
        let longest = 64 << 20;
        // The first one is sent before the pool has memory for it.
        for length in [10 << 20, 10 << 20, longest] {
            tokio::join!(async { client.send(&message(length)).await.unwrap() }, async {
                received(&server, length).await;
            });
        }
        let error = client.send(&vec![0; longest + 1]).await.unwrap_err();
        assert!(matches!(error, MessageError::NotSent(SendError::TooLong { .. })), "{error}");
    });
}

/// Sends messages, requests and replies of mixed lengths in both directions, and checks their order.
async fn talk(endpoint: &Endpoint, options: Options) {
    const ROUNDS: usize = 30;
    let (one, other) = open(endpoint, options).await;
    let length = |at: usize| match at % 4 {
        0 => at,
        1 => 5_000 + at,
        2 => 900 + at,
        _ => 10_000 + at,
    };
    let talk = |end: Messages| async move {
        let end = Arc::new(end);
        let mut tasks = JoinSet::new();
        let sender = Arc::clone(&end);
        tasks.spawn(async move {
            for at in 0..ROUNDS {
                sender.send(&message(length(at))).await.unwrap();
                let reply = sender.call(&message(length(at + 1))).await.unwrap();
                assert!(*reply == message(length(at + 2))[..]);
            }
        });
        for at in 0..ROUNDS {
            received(&end, length(at)).await;
            let request = end.receive().await.unwrap().unwrap();
            assert!(request.is_request() && *request == message(length(at + 1))[..]);
            request.reply(&message(length(at + 2))).await.unwrap();
        }
        tasks.join_next().await.unwrap().unwrap();
        end.finish().await.unwrap();
        assert!(end.receive().await.unwrap().is_none());
    };
    tokio::join!(talk(one), talk(other));
}

#[test]
fn mixed_lengths_keep_their_order_in_both_directions() {
    for device in DEVICES {
        for options in [lends(), tiny(), lends().offer_bytes(0), lends().fetch_bytes(0)] {
            run(move || async move {
                let endpoint = endpoint(device);
                endpoint.pool().grow(1 << 20).await.unwrap();
                talk(&endpoint, options).await;
                returned(&endpoint, 0).await;
            });
        }
    }
}

#[test]
fn devices_without_windows_or_with_few_send_in_frames() {
    install();
    let none = Limits::default().max_mw(0);
    let few = Limits::default().max_mw(3);
    let made = [
        Device::new("softplain0").without_window_type_2().install(),
        Device::new("softnone0").limits(none).install(),
        Device::new("softfew0").limits(few).install(),
    ];
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    for device in ["softplain0", "softnone0", "softfew0"] {
        run(move || async move {
            let endpoint = endpoint(device);
            endpoint.pool().grow(1 << 20).await.unwrap();
            talk(&endpoint, lends()).await;
            let (client, server) = open(&endpoint, lends()).await;
            let sends = (0..20).map(|at| client.send_buffer(endpoint_buffer(&endpoint, at)));
            let sends: Vec<_> = sends.map(Box::pin).collect();
            let sends = async {
                for send in sends {
                    send.await.unwrap();
                }
            };
            let receives = async {
                for at in 0..20 {
                    received(&server, 2000 + at).await;
                }
            };
            tokio::join!(sends, receives);
        });
    }
}

fn endpoint_buffer(endpoint: &Endpoint, at: usize) -> Buffer {
    let mut buffer = endpoint.pool().as_blocking().allocate(2000 + at).unwrap();
    buffer.copy_from_slice(&message(2000 + at));
    buffer
}

#[test]
fn buffers_that_cannot_be_lent_are_copied() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let endpoint = endpoint(device);
            let (client, server) = open(&endpoint, lends()).await;
            let other = endpoint.pd().context().allocate_pd().unwrap();
            let pools = [
                BufferPool::without_windows(endpoint.pd(), 1 << 20),
                BufferPool::new(endpoint.pd()),
                BufferPool::new(&other),
            ];
            for pool in pools.map(Pool::from) {
                for length in [50_000, 3, 0, 1001] {
                    let sends = async {
                        client.send_buffer(buffer(&pool, length).await).await.unwrap();
                    };
                    tokio::join!(sends, received(&server, length));
                }
                while pool.usage().buffers > 0 {
                    yield_now().await;
                }
            }
        });
    }
}

#[test]
fn a_message_becomes_a_buffer() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let endpoint = endpoint(device);
            let (client, server) = open(&endpoint, lends()).await;
            // Empty, short, a whole frame, several frames, fetched.
            for length in [0, 10, 900, 1000, 70_000] {
                let sends = async { client.send(&message(length)).await.unwrap() };
                let receives = async {
                    let message = server.receive().await.unwrap().unwrap();
                    let place = message.as_ptr();
                    (message.into_buffer().await.unwrap(), place)
                };
                let ((), (buffer, _)) = tokio::join!(sends, receives);
                assert!(buffer.len() == length && *buffer == message(length)[..]);
                // It can be sent on.
                tokio::join!(async { server.send_buffer(buffer).await.unwrap() }, async {
                    received(&client, length).await;
                });
            }
            // A fetched message is not copied.
            let sends =
                async { client.send_buffer(buffer(endpoint.pool(), 5000).await).await.unwrap() };
            let receives = async {
                let message = server.receive().await.unwrap().unwrap();
                let place = message.as_ptr();
                assert_eq!(message.into_buffer().await.unwrap().as_ptr(), place);
            };
            tokio::join!(sends, receives);
            // A request is refused.
            let (error, ()) =
                tokio::join!(async { client.call(&message(2000)).await.unwrap_err() }, async {
                    let request = server.receive().await.unwrap().unwrap();
                    assert_eq!(request.into_buffer().await.unwrap().len(), 2000);
                });
            let refused = OperationError::Refused;
            assert!(
                matches!(error, MessageError::Operation { error, .. } if error == refused),
                "{error}"
            );
        });
    }
}

/// Drops `send` after some polls, and returns whether it was ready.
async fn drop_after(polls: u64, send: impl Future<Output = Result<(), MessageError>>) -> bool {
    let mut send = pin!(send);
    for _ in 0..polls {
        if let Poll::Ready(sent) = poll_once(&mut send) {
            sent.unwrap();
            return true;
        }
        yield_now().await;
    }
    false
}

#[test]
fn dropped_sends_send_all_or_nothing_and_return_their_memory() {
    for device in DEVICES {
        run(move || async move {
            let endpoint = endpoint(device);
            endpoint.pool().grow(8 << 20).await.unwrap();
            let (client, server) = open(&endpoint, lends().offer_bytes(50_000)).await;
            let receives = tokio::spawn(async move {
                let mut seen = Vec::new();
                while let Some(received) = server.receive().await.unwrap() {
                    assert!(*received == message(received.len())[..]);
                    seen.push(received.len());
                }
                seen
            });
            let (mut chance, mut ready) = (Chance(5), Vec::new());
            for at in 0..200 {
                let length = 1001 + at + if at % 3 == 0 { 20_000 } else { 0 };
                let polls = chance.below(6);
                let is_ready = if at % 2 == 0 {
                    let buffer = buffer(endpoint.pool(), length).await;
                    drop_after(polls, client.send_buffer(buffer)).await
                } else {
                    drop_after(polls, client.send(&message(length))).await
                };
                if is_ready {
                    ready.push(length);
                }
            }
            client.finish().await.unwrap();
            drop(client);
            let seen = receives.await.unwrap();
            let mut rest = seen.iter();
            assert!(
                ready.iter().all(|length| rest.any(|seen| seen == length)),
                "{ready:?} {seen:?}"
            );
            returned(&endpoint, 0).await;
        });
    }
}

#[test]
fn a_dropped_end_lets_the_peer_fetch_what_was_offered() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let endpoint = endpoint(device);
            let (client, server) = open(&endpoint, lends()).await;
            for length in [5000, 60_000, 1, 7000] {
                let buffer = buffer(endpoint.pool(), length).await;
                let mut send = Box::pin(client.send_buffer(buffer));
                let _ = poll_once(&mut send);
                // The offer is sent before the next message.
                client.send(&message(2)).await.unwrap();
            }
            drop(client);
            for length in [5000, 60_000, 1, 7000] {
                received(&server, length).await;
                received(&server, 2).await;
            }
            assert!(server.receive().await.unwrap().is_none());
            drop(server);
            returned(&endpoint, 0).await;
        });
    }
}

#[test]
fn dropped_calls_discard_their_long_replies() {
    for device in DEVICES {
        run(move || async move {
            let endpoint = endpoint(device);
            endpoint.pool().grow(1 << 20).await.unwrap();
            let (client, server) = open(&endpoint, lends()).await;
            let serve = tokio::spawn(async move {
                while let Some(request) = server.receive().await.unwrap() {
                    // The caller may have cancelled.
                    let _ = request.reply(&message(30_000)).await;
                }
            });
            for polls in 0..100 {
                let call = async { client.call(&message(4000)).await.map(drop) };
                drop_after(polls % 10, call).await;
            }
            assert_eq!(client.call(&message(4000)).await.unwrap().len(), 30_000);
            client.finish().await.unwrap();
            serve.await.unwrap();
            drop(client);
            returned(&endpoint, 0).await;
        });
    }
}

#[test]
fn a_receiver_without_memory_fetches_the_message_later() {
    let name = "message::offers::a_receiver_without_memory_fetches_the_message_later";
    in_own_process(name, || run_in_one_thread(fetched_later));
}

/// The subscriber raises the limit of the receiver's pool when it receives the report.
async fn fetched_later() {
    let (sender, receiver) = (endpoint("soft0"), endpoint("soft0"));
    let listener = receiver.listen_for_messages("127.0.0.1:0", lends()).await.unwrap();
    let client = sender.connect_messages(listener.local_addr(), lends());
    let (client, server) = tokio::join!(client, listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    let pool = receiver.pool().as_blocking().clone();
    pool.set_limit(4 << 20);
    let hears = Hears(move |event: Event| {
        if event.target.starts_with("rdma_connect::messaging") {
            pool.set_limit(usize::MAX);
        }
    });
    let _guard = tracing::subscriber::set_default(hears);
    let buffer = buffer(sender.pool(), 8 << 20).await;
    let (sent, received) = tokio::join!(client.send_buffer(buffer), server.receive());
    sent.unwrap();
    assert_eq!(received.unwrap().unwrap().len(), 8 << 20);
    drop((client, server));
    returned(&sender, 0).await;
    returned(&receiver, 0).await;
}

#[test]
fn a_sender_without_memory_sends_in_frames() {
    run_in_one_thread(|| async {
        let endpoint = endpoint("soft0");
        endpoint.pool().as_blocking().set_limit(4 << 20);
        let (client, server) = open(&endpoint, lends().fetch_bytes(1 << 20)).await;
        let _all = endpoint.pool().as_blocking().allocate(3 << 20).unwrap();
        let length = 2 << 20;
        let kept =
            std::iter::from_fn(|| endpoint.pool().as_blocking().try_allocate(64 << 10).unwrap());
        let mut kept: Vec<_> = kept.collect();
        // Memory for windows and frames.
        kept.pop();
        tokio::join!(async { client.send(&message(length)).await.unwrap() }, async {
            received(&server, length).await;
        });
    });
}

#[test]
fn pending_long_messages_in_frames_use_at_most_offer_bytes_of_the_pool() {
    const LENGTH: usize = 2 << 20;
    run_in_one_thread(|| async {
        let (sender, receiver) = (endpoint("soft0"), endpoint("soft0"));
        let options = Options::new().fetch_bytes(0).offer_bytes(5 << 20);
        let listener = receiver.listen_for_messages("127.0.0.1:0", options).await.unwrap();
        let client = sender.connect_messages(listener.local_addr(), options);
        let (Ok(client), Ok(server)) = tokio::join!(client, listener.accept()) else { panic!() };
        sender.pool().grow(8 * LENGTH).await.unwrap();
        let (before, bytes) = (sender.pool().usage().used_bytes, message(LENGTH));
        let staged = || sender.pool().usage().used_bytes - before;
        // A call whose question was sent has no copy, although it has no answer.
        let (mut calls, mut requests) = ([(); 2].map(|()| Box::pin(client.call(&bytes))), vec![]);
        for call in &mut calls {
            tokio::select! {
                answer = call => panic!("{answer:?}"),
                request = server.receive() => requests.push(request.unwrap()),
            }
        }
        assert_eq!(staged(), 0);
        let mut sends = [(); 5].map(|()| Box::pin(client.send(&bytes)));
        assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
        assert_eq!(staged(), 2 * LENGTH);
        for send in sends {
            let (sent, ()) = tokio::join!(send, received(&server, LENGTH));
            sent.unwrap();
        }
        assert_eq!(staged(), 0);
    });
}

/// Messages use memory of the heap meanwhile.
#[test]
fn a_pool_that_could_not_grow_grows_for_later_messages() {
    run_in_one_thread(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let endpoint = Endpoint::with_options(&pd, ConnectionOptions::new(&pd)).unwrap();
        let (client, server) = open(&endpoint, lends().offer_bytes(0)).await;
        let (pool, length) = (endpoint.pool().as_blocking(), 100_000);
        let _all: Vec<_> = std::iter::from_fn(|| pool.try_allocate(length).unwrap()).collect();
        let refused = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&refused);
        provider.at_region(move |call| {
            counts.fetch_add(u32::from(call == Call::RegisterRegion), Relaxed);
        });
        provider.refuse(Call::RegisterRegion, ALWAYS);
        assert_eq!(pool.usage().regions, 1);
        let echo = async || {
            tokio::join!(async { client.send(&message(length)).await.unwrap() }, async {
                received(&server, length).await;
            });
            yield_now().await;
        };
        while refused.load(Relaxed) == 0 {
            echo().await;
        }
        provider.refuse(Call::RegisterRegion, 0);
        while pool.usage().regions == 1 {
            echo().await;
        }
    });
}

/// The pool grows in a task of the runtime in which the receiver was created.
#[test]
fn a_receiver_whose_runtime_has_ended_and_whose_pool_must_grow_ends_the_connection() {
    run_in_one_thread(|| async {
        let host = Host::new("soft0");
        let options = lends();
        let qp = || options.fit(host.pd.create_qp());
        let listener = host.driver.listen("127.0.0.1:0", qp()).await.unwrap();
        let connect = host.driver.connect(listener.local_addr(), qp());
        let (one, other) = tokio::join!(connect, listener.accept());
        let (one, other) = (one.unwrap().0, other.unwrap());
        let sender = Messages::new(one, &Pool::new(&host.pd), options).await.unwrap();
        let pool = Pool::new(&host.pd);
        let create = move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(Messages::new(other, &pool, options)).unwrap()
        };
        let receiver = tokio::task::spawn_blocking(create).await.unwrap();
        let message = host.buffer(&message(6 << 20));
        let (sent, received) = tokio::join!(sender.send_buffer(message), receiver.receive());
        let MessageError::Operation { error, .. } = sent.unwrap_err() else { panic!() };
        assert_eq!(error, OperationError::Unknown);
        let error = received.unwrap_err();
        assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
    });
}

/// The device records all memory that is lent to it, and the objects that live.
#[test]
fn memory_is_lent_until_the_peer_has_fetched_it() {
    run_in_one_thread(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let endpoint = Endpoint::with_options(&pd, ConnectionOptions::new(&pd)).unwrap();
        endpoint.pool().grow(8 << 20).await.unwrap();
        let (client, server) = open(&endpoint, lends()).await;
        let before = endpoint.pool().usage();
        for refused in [0, 1, ALWAYS] {
            provider.refuse(Call::AllocateWindow, refused);
            for length in [2000, 50_000, 2001] {
                let lent = buffer(endpoint.pool(), length).await;
                tokio::join!(async { client.send_buffer(lent).await.unwrap() }, async {
                    received(&server, length).await;
                });
            }
        }
        provider.refuse(Call::AllocateWindow, 0);
        // Each window keeps a small buffer.
        while endpoint.pool().usage().used_bytes > before.used_bytes + 9 * 64 {
            yield_now().await;
        }
        // An offer that is not counted when the connection ends.
        let lent = buffer(endpoint.pool(), 100_000).await;
        drop_after(20, client.send_buffer(lent)).await;
        drop((client, server));
        returned(&endpoint, 0).await;
        drop((endpoint, pd));
        provider.gone().await;
    });
}

/// Empty ones, ones of one frame and of several, and ones that are lent.
#[test]
fn messages_of_all_lengths_register_nothing_once_the_pool_has_memory() {
    run_in_one_thread(|| async {
        let (pd, provider) = Provider::faulty("soft0");
        let endpoint = Endpoint::with_options(&pd, ConnectionOptions::new(&pd)).unwrap();
        endpoint.pool().grow(8 << 20).await.unwrap();
        let (client, server) = open(&endpoint, lends().eager_bytes(5000)).await;
        let registered = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&registered);
        provider.at_region(move |call| {
            counts.fetch_add(u32::from(call == Call::RegisterRegion), Relaxed);
        });
        drop(pd.allocate_region(64).unwrap());
        assert_eq!(registered.swap(0, Relaxed), 1);
        // An end that cannot register memory may send in another way, so the calls are counted, too.
        provider.refuse(Call::RegisterRegion, ALWAYS);
        for length in [0, 100, 900, 4000, 50_000].repeat(20) {
            let lent = buffer(endpoint.pool(), length).await;
            let sends = async {
                client.send(&message(length)).await.unwrap();
                client.post(&message(length)).await.unwrap();
                client.send_buffer(lent).await.unwrap();
                assert_eq!(client.call(&message(length)).await.unwrap().len(), length);
            };
            let receives = async {
                for _ in 0..3 {
                    received(&server, length).await;
                }
                let request = server.receive().await.unwrap().unwrap();
                request.reply(&message(length)).await.unwrap();
            };
            tokio::join!(sends, receives);
        }
        assert_eq!(registered.load(Relaxed), 0);
    });
}

/// With few slots, the frame that counts a fetched message may have to wait for an acknowledgement.
#[test]
fn a_program_that_waits_for_nothing_still_counts_what_it_fetched() {
    for device in DEVICES {
        run(move || async move {
            let endpoint = endpoint(device);
            for _ in 0..40 {
                // The second end does nothing after it has received the first message.
                drop(open(&endpoint, tiny()).await);
            }
        });
    }
}

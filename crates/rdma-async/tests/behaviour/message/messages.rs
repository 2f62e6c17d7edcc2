//! Messages arrive whole and in order, and their sends end as documented.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use rdma_async::message::{
    ConnectionError, MessageError, Messages, OperationError, Options, SendError,
};
use rdma_async::{Endpoint, Pool};
use rdma_mem::AccessFlags;
use rdma_qp::prelude::*;
use tokio::task::JoinSet;

use super::rig::{endpoint, message, messages, short};
use crate::common::host::Host;
use crate::common::{DEVICES, poll_for, poll_once, polled_slowly, run, run_in_one_thread};

/// Some lengths, most of them near that of a frame, which begins with a header of up to 32 bytes.
fn lengths() -> impl Iterator<Item = usize> {
    let frame = 32 << 10;
    let near = (frame - 33..=frame).chain([frame / 2 - 1, frame / 2, 4088, 4089, 2 * frame]);
    [0, 1, 8, (1 << 20) + 1, 0, 3].into_iter().chain(near)
}

#[test]
fn messages_of_any_length_arrive_in_order() {
    for device in DEVICES {
        run(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new()).await;
            let sends = async {
                for length in lengths() {
                    client.send(&message(length)).await.unwrap();
                }
                client.finish().await.unwrap();
            };
            let receives = async {
                for length in lengths() {
                    let received = server.receive().await.unwrap().unwrap();
                    assert!(!received.is_request());
                    assert_eq!(received.len(), length);
                    assert!(*received == message(length)[..], "{length}");
                }
                assert!(server.receive().await.unwrap().is_none());
            };
            tokio::join!(sends, receives);
        });
    }
}

#[test]
fn many_sends_may_be_outstanding() {
    for device in DEVICES {
        for options in [Options::new(), short(), Options::new().operations(3)] {
            run(move || async move {
                let (client, server) = messages(&endpoint(device), options).await;
                let client = Arc::new(client);
                let mut sends = JoinSet::new();
                for length in 0..100 {
                    let client = Arc::clone(&client);
                    sends.spawn(async move { client.send(&message(length * 7)).await.unwrap() });
                    if length % 10 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                let mut lengths = Vec::new();
                for _ in 0..100 {
                    let received = server.receive().await.unwrap().unwrap();
                    assert!(*received == message(received.len())[..]);
                    lengths.push(received.len());
                }
                lengths.sort_unstable();
                assert_eq!(lengths, (0..100).map(|length| length * 7).collect::<Vec<_>>());
                while let Some(sent) = sends.join_next().await {
                    sent.unwrap();
                }
            });
        }
    }
}

/// The send queue has room for one WRITE besides the frames.
#[test]
fn many_writes_leave_room_for_messages() {
    run(|| async {
        let endpoint = endpoint(DEVICES[0]);
        let (client, server) = messages(&endpoint, short()).await;
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let landing = endpoint.pd().allocate_shared_region(1 << 16, access).unwrap();
        let target = landing.remote();
        let client = Arc::new(client);
        let mut writes = JoinSet::new();
        for number in 0..40 {
            let (client, buffer) = (Arc::clone(&client), endpoint.allocate(1 << 16).await.unwrap());
            writes.spawn(async move {
                let mut write = pin!(client.write(buffer, 0..1 << 16, target));
                // Every other future is dropped after its first poll. Its WRITE continues if it was posted.
                if poll_once(&mut write).is_pending() && number % 2 == 0 {
                    write.await.unwrap();
                }
            });
        }
        for length in 0..20 {
            client.send(&message(length)).await.unwrap();
            assert_eq!(server.receive().await.unwrap().unwrap().len(), length);
        }
        while let Some(written) = writes.join_next().await {
            written.unwrap();
        }
        client.send(&message(9)).await.unwrap();
        assert_eq!(server.receive().await.unwrap().unwrap().len(), 9);
    });
}

#[test]
fn a_message_after_a_write_arrives_after_its_bytes() {
    for device in DEVICES {
        run(move || async move {
            let endpoint = endpoint(device);
            let (client, server) = messages(&endpoint, Options::new()).await;
            let access = AccessFlags::new().with_local_write().with_remote_write();
            let landing = endpoint.pd().allocate_shared_region(100_000, access).unwrap();
            let target = landing.remote().slice(0..99_000).unwrap();
            let of = |round: u8| message(100_000).into_iter().map(move |byte| byte ^ round);
            let writes = async {
                let mut buffer = endpoint.allocate(100_000).await.unwrap();
                for round in 1..=20_u8 {
                    buffer.iter_mut().zip(of(round)).for_each(|(byte, new)| *byte = new);
                    buffer = client.write(buffer, 1000..100_000, target).await.unwrap();
                    client.send(&[round]).await.unwrap();
                    assert!(client.receive().await.unwrap().unwrap().is_empty());
                }
            };
            let receives = async {
                for round in 1..=20_u8 {
                    assert_eq!(*server.receive().await.unwrap().unwrap(), [round]);
                    let mut found = vec![0; 100_000];
                    landing.read(0, &mut found).unwrap();
                    assert!(found.into_iter().eq(of(round).skip(1000).chain([0; 1000])));
                    server.post(b"").await.unwrap();
                }
            };
            tokio::join!(writes, receives);
        });
    }
}

#[test]
fn posted_messages_arrive_in_order() {
    for device in DEVICES {
        run(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new()).await;
            let posts = async {
                for length in lengths() {
                    client.post(&message(length)).await.unwrap();
                }
                client.finish().await.unwrap();
            };
            let receives = async {
                for length in lengths() {
                    let received = server.receive().await.unwrap().unwrap();
                    assert!(*received == message(length)[..], "{length}");
                }
                assert!(server.receive().await.unwrap().is_none());
            };
            tokio::join!(posts, receives);
        });
    }
}

/// The peer has granted memory for few frames, and receives nothing at first.
#[test]
fn a_post_that_is_dropped_before_it_is_ready_sends_nothing() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short()).await;
            client.post(&[0]).await.unwrap();
            let mut posted = 0;
            while polled_slowly(100, client.post(&[posted + 1])).await.is_some() {
                posted += 1;
            }
            let receives = async {
                for number in (0..=posted).chain([255]) {
                    assert_eq!(*server.receive().await.unwrap().unwrap(), [number]);
                }
                assert!(server.receive().await.unwrap().is_none());
            };
            let last = async {
                client.post(&[255]).await.unwrap();
                client.finish().await.unwrap();
            };
            tokio::join!(receives, last);
        });
    }
}

/// The peer grants memory for the rest of a long message only when its program receives.
#[test]
fn a_flush_waits_until_the_device_of_the_peer_has_all_messages() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short()).await;
            client.flush().await.unwrap();
            client.post(b"short").await.unwrap();
            // The device of the peer receives it, although the program does not.
            client.flush().await.unwrap();
            client.post(&message(5000)).await.unwrap();
            assert!(polled_slowly(100, client.flush()).await.is_none());
            let receives = async {
                assert_eq!(*server.receive().await.unwrap().unwrap(), *b"short");
                assert!(*server.receive().await.unwrap().unwrap() == message(5000)[..]);
            };
            tokio::join!(async { client.flush().await.unwrap() }, receives);
        });
    }
}

#[test]
fn both_ends_send_long_messages_at_once() {
    for device in DEVICES {
        run(move || async move {
            let (one, other) = messages(&endpoint(device), short()).await;
            let talk = |end: Messages| async move {
                let sends = async {
                    for length in [50_000, 10, 20_000] {
                        end.send(&message(length)).await.unwrap();
                    }
                    end.finish().await.unwrap();
                };
                let receives = async {
                    for length in [50_000, 10, 20_000] {
                        let received = end.receive().await.unwrap().unwrap();
                        assert!(*received == message(length)[..]);
                    }
                    assert!(end.receive().await.unwrap().is_none());
                };
                tokio::join!(sends, receives);
            };
            tokio::join!(talk(one), talk(other));
        });
    }
}

#[test]
fn a_receive_that_is_dropped_loses_nothing() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short()).await;
            let sends = async {
                for length in 0..50 {
                    client.send(&message(length * 40)).await.unwrap();
                }
            };
            let receives = async {
                for length in 0..50 {
                    // Dropped after each poll, until it is ready.
                    let received = loop {
                        if let std::task::Poll::Ready(received) =
                            poll_once(&mut pin!(server.receive()))
                        {
                            break received.unwrap().unwrap();
                        }
                        tokio::task::yield_now().await;
                    };
                    assert_eq!(received.len(), length * 40);
                }
            };
            tokio::join!(sends, receives);
        });
    }
}

/// A task that does nothing when it is woken.
struct Idle;

impl Wake for Idle {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_dropped_future_leaves_no_waker() {
    run_in_one_thread(|| async {
        let (client, server) = messages(&endpoint("soft0"), short().operations(1)).await;
        let begun = client.send(&[1; 5000]);
        let mut begun = pin!(begun);
        assert!(poll_once(&mut begun).is_pending());
        let task = Arc::new(Idle);
        let waker = Waker::from(Arc::clone(&task));
        assert!(poll_for(&mut pin!(server.receive()), &waker).is_pending());
        assert!(poll_for(&mut pin!(client.send(b"full")), &waker).is_pending());
        assert!(poll_for(&mut pin!(client.finish()), &waker).is_pending());
        assert_eq!(Arc::strong_count(&task), 2);
    });
}

#[test]
fn a_send_that_is_dropped_before_it_began_sends_nothing() {
    run_in_one_thread(|| async {
        let (client, server) = messages(&endpoint("soft0"), short()).await;
        // More than the peer has memory for, so a later message waits.
        let mut long = Box::pin(client.send(&[1; 5000]));
        assert!(poll_once(&mut long).is_pending());
        let mut waits = Box::pin(client.send(b"never"));
        assert!(poll_once(&mut waits).is_pending());
        drop(waits);
        let rest = async {
            long.await.unwrap();
            client.send(b"last").await.unwrap();
        };
        let receives = async {
            assert_eq!(server.receive().await.unwrap().unwrap().len(), 5000);
            assert_eq!(*server.receive().await.unwrap().unwrap(), *b"last");
        };
        tokio::join!(rest, receives);
    });
}

#[test]
fn a_send_that_is_dropped_after_it_began_is_sent_completely() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short()).await;
            // The hello of the server has arrived after the first message.
            let (sent, first) = tokio::join!(client.send(b"first"), server.receive());
            assert!(sent.is_ok() && first.unwrap().is_some());
            let mut long = Box::pin(client.send(&[1; 20_000]));
            assert!(poll_once(&mut long).is_pending());
            drop(long);
            // No task of the client waits, but its message goes on.
            let received = server.receive().await.unwrap().unwrap();
            assert!(received.len() == 20_000 && received.iter().all(|&byte| byte == 1));
        });
    }
}

#[test]
fn a_message_beyond_the_limit_of_the_peer_is_not_sent() {
    run_in_one_thread(|| async {
        let options = Options::new().max_message(1000);
        let (client, server) = messages(&endpoint("soft0"), options).await;
        let error = client.send(&[0; 1001]).await.unwrap_err();
        let limit = SendError::TooLong { length: 1001, limit: 1000 };
        assert!(matches!(error, MessageError::NotSent(reason) if reason == limit), "{error}");
        client.send(&[0; 1000]).await.unwrap();
        assert_eq!(server.receive().await.unwrap().unwrap().len(), 1000);
        client.finish().await.unwrap();
        let error = client.send(b"late").await.unwrap_err();
        assert!(matches!(error, MessageError::NotSent(SendError::Finished)), "{error}");
    });
}

/// It would wait for memory without end.
#[test]
fn a_message_beyond_the_limit_of_the_pool_of_the_peer_is_not_sent() {
    run_in_one_thread(|| async {
        let endpoint = endpoint("soft0");
        let limit = 6 << 20;
        endpoint.pool().as_blocking().set_limit(limit);
        let (client, server) = messages(&endpoint, Options::new()).await;
        let long = message(limit + 1);
        let error = client.send(&long).await.unwrap_err();
        let too_long = SendError::TooLong { length: limit + 1, limit: 6 << 20 };
        assert!(matches!(error, MessageError::NotSent(reason) if reason == too_long), "{error}");
        // The pool of this endpoint has the same limit. It does not limit the length, because nothing is fetched.
        drop((client, server));
        let endpoint = self::endpoint("soft0");
        endpoint.pool().as_blocking().set_limit(limit);
        let (client, server) = messages(&endpoint, Options::new().fetch_bytes(0)).await;
        let (sent, received) = tokio::join!(client.send(&long), server.receive());
        sent.unwrap();
        assert!(*received.unwrap().unwrap() == long[..]);
    });
}

#[test]
fn a_peer_that_does_not_receive_stops_the_sender() {
    run_in_one_thread(|| async {
        let (client, server) = messages(&endpoint("soft0"), short()).await;
        let mut sent = 0;
        // What fits is sent at once; the rest waits.
        let waits = loop {
            let mut send = Box::pin(client.send(&[7; 100]));
            let mut refused = 0;
            while refused < 100 && poll_once(&mut send).is_pending() {
                refused += 1;
                tokio::task::yield_now().await;
            }
            if refused == 100 {
                break send;
            }
            sent += 1;
        };
        assert!((1..=10).contains(&sent), "{sent}");
        let receives = async {
            for _ in 0..=sent {
                assert_eq!(server.receive().await.unwrap().unwrap().len(), 100);
            }
        };
        tokio::join!(async { waits.await.unwrap() }, receives);
    });
}

#[test]
fn messages_that_the_program_keeps_are_not_overwritten() {
    run(|| async {
        let (client, server) = messages(&endpoint("soft0"), short()).await;
        let mut kept = Vec::new();
        for length in 1..200 {
            client.send(&message(length)).await.unwrap();
            kept.push(server.receive().await.unwrap().unwrap());
        }
        drop((client, server));
        for (length, received) in (1..).zip(kept) {
            assert!(*received == message(length)[..]);
        }
    });
}

/// Both ends by address, and a handle with which to kill the server's.
async fn killable(host: &Host) -> (Messages, Messages, rdma_async::Connection) {
    let (pool, options) = (Pool::from(host.pool.clone()), Options::new());
    let qp = options.fit(host.pd.create_qp());
    let listener = host.driver.listen("127.0.0.1:0", qp.clone()).await.unwrap();
    let client = host.driver.connect(listener.local_addr(), qp);
    let (client, server) = tokio::join!(client, listener.accept());
    let (client, server) = (client.unwrap().0, server.unwrap());
    let killed = server.clone();
    let client = Messages::new(client, &pool, options);
    let (client, server) = tokio::join!(client, Messages::new(server, &pool, options));
    (client.unwrap(), server.unwrap(), killed)
}

#[test]
fn a_peer_that_dies_fails_all_that_waits() {
    for device in DEVICES {
        run(move || async move {
            let host = Host::new(device);
            let (client, server, killed) = killable(&host).await;
            client.send(b"hello").await.unwrap();
            drop(server.receive().await.unwrap().unwrap());
            let client = Arc::new(client);
            let [receives, calls] = [Arc::clone(&client), Arc::clone(&client)];
            let receives = tokio::spawn(async move { receives.receive().await.unwrap_err() });
            let calls = tokio::spawn(async move { calls.call(b"question").await.unwrap_err() });
            assert!(server.receive().await.unwrap().unwrap().is_request());
            killed.close().unwrap();
            let error = receives.await.unwrap();
            assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
            let error = calls.await.unwrap();
            let MessageError::Operation { error, ended } = error else { panic!("{error}") };
            // Either the request was refused before, or it is unknown.
            assert!(matches!(error, OperationError::Unknown | OperationError::Refused), "{error}");
            assert!(ended.is_none_or(|ended| ended == ConnectionError::Lost));
            let error = client.send(b"late").await.unwrap_err();
            assert!(matches!(error, MessageError::Ended(ConnectionError::Lost)), "{error}");
            client.finish().await.unwrap_err();
        });
    }
}

#[test]
fn a_dropped_end_still_sends_what_has_begun() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short()).await;
            let (sent, first) = tokio::join!(client.send(b"first"), server.receive());
            assert!(sent.is_ok() && first.unwrap().is_some());
            let mut long = Box::pin(client.send(&[1; 5000]));
            assert!(poll_once(&mut long).is_pending());
            drop(long);
            drop(client);
            assert!(server.receive().await.unwrap().is_some_and(|it| it.len() == 5000));
            assert!(server.receive().await.unwrap().is_none());
        });
    }
}

#[test]
fn a_dropped_end_discards_what_arrives_and_later_messages_fail() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short()).await;
            let request = tokio::select! {
                reply = client.call(b"a question") => unreachable!("{reply:?}"),
                request = server.receive() => request.unwrap().unwrap(),
            };
            server.send(b"unread").await.unwrap();
            // More than the client's window.
            let mut waiting = Box::pin(server.send(&[1; 30_000]));
            assert!(poll_once(&mut waiting).is_pending());
            drop(client);
            waiting.await.unwrap();
            let error = loop {
                if let Err(error) = server.post(b"unread").await {
                    break error;
                }
            };
            let is_refused =
                |error: &_| matches!(error, MessageError::NotSent(SendError::PeerFinished));
            assert!(is_refused(&error), "{error}");
            let error = server.send(b"late").await.unwrap_err();
            assert!(is_refused(&error), "{error}");
            let error = server.call(b"a late question").await.unwrap_err();
            assert!(is_refused(&error), "{error}");
            request.reply(b"a late answer").await.unwrap_err();
            server.flush().await.unwrap();
            server.finish().await.unwrap();
            assert!(server.receive().await.unwrap().is_none());
        });
    }
}

#[test]
fn a_peer_that_sends_garbage_fails_only_its_own_connection() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let host = Host::new(device);
            let options = Options::new();
            let prepare = || host.driver.prepare(options.fit(host.pd.create_qp())).unwrap();
            let (one, peer) = (prepare(), prepare());
            let (at_one, at_peer) = (one.endpoint(), peer.endpoint());
            let (one, peer) = (one.handshake(at_peer).unwrap(), peer.handshake(at_one).unwrap());
            let pool = Pool::from(host.pool.clone());
            let victim = Messages::new(one, &pool, options).await.unwrap();
            let (fine, other) = messages(&endpoint(device), options).await;
            for _ in 0..4 {
                drop(peer.receive(host.pool.allocate(4096).unwrap()).try_post().unwrap());
            }
            peer.send(host.buffer(b"certainly not a frame")).await.unwrap();
            let error = victim.receive().await.unwrap_err();
            assert!(matches!(error, MessageError::Ended(ConnectionError::Frame(_))), "{error}");
            fine.send(b"fine").await.unwrap();
            assert_eq!(*other.receive().await.unwrap().unwrap(), *b"fine");
        });
    }
}

#[test]
fn a_connection_that_does_not_linger_resets_its_peer() {
    run_in_one_thread(|| async {
        let at_once = short().linger(Duration::ZERO);
        let (client, server) = messages(&endpoint("soft0"), at_once).await;
        client.send(b"sent").await.unwrap();
        // More than the client's window, so the client does not end cleanly.
        let long = vec![1; 30_000];
        let mut waiting = Box::pin(server.send(&long));
        assert!(poll_once(&mut waiting).is_pending());
        drop(client);
        let MessageError::Operation { ended, .. } = waiting.await.unwrap_err() else { panic!() };
        assert_eq!(ended, Some(ConnectionError::Lost));
        assert_eq!(*server.receive().await.unwrap().unwrap(), *b"sent");
    });
}

#[test]
fn senders_that_wait_fail_when_the_peer_no_longer_receives() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short().operations(2)).await;
            let servers = std::iter::repeat_n(Arc::new(server), 8);
            let send = async |server: Arc<Messages>| server.send(&[1; 3000]).await;
            let sends: JoinSet<_> = servers.map(send).collect();
            tokio::task::yield_now().await;
            drop(client);
            let sent = sends.join_all().await;
            let ended = |it: &_| matches!(it, Err(MessageError::NotSent(SendError::PeerFinished)));
            assert!(sent.iter().all(|it| it.is_ok() || ended(it)), "{sent:?}");
            assert!(sent.iter().any(ended), "{sent:?}");
        });
    }
}

#[test]
fn all_memory_returns_to_the_pool() {
    async fn talk(endpoint: &Endpoint) {
        let (client, server) = messages(endpoint, Options::new()).await;
        client.send(&message(100)).await.unwrap();
        client.send(&message(10_000)).await.unwrap();
        let kept = server.receive().await.unwrap().unwrap();
        // The second one is not received.
        let ends = tokio::join!(client.finish(), server.finish());
        assert!(ends.0.is_ok() && ends.1.is_ok(), "{ends:?}");
        drop((client, server, kept));
    }
    for device in DEVICES {
        run(move || async move {
            let endpoint = endpoint(device);
            talk(&endpoint).await;
            while endpoint.pool().usage().buffers > 0 {
                tokio::task::yield_now().await;
            }
        });
    }
}

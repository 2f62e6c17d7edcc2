//! Requests and replies, and what happens if either end drops one.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rdma_async::message::{Message, MessageError, Messages, OperationError, Options, SendError};
use tokio::task::JoinSet;

use super::offers::returned;
use super::rig::{endpoint, message, messages, overwrite, short};
use crate::common::chance::Chance;
use crate::common::{DEVICES, poll_once, polled, run, run_in_one_thread};

#[test]
fn each_call_gets_its_own_reply() {
    for device in DEVICES {
        for options in [Options::new(), short(), Options::new().calls(2)] {
            run(move || async move {
                let (client, server) = messages(&endpoint(device), options).await;
                let client = Arc::new(client);
                let serve = tokio::spawn(async move {
                    let mut kept = Vec::new();
                    while let Some(request) = server.receive().await.unwrap() {
                        assert!(request.is_request());
                        kept.push(request);
                        // Pairs of requests are answered in the opposite order, unless only one arrived.
                        if kept.len() == 2 {
                            for request in kept.drain(..).rev() {
                                let answer: Vec<u8> = request.iter().rev().copied().collect();
                                request.reply(&answer).await.unwrap();
                            }
                        }
                    }
                });
                let mut calls = JoinSet::new();
                for length in 0..40 {
                    let client = Arc::clone(&client);
                    calls.spawn(async move {
                        let question = message(length * 30);
                        let mut answer = client.call(&question).await.unwrap().to_vec();
                        answer.reverse();
                        assert!(answer == question, "{length}");
                    });
                }
                while let Some(called) = calls.join_next().await {
                    called.unwrap();
                }
                client.finish().await.unwrap();
                serve.await.unwrap();
            });
        }
    }
}

#[test]
fn a_dropped_request_fails_the_call() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new()).await;
            let serve = async { drop(server.receive().await.unwrap()) };
            let (called, ()) = tokio::join!(client.call(b"question"), serve);
            let error = called.unwrap_err();
            assert!(is_refused(&error), "{error}");
        });
    }
}

/// The refusal waits until the client has memory for it, and the server's program waits for nothing then.
#[test]
fn a_request_that_is_dropped_without_credit_is_refused_later() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), short().window_bytes(512)).await;
            // While this call waits, the client processes frames.
            let mut first = Box::pin(client.call(b"kept"));
            let kept = tokio::select! {
                called = &mut first => unreachable!("{called:?}"),
                request = server.receive() => request.unwrap().unwrap(),
            };
            let (mut posted, mut refused) = (0, 0);
            while refused < 100 {
                match poll_once(&mut Box::pin(server.post(b"a note"))) {
                    Poll::Ready(result) => {
                        result.unwrap();
                        (posted, refused) = (posted + 1, 0);
                    }
                    Poll::Pending => refused += 1,
                }
                assert!(poll_once(&mut first).is_pending());
                tokio::task::yield_now().await;
            }
            let mut second = Box::pin(client.call(b"dropped"));
            let request = tokio::select! {
                called = &mut second => unreachable!("{called:?}"),
                request = server.receive() => request.unwrap().unwrap(),
            };
            drop(request);
            for _ in 0..posted {
                assert_eq!(*client.receive().await.unwrap().unwrap(), *b"a note");
            }
            let error = second.await.unwrap_err();
            assert!(is_refused(&error), "{error}");
            drop(kept);
            assert!(is_refused(&first.await.unwrap_err()));
        });
    }
}

#[test]
fn a_dropped_call_is_cancelled_and_its_reply_is_discarded() {
    for device in DEVICES {
        run_in_one_thread(move || async move {
            let (client, server) = messages(&endpoint(device), Options::new()).await;
            let (sent, first) = tokio::join!(client.send(b"open"), server.receive());
            assert!(sent.is_ok() && first.unwrap().is_some());
            let mut call = Box::pin(client.call(b"question"));
            assert!(poll_once(&mut call).is_pending());
            let request = server.receive().await.unwrap().unwrap();
            drop(call);
            // The client's message arrives after the notice that the reply is not wanted.
            let (sent, note) = tokio::join!(client.send(b"a note"), server.receive());
            assert!(sent.is_ok());
            assert_eq!(*note.unwrap().unwrap(), *b"a note");
            let error = request.reply(b"late").await.unwrap_err();
            let is_cancelled = matches!(error, MessageError::NotSent(SendError::NotOpenRequest));
            assert!(is_cancelled, "{error}");
            // The next call has another ID.
            let serve = async { server.receive().await.unwrap().unwrap().reply(b"answer").await };
            let (answer, replied) = tokio::join!(client.call(b"another"), serve);
            assert_eq!(*answer.unwrap(), *b"answer");
            replied.unwrap();
        });
    }
}

#[test]
fn a_call_fails_if_the_peer_finishes_without_a_reply() {
    run_in_one_thread(|| async {
        let (client, server) = messages(&endpoint("soft0"), Options::new()).await;
        let serve = async {
            let request = server.receive().await.unwrap().unwrap();
            server.finish().await.unwrap();
            request.reply(b"late").await.unwrap_err()
        };
        let (called, replied) = tokio::join!(client.call(b"question"), serve);
        let error = called.unwrap_err();
        let is_finished =
            matches!(error, MessageError::Operation { error: OperationError::PeerFinished, .. });
        assert!(is_finished, "{error}");
        assert!(matches!(replied, MessageError::NotSent(SendError::Finished)), "{replied}");
    });
}

#[test]
fn a_message_that_is_no_request_has_no_reply() {
    run_in_one_thread(|| async {
        let (client, server) = messages(&endpoint("soft0"), Options::new()).await;
        client.send(b"a note").await.unwrap();
        let note = server.receive().await.unwrap().unwrap();
        let error = note.reply(b"thanks").await.unwrap_err();
        assert!(matches!(error, MessageError::NotSent(SendError::NotOpenRequest)), "{error}");
    });
}

#[test]
fn both_ends_may_call_each_other_at_once() {
    for device in DEVICES {
        run(move || async move {
            let (one, other) = messages(&endpoint(device), short()).await;
            let [one, other] = [Arc::new(one), Arc::new(other)];
            let mut servers = JoinSet::new();
            for end in [&one, &other] {
                let end = Arc::clone(end);
                servers.spawn(async move {
                    while let Some(request) = end.receive().await.unwrap() {
                        let answer = request.to_vec();
                        request.reply(&answer).await.unwrap();
                    }
                });
            }
            let talk = |end: Arc<rdma_async::message::Messages>| async move {
                for length in 0..30 {
                    let question = message(length * 50);
                    assert!(*end.call(&question).await.unwrap() == question[..]);
                }
            };
            tokio::join!(talk(Arc::clone(&one)), talk(Arc::clone(&other)));
            let ends = tokio::join!(one.finish(), other.finish());
            assert!(ends.0.is_ok() && ends.1.is_ok(), "{ends:?}");
            while let Some(served) = servers.join_next().await {
                served.unwrap();
            }
        });
    }
}

#[test]
fn operations_that_are_dropped_at_random_disturb_no_others() {
    for device in DEVICES {
        for options in [Options::new(), short().operations(8).calls(3)] {
            run(move || async move {
                let (client, server) = messages(&endpoint(device), options).await;
                let client = Arc::new(client);
                let serve = tokio::spawn(async move {
                    let mut chance = Chance(11);
                    while let Some(request) = server.receive().await.unwrap() {
                        if !request.is_request() {
                            assert!(*request == message(request.len())[..]);
                            continue;
                        }
                        // The call may be cancelled, and the reply may be dropped too.
                        let answer = request.to_vec();
                        let polls = usize::try_from(chance.below(6)).unwrap();
                        match polls {
                            0 => _ = polled(polls, request.reply(&answer)).await,
                            _ => _ = request.reply(&answer).await,
                        }
                    }
                });
                let mut tasks = JoinSet::new();
                for seed in 0..8 {
                    let client = Arc::clone(&client);
                    tasks.spawn(async move {
                        let mut chance = Chance(seed);
                        for _ in 0..40 {
                            let question = message(usize::try_from(chance.below(2000)).unwrap());
                            let polls = usize::try_from(chance.below(4)).unwrap();
                            match chance.below(3) {
                                0 => _ = polled(polls, client.send(&question)).await,
                                1 => _ = polled(polls, client.call(&question)).await,
                                _ => match client.call(&question).await {
                                    Ok(answer) => assert!(*answer == question[..]),
                                    Err(error) => assert!(is_refused(&error), "{error:?}"),
                                },
                            }
                        }
                    });
                }
                while let Some(done) = tasks.join_next().await {
                    done.unwrap();
                }
                client.finish().await.unwrap();
                serve.await.unwrap();
            });
        }
    }
}

fn is_refused(error: &MessageError) -> bool {
    matches!(error, MessageError::Operation { error: OperationError::Refused, ended: None })
}

/// Receives a message of each kind. Two have no memory of the pool, one is a copy, one has the memory where it arrived,
/// and one arrives in several frames. One is fetched if the ends lend. The last two are a reply and a request. The server
/// finishes.
async fn keep(client: &Messages, server: &Messages) -> Vec<Message> {
    let mut kept = Vec::new();
    for length in [0, 10, 1000, 20_000, 100_000, 300_000] {
        let sent = message(length);
        let (sent, received) = tokio::join!(client.send(&sent), server.receive());
        sent.unwrap();
        kept.push(received.unwrap().unwrap());
    }
    let long = message(20_000);
    let answers = async {
        let request = server.receive().await.unwrap().unwrap();
        request.reply(&long).await.unwrap();
    };
    kept.push(tokio::join!(client.call(b"a question"), answers).0.unwrap());
    let finishes = async {
        let request = server.receive().await.unwrap().unwrap();
        server.finish().await.unwrap();
        request
    };
    let (unanswered, request) = tokio::join!(client.call(&long), finishes);
    unanswered.unwrap_err();
    kept.push(request);
    kept
}

#[test]
fn kept_messages_keep_only_their_own_memory_after_the_end() {
    let cut_off = Options::new().linger(Duration::ZERO).offer_bytes(0);
    for (options, is_clean) in [(Options::new(), true), (cut_off, false)] {
        for device in DEVICES {
            run(move || async move {
                let endpoint = endpoint(device);
                endpoint.pool().grow(4 << 20).await.unwrap();
                let (client, server) = messages(&endpoint, options).await;
                let kept = keep(&client, &server).await;
                if is_clean {
                    client.finish().await.unwrap();
                } else {
                    // The server has memory for a part of it.
                    client.post(&vec![7; 3 << 20]).await.unwrap();
                }
                drop((client, server));
                returned(&endpoint, 6).await;
                let usage = endpoint.pool().usage();
                // Three messages have a frame of 32 KiB, and three have their own length.
                assert!(usage.buffers == 6 && usage.used_bytes < 500_000, "{usage:?}");
                overwrite(&endpoint).await;
                for kept in &kept {
                    assert!(**kept == message(kept.len())[..], "{}", kept.len());
                }
                drop(kept);
                returned(&endpoint, 0).await;
            });
        }
    }
}

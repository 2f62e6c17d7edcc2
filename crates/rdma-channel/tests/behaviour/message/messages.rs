//! Messages arrive whole and in order, and calls end as documented.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rdma_channel::message::{MessageError, Messages, OperationError, Options, SendError};
use rdma_channel::{AccessFlags, RemoteMemoryRegion};

use super::rig::{bytes, on_each, once, short};

const LENGTHS: [usize; 9] = [0, 1, 8, 4088, 16 << 10, (32 << 10) + 1, 300_000, (1 << 20) + 1, 3];

#[test]
fn messages_of_any_length_arrive_in_order() {
    on_each(|rig| {
        for options in [Options::new(), short()] {
            let (client, server) = rig.messages(options);
            thread::scope(|threads| {
                threads.spawn(|| {
                    LENGTHS.iter().for_each(|&length| client.send(&bytes(length)).unwrap());
                    client.finish().unwrap();
                });
                for length in LENGTHS {
                    let received = server.receive().unwrap().unwrap();
                    assert!(!received.is_request());
                    assert!(*received == bytes(length)[..], "{length}");
                }
                assert!(server.receive().unwrap().is_none());
            });
        }
    });
}

/// Both ends call, and serve the other end in another thread. So one thread sleeps while others send.
#[test]
fn several_threads_of_an_end_call_and_serve_at_once() {
    on_each(|rig| {
        // The requests of three threads fit into the window, so that replies do not wait for them.
        let (one, other) = rig.messages(short().window_bytes(4096));
        let all_answered = Barrier::new(2);
        thread::scope(|threads| {
            for end in [&one, &other] {
                threads.spawn(|| {
                    while let Some(request) = end.receive().unwrap() {
                        let answer = request.iter().rev().copied().collect::<Vec<_>>();
                        request.reply(&answer).unwrap();
                    }
                });
            }
            for end in [&one, &other] {
                threads.spawn(|| {
                    let call = |length| {
                        let answer = end.call(&bytes(length)).unwrap();
                        assert!(answer.iter().rev().eq(&bytes(length)), "{length}");
                    };
                    thread::scope(|calls| {
                        for first in 0..3 {
                            calls.spawn(move || (0..40).for_each(|next| call(first + next * 11)));
                        }
                    });
                    all_answered.wait();
                    end.finish().unwrap();
                });
            }
        });
    });
}

#[test]
fn a_buffer_is_sent_and_received_as_a_buffer() {
    once(|rig| {
        let (client, server) = rig.messages(Options::new());
        for length in LENGTHS {
            let mut buffer = rig.pool.allocate(length).unwrap();
            buffer.copy_from_slice(&bytes(length));
            thread::scope(|threads| {
                threads.spawn(|| client.send_buffer(buffer).unwrap());
                let received = server.receive().unwrap().unwrap().into_buffer().unwrap();
                assert!(*received == bytes(length)[..]);
            });
        }
    });
}

#[cfg(feature = "serde")]
#[test]
fn a_value_is_sent_and_decoded() {
    once(|rig| {
        let (client, server) = rig.messages(Options::new());
        client.send_value(&("apples", 3_u32)).unwrap();
        let order = server.receive().unwrap().unwrap();
        assert_eq!(order.value::<(String, u32)>().unwrap(), ("apples".to_owned(), 3));
        order.value::<[String; 9]>().unwrap_err();
    });
}

#[test]
fn a_dropped_request_is_refused_and_a_finished_peer_does_not_reply() {
    once(|rig| {
        let (client, server) = rig.messages(Options::new());
        thread::scope(|threads| {
            threads.spawn(|| {
                drop(server.receive().unwrap().unwrap());
                let _unanswered = server.receive().unwrap().unwrap();
                server.finish().unwrap();
                assert!(server.receive().unwrap().is_none());
            });
            for expected in [OperationError::Refused, OperationError::PeerFinished] {
                let error = client.call(b"a question").unwrap_err();
                let MessageError::Operation { error, .. } = error else { panic!("{error}") };
                assert_eq!(error, expected);
            }
            let error = client.call(b"late").unwrap_err();
            assert!(matches!(error, MessageError::NotSent(SendError::PeerFinished)), "{error}");
            client.finish().unwrap();
        });
    });
}

#[test]
fn a_message_beyond_the_limit_of_the_peer_is_not_sent() {
    once(|rig| {
        let (client, server) = rig.messages(Options::new().max_message(1000));
        let error = client.send(&[0; 1001]).unwrap_err();
        let limit = SendError::TooLong { length: 1001, limit: 1000 };
        assert!(matches!(error, MessageError::NotSent(reason) if reason == limit), "{error}");
        client.send(&[0; 1000]).unwrap();
        assert_eq!(server.receive().unwrap().unwrap().len(), 1000);
    });
}

fn is_late(error: &MessageError) -> bool {
    matches!(error, MessageError::TimedOut { .. })
}

/// Sends a message until that has succeeded within the limit. The peer may receive it several times.
fn send_in_time(end: &Messages, message: &[u8]) {
    while let Err(error) = end.send(message) {
        assert!(is_late(&error), "{error}");
    }
}

/// The peer does not receive, so a message waits for memory until its limit.
#[test]
fn a_call_that_exceeds_its_limit_leaves_the_connection_usable() {
    on_each(|rig| {
        let (client, server) = rig.within(Duration::from_millis(20)).messages(short());
        assert!(is_late(&client.receive().unwrap_err()));
        send_in_time(&client, b"first");
        assert!(is_late(&client.send(&bytes(5000)).unwrap_err()));
        // It waits for the one before it, whose first part was sent.
        assert!(is_late(&client.send(b"never").unwrap_err()));
        thread::scope(|threads| {
            threads.spawn(|| {
                let mut received = server.receive().unwrap().unwrap();
                while *received == *b"first" {
                    received = server.receive().unwrap().unwrap();
                }
                assert!(*received == bytes(5000)[..]);
                assert_eq!(*server.receive().unwrap().unwrap(), *b"last");
            });
            send_in_time(&client, b"last");
        });
    });
}

#[test]
fn a_call_that_exceeds_its_limit_is_cancelled() {
    once(|rig| {
        let (client, server) = rig.within(Duration::from_millis(20)).messages(Options::new());
        // Afterwards, the connection is open, so that the request is sent at once.
        send_in_time(&client, b"a note");
        assert!(is_late(&client.call(b"a question").unwrap_err()));
        let request = loop {
            let received = server.receive().unwrap().unwrap();
            if received.is_request() {
                break received;
            }
        };
        assert_eq!(*request, *b"a question");
        // The cancel frame has arrived, because a later message has.
        send_in_time(&client, b"a note");
        assert_eq!(*server.receive().unwrap().unwrap(), *b"a note");
        let error = request.reply(b"an answer").unwrap_err();
        assert!(matches!(error, MessageError::NotSent(SendError::NotOpenRequest)), "{error}");
    });
}

/// The peer has granted memory for few frames, and receives nothing at first.
#[test]
fn a_posted_message_that_exceeds_its_limit_is_not_sent() {
    on_each(|rig| {
        let (client, server) = rig.within(Duration::from_millis(20)).messages(short());
        let post_in_time = |message: &[u8]| {
            while let Err(error) = client.post(message) {
                assert!(is_late(&error), "{error}");
            }
        };
        let mut posted = 0_u32;
        post_in_time(&posted.to_le_bytes());
        while client.post(&(posted + 1).to_le_bytes()).is_ok() {
            posted += 1;
        }
        thread::scope(|threads| {
            threads.spawn(|| {
                for number in (0..=posted).chain([u32::MAX]) {
                    assert_eq!(*server.receive().unwrap().unwrap(), number.to_le_bytes());
                }
                assert!(server.receive().unwrap().is_none());
            });
            post_in_time(&u32::MAX.to_le_bytes());
            while let Err(error) = client.finish() {
                assert!(is_late(&error), "{error}");
            }
        });
    });
}

/// The message has more frames than the peer has receives, and the peer processes none until it receives.
#[test]
fn a_flush_waits_until_the_device_of_the_peer_has_all_messages() {
    on_each(|rig| {
        let (client, server) = rig.within(Duration::from_millis(20)).messages(short());
        let long = bytes(5000);
        while let Err(error) = client.post(&long) {
            assert!(is_late(&error), "{error}");
        }
        let error = client.flush().unwrap_err();
        assert!(is_late(&error), "{error}");
        thread::scope(|threads| {
            threads.spawn(|| assert!(*server.receive().unwrap().unwrap() == long[..]));
            while let Err(error) = client.flush() {
                assert!(is_late(&error), "{error}");
            }
        });
    });
}

#[test]
fn a_message_after_a_write_arrives_after_its_bytes() {
    on_each(|rig| {
        let (client, server) = rig.messages(Options::new());
        let access = AccessFlags::new().with_local_write().with_remote_write();
        let landing = rig.pd.allocate_shared_region(100_000, access).unwrap();
        let target = landing.remote();
        let of = |round: u8| bytes(100_000).into_iter().map(move |byte| byte ^ round);
        thread::scope(|threads| {
            threads.spawn(|| {
                let mut buffer = rig.pool.allocate(100_000).unwrap();
                for round in 1..=20_u8 {
                    buffer.iter_mut().zip(of(round)).for_each(|(byte, new)| *byte = new);
                    let target = target.slice(0..99_000).unwrap();
                    buffer = client.write(buffer, 1000..100_000, target).wait().unwrap();
                    client.send(&[round]).unwrap();
                    assert!(client.receive().unwrap().unwrap().is_empty());
                }
            });
            for round in 1..=20_u8 {
                assert_eq!(*server.receive().unwrap().unwrap(), [round]);
                let mut found = vec![0; 100_000];
                landing.read(0, &mut found).unwrap();
                assert!(found.into_iter().eq(of(round).skip(1000).chain([0; 1000])));
                server.post(b"").unwrap();
            }
        });
    });
}

#[test]
fn a_write_to_memory_that_the_peer_does_not_have_ends_the_connection() {
    once(|rig| {
        let (client, _server) = rig.messages(Options::new());
        let target = RemoteMemoryRegion::new(0x1000, 64, 1);
        let mut writing = client.write(rig.pool.allocate(64).unwrap(), 0..64, target);
        let error = writing.wait().unwrap_err();
        assert!(matches!(error, MessageError::Ended(_)), "{error}");
        drop(writing);
        client.send(b"late").unwrap_err();
    });
}

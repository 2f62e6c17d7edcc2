//! Credits: no queue overflows, whatever safe code does, and a post that finds no room waits or fails.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use crate::common::provider::{POST, Post, at_next_poll, faulty, honest};
use crate::common::{DEVICES, DRAIN, HELD, LATE, Pair, must_end, short};
use rdma_channel::{CloseReason, Operation, ScopeError, TransportError};
use rdma_mem::Errno;
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

const SECONDS: Duration = Duration::from_secs(25);

#[test]
fn more_posts_than_the_queue_holds_wait_and_go_on() {
    for device in DEVICES {
        for depth in [1, 2, 3, 16] {
            must_end(move || {
                let mut pair = Pair::with(device, |builder| builder.max_send_wr(depth));
                let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
                let releases = thread::spawn(move || {
                    while device == HELD && soft.in_flight(qpn) < depth as usize {
                        thread::yield_now();
                    }
                    let mut released = 0;
                    while device == HELD && released < 100 {
                        released += soft.release(qpn, 1);
                    }
                });
                let data = pair.memory(8, 5);
                let remote = pair.board.remote();
                pair.here
                    .scope(|s| {
                        for _ in 0..100 {
                            drop(s.write_from(data.as_slice(), remote)?);
                        }
                        Ok::<(), TransportError>(())
                    })
                    .unwrap();
                releases.join().unwrap();
                assert_eq!((pair.here.closed(), pair.here.stray_completions()), (None, 0));
            });
        }
    }
}

#[test]
fn a_post_that_times_out_for_lack_of_room_fails_and_changes_nothing() {
    must_end(|| {
        let mut pair = Pair::with(HELD, |builder| {
            builder.max_send_wr(2).write_timeout(DRAIN).receive_timeout(DRAIN).max_recv_wr(1)
        });
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let peer = pair.there.qpn().unwrap();
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        pair.here
            .scope(|s| {
                let one = s.write_from(data.as_slice(), remote)?;
                let two = s.write_from(data.as_slice(), remote)?;
                let received = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                let begin = Instant::now();
                let full = s.write_from(data.as_slice(), remote).unwrap_err();
                assert!(full.buf.is_some());
                assert!(
                    matches!(full.error, TransportError::Timeout { operation: Operation::Write, timeout, .. }
                        if timeout == DRAIN),
                    "{full}"
                );
                let full = s.post_receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
                assert!(
                    matches!(full, TransportError::Timeout { operation: Operation::Receive, .. }),
                    "{full}"
                );
                let took = begin.elapsed();
                assert!(took >= 2 * DRAIN && took < SECONDS, "{took:?}");
                assert_eq!(soft.in_flight(qpn), 2);
                soft.release(qpn, 2);
                // The handles hold their slots until they have reported.
                one.wait(SECONDS).unwrap().result?;
                two.wait(SECONDS).unwrap().result?;
                let three = s.write_from(data.as_slice(), remote)?;
                soft.release(qpn, 1);
                three.wait(SECONDS).unwrap().result?;
                // SAFETY: SAFETY.md F8: the request has no memory.
                let sent = unsafe { pair.there.send_unpolled(SendWorkRequest::only_immediate(1)) };
                soft.release(peer, 1);
                sent?.wait(SECONDS)?;
                received.wait(SECONDS)?;
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!(pair.here.closed(), None);
    });
}

#[test]
fn a_receive_beyond_the_queue_fails_at_once_since_receives_have_no_limit() {
    for device in DEVICES {
        must_end(move || {
            let mut pair = Pair::with(device, |builder| short(builder).max_recv_wr(3));
            let left = pair.here.scope(|s| {
                for _ in 0..3 {
                    let _ = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                }
                let full = s.post_receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
                assert!(matches!(full, TransportError::WouldBlock), "{full}");
                let batch = s.post_receive_batch([ReceiveWorkRequest::only_immediate()]);
                assert!(matches!(batch, Err(TransportError::WouldBlock)), "{batch:?}");
                let request = [(); 4].map(|()| ReceiveWorkRequest::only_immediate());
                let batch = s.post_receive_batch(request);
                assert!(
                    matches!(
                        batch,
                        Err(TransportError::BatchTooLarge { requests: 4, capacity: 3 })
                    ),
                    "{batch:?}"
                );
                Err::<(), TransportError>(TransportError::WouldBlock)
            });
            assert!(matches!(left, Err(ScopeError::ClosureError(_))));
        });
    }
}

#[test]
fn completed_handles_hold_their_slots_until_they_are_dropped() {
    for device in DEVICES.into_iter().filter(|&device| device != HELD) {
        must_end(move || {
            // The limit is thirty seconds, and the test does not wait that long.
            let mut pair = Pair::with(device, |builder| builder.max_send_wr(3));
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let list = rdma_mem::GatherList::from([data.as_slice()]);
            let begin = Instant::now();
            pair.here
                .scope(|s| {
                    let post = || s.post_write(WriteWorkRequest::from_list(&list, remote));
                    let (told, asked, done) = (post()?, post()?, post()?);
                    told.wait(SECONDS)?;
                    while asked.poll().is_none() {}
                    done.wait(SECONDS)?;
                    for _ in 0..3 {
                        let full = post().unwrap_err();
                        assert!(matches!(full, TransportError::WouldBlock), "{full}");
                    }
                    drop(asked);
                    post()?.wait(SECONDS)?;
                    drop(told);
                    let (one, two) = (post()?, post()?);
                    one.wait(SECONDS)?;
                    two.wait(SECONDS)?;
                    drop(done);
                    Ok::<(), TransportError>(())
                })
                .unwrap();
            assert!(begin.elapsed() < Duration::from_secs(25));
        });
    }
}

#[test]
fn a_completed_handle_dropped_without_a_poll_frees_its_slot() {
    must_end(|| {
        let mut pair = Pair::with("soft0", |builder| builder.max_send_wr(2));
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        pair.here
            .scope(|s| {
                for _ in 0..10 {
                    let unasked = s.write_from(data.as_slice(), remote)?;
                    let asked = s.write_from(data.as_slice(), remote)?;
                    asked.wait(SECONDS).unwrap().result?; // also polls the other completion
                    drop(unasked);
                }
                Ok::<(), TransportError>(())
            })
            .unwrap();
    });
}

/// A device may have less capacity than it reported, or count in another way.
#[test]
fn a_full_device_would_block_although_credit_is_left() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::on(&faulty(device), |builder| builder);
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            pair.here
                .scope(|s| {
                    POST.set(Post::Refused(Errno::ENOMEM));
                    for _ in 0..40 {
                        let full = s.write_from(data.as_slice(), remote).unwrap_err();
                        assert!(matches!(full.error, TransportError::WouldBlock), "{full}");
                        assert!(full.buf.is_some());
                        let full =
                            s.post_receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
                        assert!(matches!(full, TransportError::WouldBlock), "{full}");
                    }
                    honest();
                    let write = s.write_from(data.as_slice(), remote)?;
                    soft.release(qpn, 1);
                    write.wait(SECONDS).unwrap().result?;
                    Ok::<(), TransportError>(())
                })
                .unwrap();
            POST.set(Post::Refused(Errno::ENOMEM));
            let full = pair.here.send(SendWorkRequest::only_immediate(1));
            assert!(matches!(full, Err(TransportError::WouldBlock)), "{full:?}");
            assert_eq!(pair.here.closed(), None);
        });
    }
}

#[test]
fn unpolled_posts_never_wait() {
    must_end(|| {
        // The limits are thirty seconds each.
        let pair = Pair::with(HELD, |builder| builder.max_send_wr(2).max_recv_wr(2));
        let begin = Instant::now();
        let mut handles = Vec::new();
        for _ in 0..2 {
            // SAFETY: SAFETY.md F8: the request has no memory.
            let sent = unsafe { pair.here.send_unpolled(SendWorkRequest::only_immediate(1)) };
            handles.push(sent.unwrap());
            // SAFETY: SAFETY.md F8: the request has no memory.
            let received =
                unsafe { pair.here.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
            handles.push(received.unwrap());
        }
        for _ in 0..3 {
            // SAFETY: SAFETY.md F8: the request has no memory.
            let full = unsafe { pair.here.send_unpolled(SendWorkRequest::only_immediate(1)) };
            assert!(matches!(full, Err(TransportError::WouldBlock)), "{full:?}");
            // SAFETY: SAFETY.md F8: the request has no memory.
            let full = unsafe { pair.here.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
            assert!(matches!(full, Err(TransportError::WouldBlock)), "{full:?}");
        }
        assert!(begin.elapsed() < SECONDS);
        assert_eq!((pair.in_flight(), pair.here.closed()), (2, None));
    });
}

#[test]
fn a_queue_of_one_works_and_a_queue_of_none_would_block() {
    for device in ["soft0", LATE[0]] {
        must_end(move || {
            let mut pair = Pair::with(device, |builder| builder.max_send_wr(1).max_recv_wr(1));
            assert_eq!(pair.here.depths(), (1, 1));
            for _ in 0..20 {
                // SAFETY: SAFETY.md F8: the request has no memory.
                let received =
                    unsafe { pair.there.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
                let received = received.unwrap();
                pair.here.send(SendWorkRequest::only_immediate(1).signaled(false)).unwrap();
                received.wait(SECONDS).unwrap();
            }
            let begin = Instant::now();
            let mut none = Pair::with(device, |builder| builder.max_send_wr(0).max_recv_wr(0));
            assert_eq!(none.here.depths(), (0, 0));
            let sent = none.here.send(SendWorkRequest::only_immediate(1));
            assert!(matches!(sent, Err(TransportError::WouldBlock)), "{sent:?}");
            let received = none.here.receive(ReceiveWorkRequest::only_immediate());
            assert!(matches!(received, Err(TransportError::WouldBlock)), "{received:?}");
            let left = none.here.scope(|s| {
                s.post_send(SendWorkRequest::only_immediate(1).signaled(false)).map(drop)
            });
            assert!(
                matches!(left, Err(ScopeError::ClosureError(TransportError::WouldBlock))),
                "{left:?}"
            );
            assert_eq!(none.here.closed(), None);
            assert!(begin.elapsed() < SECONDS);
        });
    }
}

#[test]
fn a_post_that_waits_for_room_reports_why_its_channel_closes() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::on(&faulty(device), |builder| builder.max_send_wr(2));
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let bad =
                rdma_mem::RemoteMemoryRegion::new(remote.address(), 8, remote.rkey().get() ^ 0x55);
            let left = pair.here.scope(|s| {
                let one = s.write_from(data.as_slice(), bad)?;
                let two = s.write_from(data.as_slice(), remote)?;
                // The post polls while it waits.
                at_next_poll(move || soft.release(qpn, 1));
                let refused = s.write_from(data.as_slice(), remote).unwrap_err();
                assert!(
                    matches!(
                        refused.error,
                        TransportError::Closed { reason: CloseReason::Work { .. }, .. }
                    ),
                    "{refused}"
                );
                assert!(one.wait(SECONDS).unwrap().result.is_err());
                assert!(two.wait(SECONDS).unwrap().result.is_err());
                Ok::<(), TransportError>(())
            });
            left.unwrap();
        });
    }
}

/// The limit of a call applies to its wait for a free slot, too.
#[test]
fn a_calls_own_limit_holds_while_it_waits_for_room() {
    must_end(|| {
        // The builder's limits are thirty seconds.
        let mut pair = Pair::with(HELD, |builder| builder.max_send_wr(2).drain_timeout(DRAIN));
        for _ in 0..2 {
            // SAFETY: SAFETY.md F8: the request has no memory.
            let sent = unsafe { pair.here.send_unpolled(SendWorkRequest::only_immediate(1)) };
            drop(sent.unwrap());
        }
        let begin = Instant::now();
        let request = SendWorkRequest::only_immediate(1);
        let error = pair.here.within(DRAIN).send(request).unwrap_err();
        assert!(
            matches!(error, TransportError::Timeout { timeout: DRAIN, .. }),
            "{error}, after {:?}",
            begin.elapsed()
        );
        let begin = Instant::now();
        let batch = [SendWorkRequest::only_immediate(1).into()];
        let error = pair.here.within(DRAIN).batch(batch).unwrap_err();
        assert!(begin.elapsed() < SECONDS, "{error}, after {:?}", begin.elapsed());
    });
}

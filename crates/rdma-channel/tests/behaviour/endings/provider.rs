//! Providers that fail while there is work in flight.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use rdma_channel::{CloseReason, Late, Operation, Progress, Rejected, ScopeError, TransportError};
use rdma_mem::{Errno, ScatterList};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest};

use crate::common::provider::{
    DESTROYED, HONEST_POSTS, KEEP, POLL, POLLS, POST, Post, STAY, faulty, honest,
};
use crate::common::stuck::{Handles, Stuck};
use crate::common::{DRAIN, HELD, LATE, Pair, must_end, short};

fn pair(device: &str) -> Pair {
    Pair::on(&faulty(device), short)
}

fn is_poll(error: &TransportError) -> bool {
    matches!(error, TransportError::PollError(_))
}

/// H5: a queue that cannot be polled completes nothing; the memory is released when the queue pair is destroyed.
#[test]
fn a_scope_on_a_completion_queue_that_fails_ends_by_destroying_the_queue_pair() {
    for device in LATE {
        for handles in [Handles::Dropped, Handles::Forgotten] {
            must_end(move || {
                let mut pair = pair(device);
                let mut stuck = Stuck::new(&pair);
                let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
                let left = pair.here.scope(|s| {
                    stuck.post(s, handles).unwrap();
                    assert_eq!(soft.in_flight(qpn), 2);
                    POLL.set(Some(-1));
                    Ok::<(), TransportError>(())
                });
                let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
                assert_eq!(errors.len(), 3);
                assert!(errors.iter().all(|lost| matches!(lost.error,
                    TransportError::Lost { operation, .. } if operation == lost.operation)));
                assert_eq!((DESTROYED.get(), soft.in_flight(qpn)), (1, 0));
                assert_eq!((pair.here.closed(), pair.here.qpn()), (Some(CloseReason::Poll), None));
                assert!(matches!(
                    pair.here.state(),
                    Err(TransportError::Closed { reason: CloseReason::Poll, .. })
                ));
                let again = pair.here.send(SendWorkRequest::only_immediate(1));
                assert!(matches!(
                    again,
                    Err(TransportError::Closed { reason: CloseReason::Poll, .. })
                ));
                stuck.assert_given_back(&mut pair);
                pair.here.close().unwrap();
            });
        }
    }
}

/// H5.
#[test]
fn a_blocking_call_on_a_failed_completion_queue_fails_after_the_queue_pair_is_destroyed() {
    for device in LATE {
        must_end(move || {
            let mut pair = pair(device);
            let mut room = pair.memory(64, 3);
            let mut list = ScatterList::from([room.as_slice_mut()]);
            POLL.set(Some(-1));
            let request = ReceiveWorkRequest::from_list(&mut list);
            let error = pair.here.receive(request).unwrap_err();
            assert!(is_poll(&error) && DESTROYED.get() == 1, "{error}");
            assert!(!error.to_string().contains("permitted"), "H6: {error}");
            honest();
            let again = pair.here.send(SendWorkRequest::only_immediate(1));
            assert!(matches!(again, Err(TransportError::Closed { reason: CloseReason::Poll, .. })));
            pair.provoke();
            assert_eq!(*room, [3; 64]);
        });
    }
}

/// H5: the handles report no results, and their rented memory stays with the scope.
#[test]
fn handles_on_a_completion_queue_that_fails_complete_nothing() {
    for device in LATE {
        must_end(move || {
            let mut pair = pair(device);
            let (mut one, mut two) = (pair.memory(64, 3), pair.memory(64, 3));
            let left = pair.here.scope(|s| {
                let rented = s.receive_into(one.as_slice_mut())?;
                let mut list = ScatterList::from([two.as_slice_mut()]);
                let borrowed = s.post_receive(ReceiveWorkRequest::from_list(&mut list))?;
                POLL.set(Some(-1));
                let begin = Instant::now();
                let Progress::Dead(late) = rented.poll() else { panic!("it should have failed") };
                assert!(is_poll(&late.error), "{late}");
                let late = late.handle.wait(Duration::MAX).unwrap_err();
                assert!(is_poll(&late.error), "{late}");
                let rented = late.handle;
                assert!(is_poll(&borrowed.poll().unwrap().unwrap_err()));
                assert!(is_poll(&borrowed.wait(Duration::MAX).unwrap_err()));
                assert!(begin.elapsed() < Duration::from_secs(25));
                let refused = s.post_receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
                assert!(
                    matches!(refused, TransportError::Closed { reason: CloseReason::Poll, .. }),
                    "{refused}"
                );
                // The fault is over: completions are found again, but the channel stays closed.
                POLL.set(None);
                assert!(borrowed.poll().is_none());
                drop(rented);
                Ok::<(), TransportError>(())
            });
            assert!(matches!(left, Err(ScopeError::AutoPollError(_))), "{left:?}");
            pair.provoke();
            assert_eq!((&one[..], &two[..]), (&[3; 64][..], &[3; 64][..]));
        });
    }
}

/// H5: a loop that polls until that is useless gets an error that shows it.
#[test]
fn polling_loops_end_on_a_failed_completion_queue() {
    for device in ["soft0", LATE[0], LATE[1]] {
        must_end(move || {
            let mut pair = pair(device);
            let mut memory = pair.memory(8, 3);
            let left = pair.here.manual_scope(|s| {
                let mut room = s.receive_into(memory.as_slice_mut())?;
                let mut asked = 0;
                room = loop {
                    match room.poll() {
                        Progress::Done(done) => return done.result.map(|_| Duration::ZERO),
                        Progress::Pending(again) => room = again,
                        Progress::Dead(late) => break late.handle,
                    }
                    asked += 1;
                    POLL.set((asked > 2).then_some(-1));
                };
                POLL.set(None);
                let begin = Instant::now();
                loop {
                    match room.wait(Duration::from_millis(1)) {
                        Ok(done) => return done.result.map(|_| Duration::ZERO),
                        Err(Late { handle, error: TransportError::Timeout { .. }, .. }) => {
                            room = handle;
                        }
                        Err(late) => return Err(late.into()),
                    }
                    if begin.elapsed() > Duration::from_millis(3) {
                        POLL.set(Some(-1));
                    }
                }
            });
            assert!(matches!(&left, Err(error) if is_poll(error)), "{left:?}");
            assert_eq!(pair.here.closed(), Some(CloseReason::Poll));
            pair.provoke();
            assert_eq!(*memory, [3; 8], "it was returned");
        });
    }
}

#[test]
fn a_poll_that_fails_once_leaves_nothing_in_flight() {
    for device in LATE {
        must_end(move || {
            let mut pair = pair(device);
            let mut stuck = Stuck::new(&pair);
            let left = pair.here.scope(|s| {
                stuck.post(s, Handles::Dropped).unwrap();
                POLLS.set(1);
                Ok::<(), TransportError>(())
            });
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            assert_eq!(errors.len(), 3);
            assert_eq!(pair.here.closed(), Some(CloseReason::Poll));
            stuck.assert_given_back(&mut pair);
        });
    }
}

#[test]
fn a_queue_pair_that_does_not_go_to_error_is_destroyed() {
    for device in LATE {
        must_end(move || {
            let mut pair = pair(device);
            let mut stuck = Stuck::new(&pair);
            let begin = Instant::now();
            let left = pair.here.scope(|s| {
                stuck.post(s, Handles::Forgotten).unwrap();
                STAY.set(true);
                Ok::<(), TransportError>(())
            });
            assert!(begin.elapsed() < Duration::from_secs(25));
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            assert!(errors.iter().all(|lost| matches!(lost.error, TransportError::Lost { .. })));
            assert_eq!((errors.len(), DESTROYED.get()), (3, 1));
            assert!(matches!(pair.here.closed(), Some(CloseReason::Timeout { .. })));
            stuck.assert_given_back(&mut pair);
        });
    }
}

/// The device may hold the request, so the memory is kept until that is impossible.
#[test]
fn a_doubtful_post_of_a_blocking_call_closes_the_channel() {
    for device in LATE {
        for post in [Post::Doubtful, Post::DoubtfulAndRefused] {
            must_end(move || {
                let mut pair = pair(device);
                pair.board.write(0, &[9; 4096]).unwrap();
                let mut memory = pair.memory(64, 1);
                let remote = pair.board.remote().slice(0..64).unwrap();
                let mut list = ScatterList::from([memory.as_slice_mut()]);
                POST.set(post);
                let request = ReadWorkRequest::from_list(&mut list, remote);
                let error = pair.here.read(request).unwrap_err();
                let TransportError::PostError(refused) = &error else { panic!("{error}") };
                assert_eq!((refused.posted(), refused.errno()), (1, Some(Errno::EIO)));
                let first = CloseReason::Doubtful { operation: Operation::Read };
                assert_eq!(pair.here.closed(), Some(first));
                assert_eq!(pair.in_flight(), 0);
                honest();
                memory.fill(7);
                pair.provoke();
                assert_eq!(*memory, [7; 64]);
                let again = pair.here.send(SendWorkRequest::only_immediate(1));
                assert!(
                    matches!(again, Err(TransportError::Closed { reason: why, .. }) if why == first)
                );
            });
        }
    }
}

#[test]
fn a_scope_keeps_the_memory_of_a_doubtful_request() {
    for device in LATE {
        for post in [Post::Doubtful, Post::DoubtfulAndRefused] {
            must_end(move || {
                let mut pair = pair(device);
                let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
                let (mut one, mut two) = (pair.memory(64, 1), pair.memory(64, 1));
                let remote = pair.board.remote().slice(0..64).unwrap();
                let (data, mut three) = (pair.memory(8, 1), pair.memory(8, 1));
                let left = pair.here.scope(|s| {
                    let _ = s.receive_into(two.as_slice_mut())?;
                    let _ = s.send_from(data.as_slice())?; // never received
                    POST.set(post);
                    let refused = s.read_into(one.as_slice_mut(), remote).unwrap_err();
                    assert!(refused.buf.is_none(), "the device may hold it");
                    POST.set(Post::Refused(Errno::EINVAL));
                    let refused = s.read_into(three.as_slice_mut(), remote);
                    assert!(refused.unwrap_err().buf.is_some(), "the device does not hold it");
                    assert_eq!(soft.in_flight(qpn), 1 + usize::from(post == Post::Doubtful));
                    Err::<(), _>(TransportError::WouldBlock)
                });
                assert!(matches!(left, Err(ScopeError::ClosureError(_))));
                assert_eq!(pair.in_flight(), 0);
                honest();
                one.fill(7);
                two.fill(7);
                pair.provoke();
                assert_eq!((&one[..], &two[..]), (&[7; 64][..], &[7; 64][..]));
            });
        }
    }
}

/// A request that was posted after all completes like any other, and has no handle.
#[test]
fn a_doubtful_request_that_was_posted_frees_its_slot() {
    must_end(|| {
        let mut pair = pair("soft0");
        let (sends, _) = pair.here.depths();
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        pair.here
            .scope(|s| {
                POST.set(Post::Doubtful);
                for _ in 0..sends {
                    let refused = s.write_from(data.as_slice(), remote).unwrap_err();
                    assert!(refused.buf.is_none());
                }
                honest();
                for _ in 0..2 * sends {
                    let write = s.write_from(data.as_slice(), remote)?;
                    write.wait(Duration::from_secs(5)).unwrap().result?;
                }
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!((pair.here.closed(), pair.here.stray_completions()), (None, 0));
    });
}

/// A later refusal is independent of it.
#[test]
fn an_earlier_doubtful_request_does_not_close_the_channel_when_another_is_refused() {
    must_end(|| {
        let mut pair = pair(HELD);
        POST.set(Post::Doubtful);
        // SAFETY: SAFETY.md F8: the request has no memory.
        let doubtful = unsafe { pair.here.send_unpolled(SendWorkRequest::only_immediate(1)) }.err();
        assert!(matches!(doubtful, Some(TransportError::PostError(_))), "{doubtful:?}");
        POST.set(Post::Refused(Errno::ENOMEM));
        let full = pair.here.send(SendWorkRequest::only_immediate(1));
        assert!(matches!(full, Err(TransportError::WouldBlock)), "{full:?}");
        assert_eq!((pair.here.closed(), pair.in_flight()), (None, 1));
    });
}

#[test]
fn a_failed_post_in_a_scope_ends_the_earlier_posts() {
    for device in LATE {
        must_end(move || {
            let mut pair = pair(device);
            let mut stuck = Stuck::new(&pair);
            HONEST_POSTS.set(2);
            POST.set(Post::Refused(Errno::ENOMEM));
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let left = pair.here.scope(|s| {
                let refused = stuck.post(s, Handles::Dropped).unwrap_err();
                assert_eq!(soft.in_flight(qpn), 1, "the posted request is in flight");
                Err::<(), TransportError>(refused.into())
            });
            assert!(
                matches!(left, Err(ScopeError::ClosureError(TransportError::WouldBlock))),
                "{left:?}"
            );
            honest();
            stuck.assert_given_back(&mut pair);
        });
    }
}

/// Nothing is in flight, so nothing is borrowed: a queue pair that cannot be destroyed is left alone.
#[test]
fn an_idle_channel_that_cannot_be_destroyed_is_leaked_or_returned() {
    for device in LATE {
        must_end(move || {
            let mut pair = pair(device);
            let mut memory = pair.memory(8, 1);
            let list = &mut ScatterList::from([memory.as_slice_mut()]);
            let request = ReceiveWorkRequest::from_list(list);
            pair.here.within(DRAIN).receive(request).unwrap_err();
            KEEP.set(true);
            let Rejected { value: here, error, .. } = pair.here.close().unwrap_err();
            assert!(error.to_string().contains("ibv_destroy_qp"), "{error}");
            assert!(here.qpn().is_some(), "nothing has changed");
            KEEP.set(false);
            here.close().map_err(TransportError::from).unwrap();
            memory.close().unwrap();
        });
    }
}

//! The ways out of a scope.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{
    Channel, CloseReason, InFlight, Operation, Progress, Scope, ScopeError, TransportError,
};
use rdma_mem::{GatherList, RemoteMemoryRegion, SharedElement};
use rdma_qp::{PostErrorKind, ReceiveWorkRequest, WriteWorkRequest};
use test_support::features::Feature;

use crate::common::stuck::{Handles, Stuck};
use crate::common::{DEVICES, DRAIN, LATE, Pair, in_flight, lacks, must_end};

const BOTH: [Handles; 2] = [Handles::Dropped, Handles::Forgotten];

/// Runs a scope with three requests that do not complete, and `leave` at its end.
fn leave<E: From<TransportError> + Send + 'static>(
    device: &'static str,
    handles: Handles,
    leave: impl FnOnce() -> Result<(), E> + Send + 'static,
    check: impl FnOnce(thread::Result<Result<(), ScopeError<E>>>) + Send + 'static,
) {
    must_end(move || {
        let mut pair = Pair::new(device);
        let mut stuck = Stuck::new(&pair);
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let begin = Instant::now();
        let left = catch_unwind(AssertUnwindSafe(|| {
            pair.here.scope(|s| {
                stuck.post(s, handles).unwrap();
                assert_eq!(soft.in_flight(qpn), 2, "no request of the send queue has completed");
                leave()
            })
        }));
        assert!(begin.elapsed() < Duration::from_secs(25));
        check(left);
        let closed = pair.here.closed();
        assert!(matches!(closed, Some(CloseReason::Timeout { .. })), "{closed:?}");
        stuck.assert_given_back(&mut pair);
    });
}

#[test]
fn a_scope_that_returns_releases_all_memory_and_reports_lost_operations() {
    for device in LATE {
        for handles in BOTH {
            leave::<TransportError>(
                device,
                handles,
                || Ok(()),
                |left| {
                    let Ok(Err(ScopeError::AutoPollError(errors))) = left else {
                        panic!("{left:?}")
                    };
                    let mut lost: Vec<_> =
                        errors.iter().map(|lost| lost.operation.to_string()).collect();
                    lost.sort();
                    assert_eq!(lost, ["RDMA read", "receive", "send"]);
                    for lost in &errors {
                        assert!(
                            matches!(
                                lost.error,
                                TransportError::Closed { reason: CloseReason::Timeout { .. }, .. }
                            ),
                            "{lost}"
                        );
                        assert_eq!(lost.peer, None);
                    }
                },
            );
        }
    }
}

#[test]
fn a_scope_left_by_an_error_releases_all_memory_and_returns_the_error() {
    for device in LATE {
        for handles in BOTH {
            leave(
                device,
                handles,
                || Err(TransportError::WouldBlock),
                |left| {
                    let error = left.unwrap().unwrap_err();
                    assert!(
                        matches!(error, ScopeError::ClosureError(TransportError::WouldBlock)),
                        "{error}"
                    );
                },
            );
        }
    }
}

#[test]
fn a_scope_left_by_a_panic_releases_all_memory_and_resumes_the_panic() {
    for device in LATE {
        for handles in BOTH {
            leave::<TransportError>(
                device,
                handles,
                || panic_any(42),
                |left| {
                    let payload = left.err().unwrap();
                    assert_eq!(payload.downcast_ref(), Some(&42));
                },
            );
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Return,
    Error,
    Panic,
}

/// On request, lets the peer answer a message with another one, and the device execute what it holds back.
fn answer(
    go: &mpsc::Receiver<()>,
    there: &mut Channel,
    element: SharedElement<'_>,
    release: impl Fn(),
) {
    go.recv().unwrap();
    let done = |mut handle: InFlight<'_, SharedElement<'_>>| {
        while let Err(late) = handle.wait(Duration::from_millis(1)) {
            release();
            handle = late.handle;
        }
    };
    there
        .scope(|s| {
            done(s.receive_into(element)?);
            done(s.send_from(element)?);
            release();
            Ok::<(), TransportError>(())
        })
        .unwrap();
}

/// Requests that the closure has left in flight are completed, not cut off.
#[test]
fn a_scope_waits_for_what_can_be_done_however_it_was_left() {
    for device in LATE {
        for way in [Way::Return, Way::Error, Way::Panic] {
            must_end(move || {
                let pair = Pair::with(device, |builder| builder);
                let mut memory = [1, 2, 3].map(|byte| pair.memory(64, byte));
                pair.board.write(0, &[9; 64]).unwrap();
                let remote = pair.board.remote().slice(0..64).unwrap();
                let (soft, qpns) =
                    (pair.device, [&pair.here, &pair.there].map(|end| end.qpn().unwrap()));
                let Pair { mut here, mut there, board, .. } = pair;
                let (go, gone) = mpsc::channel();
                let peer = thread::spawn(move || {
                    let element = board.element(64..128).unwrap();
                    let release = || {
                        let _ = qpns.map(|qpn| soft.release(qpn, u32::MAX));
                    };
                    answer(&gone, &mut there, element, release);
                });
                let left = catch_unwind(AssertUnwindSafe(|| {
                    here.scope(|s| {
                        let [from, to, room] = &mut memory;
                        let _ = s.receive_into(room.as_slice_mut()).unwrap();
                        let _ = s.send_from(from.as_slice()).unwrap();
                        let _ = s.read_into(to.as_slice_mut(), remote).unwrap();
                        assert_eq!(soft.in_flight(qpns[0]), 2);
                        go.send(()).unwrap();
                        match way {
                            Way::Return => Ok(()),
                            Way::Error => Err(TransportError::WouldBlock),
                            Way::Panic => panic_any(()),
                        }
                    })
                }));
                peer.join().unwrap();
                assert_eq!(left.is_err(), way == Way::Panic);
                assert_eq!(left.is_ok_and(|left| left.is_ok()), way == Way::Return);
                assert_eq!(
                    (here.closed(), in_flight(soft, &here)),
                    (None, 0),
                    "all have completed"
                );
                assert_eq!(memory.map(|region| region.to_vec()), [[1; 64], [9; 64], [1; 64]]);
            });
        }
    }
}

/// H2, H3: the receives posted before are not waited for.
#[test]
fn a_post_in_the_middle_that_is_refused_ends_those_before_it() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut stuck = Stuck::new(&pair);
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let too_short = pair.board.remote().slice(0..63).unwrap();
            let data = pair.memory(64, 1);
            let error: Result<(), ScopeError> = pair.here.scope(|s| {
                stuck.post(s, Handles::Forgotten)?;
                assert_eq!(soft.in_flight(qpn), 2);
                let list = GatherList::from([data.as_slice()]);
                let _ = s.post_write(WriteWorkRequest::from_list(&list, too_short))?;
                panic!("posted")
            });
            let Err(ScopeError::ClosureError(TransportError::PostError(error))) = error else {
                panic!("{error:?}")
            };
            assert_eq!(error.kind(), PostErrorKind::RemoteTooShort);
            stuck.assert_given_back(&mut pair);
        });
    }
}

/// H3: the `scatter` of the other crate would have hung.
#[test]
fn one_receive_too_many_ends_those_before_it() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let (_, receives) = pair.here.depths();
            let mut rooms: Vec<_> = (0..=receives).map(|_| pair.memory(64, 3)).collect();
            let mut posted = 0;
            let left = pair.here.scope(|s| {
                for room in &mut rooms {
                    let receive = s.receive_into(room.as_slice_mut())?;
                    assert!(matches!(receive.poll(), Progress::Pending(_)), "no message was sent");
                    posted += 1;
                }
                Ok::<(), TransportError>(())
            });
            assert!(
                matches!(left, Err(ScopeError::ClosureError(TransportError::WouldBlock))),
                "{left:?}"
            );
            assert_eq!(posted, receives);
            pair.provoke();
            assert!(rooms.iter().all(|room| **room == [3; 64]));
        });
    }
}

#[test]
fn a_receive_that_is_never_answered_ends_at_the_drain_limit_and_closes_the_channel() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut room = pair.memory(64, 3);
            let begin = Instant::now();
            let left = pair.here.scope(|s| {
                let _ = s.receive_into(room.as_slice_mut())?;
                Ok::<(), TransportError>(())
            });
            let took = begin.elapsed();
            assert!(took >= DRAIN && took < Duration::from_secs(25), "{took:?}");
            assert!(matches!(left, Err(ScopeError::AutoPollError(_))), "{left:?}");
            let first = CloseReason::Timeout { operation: Operation::Receive };
            assert_eq!(pair.here.closed(), Some(first));
            for _ in 0..2 {
                let again = pair.here.receive(ReceiveWorkRequest::only_immediate());
                assert!(
                    matches!(again, Err(TransportError::Closed { reason: why, .. }) if why == first)
                );
                let scope = pair.here.scope(|s| {
                    let _ = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                    Ok::<(), TransportError>(())
                });
                let Err(ScopeError::ClosureError(TransportError::Closed { reason: why, .. })) =
                    scope
                else {
                    panic!("{scope:?}")
                };
                assert_eq!(why, first);
            }
            pair.provoke();
            assert_eq!(*room, [3; 64]);
        });
    }
}

#[test]
fn a_copy_that_is_half_done_is_never_finished_after_the_scope() {
    must_end(|| {
        let mut pair = Pair::new(crate::common::HELD);
        pair.board.write(0, &[9; 4096]).unwrap();
        let mut to = pair.memory(64, 2);
        let remote = pair.board.remote().slice(0..64).unwrap();
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let left = pair.here.scope(|s| {
            let _ = s.read_into(to.as_slice_mut(), remote).unwrap();
            assert!(soft.release_half(qpn));
            assert_eq!((soft.half_copied(qpn), soft.in_flight(qpn)), (32, 1));
            Ok::<(), TransportError>(())
        });
        assert!(matches!(left, Err(ScopeError::AutoPollError(_))), "{left:?}");
        assert_eq!(pair.in_flight(), 0);
        to.fill(7);
        pair.provoke();
        assert_eq!(*to, [7; 64]);
    });
}

#[test]
fn a_manual_scope_with_unpolled_handles_panics_after_all_has_ended() {
    for device in LATE {
        for handles in BOTH {
            must_end(move || {
                let mut pair = Pair::new(device);
                let mut stuck = Stuck::new(&pair);
                let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
                let left = catch_unwind(AssertUnwindSafe(|| {
                    pair.here.manual_scope(|s| {
                        stuck.post(s, handles).unwrap();
                        assert_eq!(soft.in_flight(qpn), 2);
                        Ok::<(), TransportError>(())
                    })
                }));
                let payload = left.unwrap_err();
                let text = payload.downcast_ref::<String>().unwrap();
                assert!(
                    text.starts_with("3 operations of a manual scope were not polled"),
                    "{text}"
                );
                stuck.assert_given_back(&mut pair);
            });
        }
    }
}

#[test]
fn an_operation_that_failed_after_its_handle_was_dropped_is_counted_once() {
    must_end(|| {
        let mut pair = Pair::new("soft0");
        let remote = pair.board.remote();
        let wrong =
            rdma_mem::RemoteMemoryRegion::new(remote.address(), 64, remote.rkey().get() ^ 0x55);
        let data = pair.memory(64, 1);
        let left = catch_unwind(AssertUnwindSafe(|| {
            pair.here.manual_scope(|s| {
                let failing = s.write_from(data.as_slice(), wrong).unwrap();
                let asked = s.write_from(data.as_slice(), wrong).unwrap();
                drop(failing);
                assert!(asked.wait(Duration::from_secs(5)).unwrap().result.is_err());
                Ok::<(), TransportError>(())
            })
        }));
        let payload = left.unwrap_err();
        let text = payload.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("1 operations"), "{text}");
    });
}

#[test]
fn a_scope_in_a_scope_of_another_channel_ends_by_itself() {
    for device in LATE {
        must_end(move || {
            let (mut outer, mut inner) = (Pair::new(device), Pair::new(device));
            let (mut one, mut two) = (Stuck::new(&outer), Stuck::new(&inner));
            let (soft, qpn) = (outer.device, outer.here.qpn().unwrap());
            let left = catch_unwind(AssertUnwindSafe(|| {
                outer.here.scope(|s| {
                    one.post(s, Handles::Dropped).unwrap();
                    let within = inner.here.scope(|s| {
                        two.post(s, Handles::Forgotten).unwrap();
                        Ok::<(), TransportError>(())
                    });
                    assert!(matches!(within, Err(ScopeError::AutoPollError(_))));
                    assert_eq!(inner.in_flight(), 0);
                    assert_eq!(
                        soft.in_flight(qpn),
                        2,
                        "the requests of the outer scope are still in flight"
                    );
                    panic_any(within.is_err());
                    #[allow(unreachable_code)]
                    Ok::<(), TransportError>(())
                })
            }));
            assert!(left.is_err());
            one.assert_given_back(&mut outer);
            two.assert_given_back(&mut inner);
        });
    }
}

/// The action of a caller's code in the middle of a post.
#[derive(Clone, Copy, PartialEq)]
enum Within {
    Post,
    Close,
    Panic,
}

/// An address that its program computes when it is converted.
struct Late<'a>(RemoteMemoryRegion, &'a dyn Fn());

impl From<Late<'_>> for RemoteMemoryRegion {
    fn from(late: Late<'_>) -> Self {
        (late.1)();
        late.0
    }
}

/// Posts one more request when it is dropped, even by a panic.
struct Last<'scope, 'env>(&'scope Scope<'scope, 'env>);

impl Drop for Last<'_, '_> {
    fn drop(&mut self) {
        drop(self.0.post_receive(ReceiveWorkRequest::only_immediate()));
    }
}

#[test]
fn code_of_the_caller_within_a_post_can_post_close_and_panic() {
    for device in DEVICES {
        for what in [Within::Post, Within::Close, Within::Panic] {
            for adapts in [true, false] {
                if !adapts && lacks(device, Feature::Atomics) {
                    continue;
                }
                must_end(move || {
                    let mut pair = Pair::new(device);
                    let (data, mut word) = (pair.memory(8, 5), pair.memory(8, 1));
                    let remote = pair.board.remote().slice(0..8).unwrap();
                    let ran = Cell::new(0);
                    let left = catch_unwind(AssertUnwindSafe(|| {
                        pair.here.scope(|s| {
                            let _last = Last(s);
                            let meanwhile = || {
                                ran.set(ran.get() + 1);
                                drop(s.write_from(data.as_slice(), remote).unwrap());
                                match what {
                                    Within::Post => {}
                                    Within::Close => s.close(),
                                    Within::Panic => panic_any(7),
                                }
                            };
                            if adapts {
                                let sent = s.send_from_with(data.as_slice(), |request| {
                                    meanwhile();
                                    request.with_immediate(1)
                                });
                                assert_eq!(sent.is_ok(), what == Within::Post);
                            } else {
                                let late = Late(remote, &meanwhile);
                                let added = s.fetch_add(late, 1);
                                assert_eq!(added.is_err(), what == Within::Close);
                            }
                            Ok::<(), TransportError>(())
                        })
                    }));
                    assert_eq!((left.is_err(), ran.get()), (what == Within::Panic, 1));
                    assert_eq!(pair.in_flight(), 0);
                    let asked = pair.here.closed() == Some(CloseReason::Asked);
                    assert_eq!(asked, what == Within::Close);
                    word.fill(7);
                    pair.provoke();
                    assert_eq!(*word, [7; 8]);
                });
            }
        }
    }
}

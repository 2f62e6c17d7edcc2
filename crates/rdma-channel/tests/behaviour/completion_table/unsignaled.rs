//! Requests whose success makes no completion.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_channel::{
    Channel, CloseReason, Operation, PendingWork, Scope, ScopeError, ScopedPendingWork,
    TransportError,
};
use rdma_mem::{GatherList, RemoteMemoryRegion, SliceRef};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest, WcOpcode, WorkErrorCode, WriteWorkRequest};

use rdma_sys::{ibv_wc, ibv_wc_opcode};

use crate::common::provider::{POST, Post, at_next_poll, edit, faulty, honest, invent, wr_id};
use crate::common::{DEVICES, DRAIN, HELD, LATE, Pair, must_end, short};

const SECONDS: Duration = Duration::from_secs(25);

fn write<'scope>(
    s: &'scope Scope<'scope, '_>,
    data: SliceRef<'scope>,
    remote: RemoteMemoryRegion,
    signaled: bool,
) -> Result<ScopedPendingWork<'scope>, TransportError> {
    let list = GatherList::from([data]);
    s.post_write(WriteWorkRequest::from_list(&list, remote).signaled(signaled))
}

#[test]
fn a_later_completion_completes_unsignaled_requests() {
    must_end(|| {
        let mut pair = Pair::new(HELD);
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        pair.here
            .scope(|s| {
                let silent: Vec<_> = (0..4)
                    .map(|_| write(s, data.as_slice(), remote, false))
                    .collect::<Result<_, _>>()?;
                let send = s.post_send(SendWorkRequest::only_immediate(1).signaled(false))?;
                let told = write(s, data.as_slice(), remote, true)?;
                let behind = write(s, data.as_slice(), remote, true)?;
                soft.release(qpn, 4);
                for handle in &silent {
                    assert!(handle.poll().is_none(), "done, but without a completion");
                }
                // The send waits for its receive.
                let there = &pair.there;
                // SAFETY: SAFETY.md F8: the request has no memory, and completes before the channel is dropped.
                let received =
                    unsafe { there.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
                assert!(received.is_ok());
                drop(received);
                assert!(told.poll().is_none());
                while soft.in_flight(qpn) > 1 {
                    soft.release(qpn, 1);
                }
                told.wait(SECONDS)?;
                for handle in &silent {
                    assert_eq!(handle.poll().unwrap()?.opcode(), WcOpcode::RDMA_WRITE);
                }
                assert_eq!(send.wait(Duration::ZERO)?.opcode(), WcOpcode::SEND);
                assert!(behind.poll().is_none());
                soft.release(qpn, 1);
                behind.wait(SECONDS)?;
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!((pair.here.closed(), pair.here.stray_completions()), (None, 0));
    });
}

#[test]
fn every_half_queue_has_a_request_that_is_signaled() {
    for depth in 1..=33_u32 {
        must_end(move || {
            let mut pair = Pair::on(&faulty("soft0"), |builder| short(builder).max_send_wr(depth));
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let seen = Rc::new(Cell::new(0));
            let counted = Rc::clone(&seen);
            edit(move |completion| {
                counted.set(counted.get() + 1);
                vec![completion]
            });
            let posts = 4 * depth;
            pair.here
                .scope(|s| {
                    for _ in 0..posts {
                        drop(write(s, data.as_slice(), remote, false)?);
                    }
                    write(s, data.as_slice(), remote, true)?.wait(SECONDS)?;
                    Ok::<(), TransportError>(())
                })
                .unwrap();
            let expected = posts / (depth / 2).max(1) + 1;
            assert_eq!((seen.get(), pair.here.closed()), (expected, None), "of {depth}");
        });
    }
}

#[test]
fn a_failed_unsignaled_request_reports_it_and_completes_those_before_it() {
    for device in DEVICES.into_iter().filter(|&device| device != HELD) {
        must_end(move || {
            let mut pair = Pair::new(device);
            let data = pair.memory(8, 5);
            let good = pair.board.remote();
            let bad = RemoteMemoryRegion::new(good.address(), 8, good.rkey().get() ^ 0x55);
            let left = pair.here.scope(|s| {
                let before = write(s, data.as_slice(), good, false)?;
                let failing = write(s, data.as_slice(), bad, false)?;
                let after = write(s, data.as_slice(), good, false)?;
                let error = failing.wait(SECONDS).unwrap_err();
                let TransportError::WorkError(error) = error else { panic!("{error}") };
                assert_eq!(error.code(), WorkErrorCode::RemoteAccessError);
                before.poll().unwrap()?;
                let flushed = after.wait(SECONDS).unwrap_err();
                assert!(matches!(flushed, TransportError::WorkError(_)), "{flushed}");
                Ok::<(), TransportError>(())
            });
            left.unwrap();
            assert!(matches!(
                pair.here.closed(),
                Some(CloseReason::Work { operation: Operation::Write, .. })
            ));
        });
    }
}

/// Completed requests are reported as done, and the others as not done.
#[test]
fn a_scope_that_ends_with_unsignaled_requests_closes_the_channel() {
    for (device, done) in [("soft0", 3), (HELD, 0), (HELD, 2)] {
        must_end(move || {
            let mut pair = Pair::new(device);
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let begin = Instant::now();
            let left = pair.here.scope(|s| {
                for _ in 0..3 {
                    drop(write(s, data.as_slice(), remote, false)?);
                }
                if device == HELD {
                    soft.release(qpn, done);
                    assert_eq!(soft.in_flight(qpn), 3 - done as usize);
                }
                Ok::<(), TransportError>(())
            });
            assert!(begin.elapsed() < Duration::from_secs(25));
            let first = CloseReason::Unsignaled { operation: Operation::Write };
            assert_eq!(pair.here.closed(), Some(first));
            let lost = match left {
                Ok(()) => Vec::new(),
                Err(ScopeError::AutoPollError(lost)) => lost,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(lost.len(), 3 - done as usize);
            for lost in lost {
                assert!(
                    matches!(lost.error, TransportError::Closed { reason: why, .. } if why == first),
                    "{lost}"
                );
            }
            assert!(pair.here.qpn().is_some(), "nothing had to be destroyed");
            let text =
                TransportError::Closed { reason: first, peer: None, event: None }.to_string();
            assert!(text.contains("make the last request of a scope signaled"), "{text}");
        });
    }
}

/// The marker that would show the end finds no slot.
#[test]
fn unsignaled_requests_after_handles_that_fill_the_queue_end_with_the_queue_pair() {
    for device in ["soft0", HELD] {
        must_end(move || {
            let mut pair =
                Pair::with(device, |builder| builder.drain_timeout(DRAIN).max_send_wr(6));
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let left = pair.here.scope(|s| {
                for _ in 0..4 {
                    let held = write(s, data.as_slice(), remote, true)?;
                    soft.release(qpn, 1);
                    held.wait(SECONDS)?;
                    #[allow(clippy::mem_forget)] // the subject of this test
                    mem::forget(held);
                }
                for _ in 0..2 {
                    drop(write(s, data.as_slice(), remote, false)?);
                }
                let begin = Instant::now();
                let full = write(s, data.as_slice(), remote, true);
                assert!(matches!(full, Err(TransportError::WouldBlock)), "{full:?}");
                assert!(begin.elapsed() < SECONDS, "it waited for nothing");
                soft.release(qpn, 2);
                Ok::<(), TransportError>(())
            });
            assert!(matches!(left, Ok(()) | Err(ScopeError::AutoPollError(_))), "{left:?}");
            assert!(pair.here.closed().is_some());
            assert_eq!(soft.in_flight(qpn), 0);
        });
    }
}

#[test]
fn flushed_unsignaled_requests_are_found_however_the_scope_was_left() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let left = pair.here.scope(|s| {
                // It is never received.
                let list = GatherList::from([data.as_slice()]);
                drop(s.post_send(SendWorkRequest::from_list(&list).signaled(false))?);
                for _ in 0..3 {
                    drop(write(s, data.as_slice(), remote, false)?);
                }
                assert_eq!(soft.in_flight(qpn), 4);
                let _ = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                Ok::<(), TransportError>(())
            });
            let Err(ScopeError::AutoPollError(lost)) = left else { panic!("{left:?}") };
            assert_eq!(lost.len(), 5);
            assert_eq!(pair.in_flight(), 0);
        });
    }
}

#[test]
fn a_queue_pair_that_signals_all_requests_has_no_unknown_results() {
    for device in DEVICES.into_iter().filter(|&device| device != HELD) {
        must_end(move || {
            let mut pair = Pair::with(device, |builder| builder.sq_sig_all(true).max_send_wr(4));
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            for _ in 0..3 {
                pair.here
                    .scope(|s| {
                        for _ in 0..20 {
                            let silent = write(s, data.as_slice(), remote, false)?;
                            silent.wait(SECONDS)?;
                        }
                        for _ in 0..20 {
                            drop(write(s, data.as_slice(), remote, false)?);
                        }
                        write(s, data.as_slice(), remote, true)?.wait(SECONDS)?;
                        Ok::<(), TransportError>(())
                    })
                    .unwrap();
            }
            assert_eq!((pair.here.closed(), pair.here.stray_completions()), (None, 0));
        });
    }
}

type Leave = for<'scope> fn(
    &'scope Scope<'scope, '_>,
    SliceRef<'scope>,
    RemoteMemoryRegion,
) -> Result<(), TransportError>;

/// Forms in which an unsignaled request is the last one of its scope.
const LEFT: [Leave; 3] = [
    |s, data, remote| write(s, data, remote, false).map(drop),
    |s, data, remote| {
        let rented = s.write_from_with(data, remote, |w| w.signaled(false));
        rented.map(drop).map_err(TransportError::from)
    },
    |s, data, remote| {
        let list = GatherList::from([data]);
        let write = || WriteWorkRequest::from_list(&list, remote).signaled(false).into();
        POST.set(Post::Partly(1));
        let refused = s.post_batch([write(), write()]);
        honest();
        assert!(matches!(refused, Err(TransportError::PostError(_))));
        Ok(())
    },
];

#[test]
fn a_queue_pair_that_signals_all_requests_stays_open_when_the_last_of_a_scope_was_unsignaled() {
    for (form, leave) in LEFT.into_iter().enumerate() {
        must_end(move || {
            let mut pair = Pair::on(&faulty(HELD), |builder| builder.sq_sig_all(true));
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            pair.here
                .scope(|s| {
                    leave(s, data.as_slice(), remote)?;
                    assert_eq!(soft.in_flight(qpn), 1);
                    // When the scope has polled twice, it is waiting.
                    at_next_poll(move || {
                        at_next_poll(move || at_next_poll(move || soft.release(qpn, 1)));
                    });
                    Ok::<(), TransportError>(())
                })
                .unwrap_or_else(|error| panic!("form {form}: {error}"));
            assert_eq!((pair.here.closed(), soft.in_flight(qpn)), (None, 0), "form {form}");
        });
    }
}

/// Completions of the two queues are independent of each other.
#[test]
fn a_completed_receive_does_not_complete_unsignaled_requests() {
    must_end(|| {
        let mut pair = Pair::new(HELD);
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let there = pair.there.qpn().unwrap();
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        let peer: &Channel = &pair.there;
        let answer = || {
            // SAFETY: SAFETY.md F8: the request has no memory.
            let sent: PendingWork<'_> =
                unsafe { peer.send_unpolled(SendWorkRequest::only_immediate(1)) }.unwrap();
            soft.release(there, 1);
            sent.wait(SECONDS).unwrap();
        };
        pair.here
            .scope(|s| {
                let silent = write(s, data.as_slice(), remote, false)?;
                let one = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                let many =
                    s.post_receive_batch([(); 2].map(|()| ReceiveWorkRequest::only_immediate()))?;
                (0..3).for_each(|_| answer());
                one.wait(SECONDS)?;
                for received in &many {
                    received.wait(SECONDS)?;
                }
                assert_eq!(soft.in_flight(qpn), 1);
                assert!(silent.poll().is_none(), "the device has not started");
                let told = write(s, data.as_slice(), remote, true)?;
                soft.release(qpn, 2);
                told.wait(SECONDS)?;
                silent.poll().unwrap()?;
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!(pair.here.closed(), None);
    });
}

#[test]
fn the_last_request_of_an_unsignaled_batch_completes_the_batch() {
    must_end(|| {
        let mut pair = Pair::new(HELD);
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let data = pair.memory(8, 5);
        let remote = pair.board.remote();
        pair.here
            .scope(|s| {
                let before = write(s, data.as_slice(), remote, false)?;
                let list = GatherList::from([data.as_slice()]);
                let batch =
                    s.post_batch([(); 3].map(|()| {
                        WriteWorkRequest::from_list(&list, remote).signaled(false).into()
                    }))?;
                soft.release(qpn, 3);
                assert!(before.poll().is_none() && batch.iter().all(|one| one.poll().is_none()));
                soft.release(qpn, 1);
                batch[2].wait(SECONDS)?;
                before.poll().unwrap()?;
                batch[0].poll().unwrap()?;
                batch[1].poll().unwrap()?;
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!(pair.here.closed(), None);
    });
}

/// The slots of handles that have reported are free when the scope has ended. So there is one for the marker, which
/// shows how the requests after them ended.
#[test]
fn a_completed_unsignaled_request_is_not_lost_after_forgotten_handles() {
    for asked in [true, false] {
        must_end(move || {
            let limit = Duration::from_secs(60);
            let mut pair =
                Pair::with("soft0", |builder| builder.drain_timeout(limit).max_send_wr(4));
            let data = pair.memory(8, 5);
            let remote = pair.board.remote();
            let begin = Instant::now();
            let left = pair.here.scope(|s| {
                for _ in 0..3 {
                    let held = write(s, data.as_slice(), remote, true)?;
                    if asked {
                        held.wait(SECONDS)?;
                    }
                    #[allow(clippy::mem_forget)] // the subject of this test
                    mem::forget(held);
                }
                drop(write(s, data.as_slice(), remote, false)?);
                Ok::<(), TransportError>(())
            });
            assert!(begin.elapsed() < limit, "after {:?}: {left:?}", begin.elapsed());
            assert!(left.is_ok(), "it had completed: {left:?}");
            assert!(pair.here.qpn().is_some(), "nothing had to be destroyed");
        });
    }
}

/// Requests from before a scope, and those with handles that it has dropped, are completed at once.
#[test]
fn requests_from_before_a_scope_complete_together_with_its_dropped_ones() {
    must_end(|| {
        let mut pair = Pair::with("soft0", short);
        let data = pair.memory(8, 5);
        let (list, remote) = (GatherList::from([data.as_slice()]), pair.board.remote());
        let unsignaled = WriteWorkRequest::from_list(&list, remote).signaled(false);
        // SAFETY: SAFETY.md F8: the memory outlives the channel's requests, which the scope below ends.
        drop(unsafe { pair.here.write_unpolled(unsignaled) }.unwrap());
        // SAFETY: SAFETY.md F8: the request has no memory.
        drop(unsafe { pair.here.receive_unpolled(ReceiveWorkRequest::only_immediate()) }.unwrap());
        let there = &mut pair.there;
        let all = pair.here.scope(|s| {
            drop(write(s, data.as_slice(), remote, false)?);
            drop(write(s, data.as_slice(), remote, true)?);
            there.send(SendWorkRequest::only_immediate(1))?;
            Ok::<(), TransportError>(())
        });
        all.unwrap();
        assert_eq!((pair.here.closed(), pair.in_flight()), (None, 0));
    });
}

/// A device that also completes unsignaled requests changes the order in which their slots become free.
#[test]
fn a_success_completion_of_an_unsignaled_request_is_ignored() {
    must_end(|| {
        let mut pair = Pair::on(&faulty(HELD), short);
        let data = pair.memory(8, 5);
        let (remote, qpn) = (pair.board.remote(), pair.here.qpn().unwrap());
        let device = pair.device;
        pair.here
            .scope(|s| {
                let first = write(s, data.as_slice(), remote, false)?;
                let second = write(s, data.as_slice(), remote, true)?;
                invent(ibv_wc {
                    wr_id: wr_id(first.id()),
                    opcode: ibv_wc_opcode::IBV_WC_RDMA_WRITE,
                    qp_num: qpn.get(),
                    ..Default::default()
                });
                assert!(first.poll().is_none(), "it is in flight");
                assert!(second.poll().is_none());
                device.release(qpn, 2);
                second.wait(SECONDS)?;
                first.wait(SECONDS).map(drop)
            })
            .unwrap();
        assert_eq!((pair.here.closed(), pair.here.stray_completions()), (None, 1));
    });
}

//! Handles that are polled too early.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::time::{Duration, Instant};

use rdma_channel::{CloseReason, Operation, Progress, ScopeError, TransportError};
use rdma_mem::{GatherList, ScatterList};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, WriteWorkRequest};

use crate::common::{DEVICES, DRAIN, HELD, Pair, must_end};

#[test]
fn a_wait_that_times_out_changes_nothing_and_the_operation_completes_later() {
    must_end(|| {
        let mut pair = Pair::with(HELD, |builder| builder.write_timeout(DRAIN));
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        let data = pair.memory(64, 5);
        let remote = pair.board.remote();
        pair.here
            .scope(|s| {
                let list = GatherList::from([data.as_slice()]);
                let write = s.post_write(WriteWorkRequest::from_list(&list, remote))?;
                assert!(write.poll().is_none());
                for limit in [Duration::ZERO, Duration::from_millis(5)] {
                    let begin = Instant::now();
                    let error = write.wait(limit).unwrap_err();
                    assert!(
                        matches!(error, TransportError::Timeout { operation: Operation::Write, timeout, .. }
                            if timeout == limit),
                        "{error}"
                    );
                    assert!(begin.elapsed() >= limit);
                }
                assert!(matches!(write.spin_poll(), Err(TransportError::Timeout { timeout, .. })
                    if timeout == DRAIN));
                assert_eq!(soft.in_flight(qpn), 1, "it is under way");
                soft.release(qpn, 1);
                write.wait(Duration::MAX)?;
                write.spin_poll()?; // as often as the caller likes
                write.poll().unwrap()?;
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!(pair.here.closed(), None);
        let mut read = [0; 64];
        pair.board.read(0, &mut read).unwrap();
        assert_eq!(read, [5; 64]);
    });
}

#[test]
fn rented_memory_stays_with_a_handle_after_a_timeout() {
    must_end(|| {
        let mut pair = Pair::new(HELD);
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        pair.board.write(0, &[9; 4096]).unwrap();
        let mut to = pair.memory(64, 2);
        let remote = pair.board.remote().slice(0..64).unwrap();
        pair.here
            .scope(|s| {
                let read = s.read_into(to.as_slice_mut(), remote)?;
                let id = read.id();
                let Progress::Pending(mut read) = read.poll() else { panic!("it should be in flight") };
                for limit in [Duration::ZERO, Duration::from_millis(5)] {
                    let late = read.wait(limit).unwrap_err();
                    assert!(
                        matches!(late.error, TransportError::Timeout { operation: Operation::Read, timeout, .. }
                            if timeout == limit),
                        "{late}"
                    );
                    read = late.handle;
                }
                assert_eq!((read.id(), read.operation()), (id, Operation::Read));
                assert_eq!(soft.in_flight(qpn), 1, "it is under way");
                soft.release(qpn, 1);
                let mut done = read.wait(Duration::MAX).unwrap();
                done.result?;
                assert_eq!(*done.buf, [9; 64]);
                done.buf.fill(4);
                Ok::<(), TransportError>(())
            })
            .unwrap();
        assert_eq!((*to).to_vec(), [4; 64]);
    });
}

/// The memory stays with the scope until it ends, whatever happened to the handle.
#[test]
fn a_dropped_handle_leaves_its_operation_to_the_scope() {
    must_end(|| {
        let mut pair = Pair::with(HELD, |builder| builder.drain_timeout(Duration::from_secs(10)));
        let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
        pair.board.write(0, &[9; 4096]).unwrap();
        let (mut one, mut two) = (pair.memory(64, 2), pair.memory(64, 2));
        let remote = pair.board.remote().slice(0..64).unwrap();
        let releases = std::thread::spawn(move || {
            while soft.in_flight(qpn) < 2 {
                std::thread::yield_now();
            }
            while soft.in_flight(qpn) > 0 {
                soft.release(qpn, 1);
            }
        });
        pair.here
            .scope(|s| {
                drop(s.read_into(one.as_slice_mut(), remote)?);
                let mut list = ScatterList::from([two.as_slice_mut()]);
                #[allow(clippy::mem_forget)] // the subject of this test
                std::mem::forget(s.post_read(ReadWorkRequest::from_list(&mut list, remote))?);
                Ok::<(), TransportError>(())
            })
            .unwrap();
        releases.join().unwrap();
        assert_eq!((&one[..], &two[..]), (&[9; 64][..], &[9; 64][..]));
        assert_eq!(pair.here.closed(), None);
    });
}

/// Each handle knows its own channel, in whatever scope it is polled.
#[test]
fn handles_swapped_between_scopes_stay_with_their_channels() {
    for device in DEVICES {
        for panics in [false, true] {
            must_end(move || {
                let (mut one, mut two) = (Pair::new(device), Pair::new(device));
                for pair in [&one, &two] {
                    pair.board.write(0, &[9; 4096]).unwrap();
                }
                let (mut first, mut second) = (one.memory(8, 1), two.memory(8, 2));
                let remotes = [&one, &two].map(|pair| pair.board.remote().slice(0..8).unwrap());
                let left = catch_unwind(AssertUnwindSafe(|| {
                    one.here.scope(|s| {
                        let outer = s.read_into(first.as_slice_mut(), remotes[0])?;
                        let room = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                        let within = two.here.scope(|t| {
                            let mut inner = t.read_into(second.as_slice_mut(), remotes[1])?;
                            let mut other = t.post_receive(ReceiveWorkRequest::only_immediate())?;
                            let (mut outer, mut room) = (outer, room);
                            mem::swap(&mut inner, &mut outer);
                            mem::swap(&mut other, &mut room);
                            drop(other);
                            #[allow(clippy::mem_forget)] // the subject of this test
                            mem::forget(room);
                            let _ = inner.wait(DRAIN);
                            let _ = outer.poll();
                            if panics { panic_any(7) } else { Ok::<(), TransportError>(()) }
                        });
                        assert!(matches!(within, Err(ScopeError::AutoPollError(_))));
                        Ok::<(), TransportError>(())
                    })
                }));
                assert_eq!(left.is_err(), panics);
                assert_eq!((one.in_flight(), two.in_flight()), (0, 0));
                for pair in [&one, &two] {
                    let closed = pair.here.closed();
                    assert!(matches!(closed, Some(CloseReason::Timeout { .. })), "{closed:?}");
                }
                first.fill(7);
                second.fill(7);
                one.provoke();
                two.provoke();
                assert_eq!((&first[..], &second[..]), (&[7; 8][..], &[7; 8][..]));
            });
        }
    }
}

/// The index of its slot, and the number of earlier uses.
#[test]
fn ids_in_one_slot_differ_only_in_the_generation() {
    must_end(|| {
        let mut pair = Pair::with("soft0", |builder| builder.max_send_wr(1));
        let remote = pair.board.remote().slice(0..8).unwrap();
        for generation in 0..3 {
            let id = pair.here.scope(|s| {
                let write = s.post_write(WriteWorkRequest::new(&[], remote))?;
                write.spin_poll()?;
                Ok::<_, TransportError>(write.id())
            });
            assert_eq!(id.unwrap().to_string(), format!("work 1.{generation}"));
        }
    });
}

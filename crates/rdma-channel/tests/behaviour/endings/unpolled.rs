//! Operations whose callers keep the memory, and channels that end before them.
#![allow(unsafe_code)]

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rdma_channel::{Channel, CloseReason, Operation, PendingWork, TransportError};
use rdma_mem::{GatherList, OwnedRegion, RemoteMemoryRegion, ScatterList};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

use crate::common::{HELD, LATE, Pair, must_end, wait_in_vain};

/// Posts a read after a send that is never received, and leaves both.
fn post(channel: &Channel, memory: &mut OwnedRegion, remote: RemoteMemoryRegion) {
    let mut list = ScatterList::from([memory.as_slice_mut()]);
    // SAFETY: SAFETY.md F8: the request has no memory.
    let sent = unsafe { channel.send_unpolled(SendWorkRequest::only_immediate(1)) }.unwrap();
    // SAFETY: SAFETY.md F8: the region is not accessed before the channel has closed.
    let read = unsafe { channel.read_unpolled(ReadWorkRequest::from_list(&mut list, remote)) };
    drop(sent);
    #[allow(clippy::mem_forget)] // the subject of this test
    mem::forget(read.unwrap());
}

/// H4: no code waits for a completion that cannot arrive.
#[test]
fn a_dropped_or_closed_channel_ends_its_unpolled_work() {
    for device in LATE {
        for close in [false, true] {
            must_end(move || {
                let Pair { here, there, board, pd, device } = Pair::new(device);
                board.write(0, &[9; 4096]).unwrap();
                let mut memory = pd.allocate_region(64).unwrap();
                let qpn = here.qpn().unwrap();
                post(&here, &mut memory, board.remote().slice(0..64).unwrap());
                assert_eq!(device.in_flight(qpn), 2);
                if close {
                    here.close().map_err(TransportError::from).unwrap()
                } else {
                    drop(here)
                }
                assert_eq!(device.in_flight(qpn), 0);
                memory.fill(7);
                // SAFETY: SAFETY.md F8: the request has no memory.
                let _ = unsafe { there.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
                device.release(qpn, u32::MAX);
                wait_in_vain();
                assert_eq!(*memory, [7; 64]);
                memory.close().unwrap();
            });
        }
    }
}

#[test]
fn a_blocking_call_that_times_out_also_ends_unpolled_work() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            pair.board.write(0, &[9; 4096]).unwrap();
            let mut memory = pair.memory(64, 1);
            post(&pair.here, &mut memory, pair.board.remote().slice(0..64).unwrap());
            assert_eq!(pair.in_flight(), 2);
            let error = pair.here.send(SendWorkRequest::only_immediate(2)).unwrap_err();
            assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
            assert_eq!(pair.in_flight(), 0);
            memory.fill(7);
            pair.provoke();
            assert_eq!(*memory, [7; 64]);
        });
    }
}

#[test]
fn a_scope_also_ends_unpolled_work() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            let mut memory = pair.memory(64, 1);
            post(&pair.here, &mut memory, pair.board.remote().slice(0..64).unwrap());
            assert_eq!(pair.in_flight(), 2);
            let _ = pair.here.scope(|_| Ok::<(), TransportError>(()));
            assert_eq!(pair.in_flight(), 0);
            let closed = pair.here.closed();
            let first = CloseReason::Timeout { operation: Operation::Send };
            assert_eq!(closed, Some(first));
            memory.fill(7);
            pair.provoke();
            assert_eq!(*memory, [7; 64]);
        });
    }
}

#[test]
fn earlier_handles_do_not_count_in_a_manual_scope() {
    must_end(|| {
        let mut pair = Pair::new("soft0");
        // SAFETY: SAFETY.md F8: the request has no memory.
        let received = unsafe { pair.there.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
        drop(received.unwrap());
        // SAFETY: SAFETY.md F8: the request has no memory.
        let sent = unsafe { pair.here.send_unpolled(SendWorkRequest::only_immediate(2)) };
        drop(sent.unwrap());
        let scopes = catch_unwind(AssertUnwindSafe(|| {
            for channel in [&mut pair.here, &mut pair.there] {
                channel.manual_scope(|_| Ok::<(), TransportError>(())).unwrap();
            }
        }));
        assert!(scopes.is_ok(), "nothing was posted in them");
    });
}

#[test]
fn an_unpolled_handle_reports_its_result_and_frees_its_slot() {
    for device in LATE {
        must_end(move || {
            let pair = Pair::new(device);
            let (sends, _) = pair.here.depths();
            for _ in 0..3 * sends {
                // SAFETY: SAFETY.md F8: the request has no memory.
                let received =
                    unsafe { pair.there.receive_unpolled(ReceiveWorkRequest::only_immediate()) };
                let received = received.unwrap();
                // SAFETY: SAFETY.md F8: the request has no memory.
                let sent = unsafe { pair.here.send_unpolled(SendWorkRequest::only_immediate(5)) };
                let sent = sent.unwrap();
                if device == HELD {
                    assert!(matches!(
                        sent.wait(Duration::ZERO),
                        Err(TransportError::Timeout { .. })
                    ));
                    pair.release();
                }
                sent.wait(Duration::from_secs(10)).unwrap();
                let success = received.wait(Duration::from_secs(10)).unwrap();
                assert_eq!(success.immediate_data(), Some(5));
            }
            assert_eq!(pair.here.closed(), None);
        });
    }
}

#[test]
fn each_operation_has_an_unpolled_form() {
    for device in LATE {
        must_end(move || {
            let pair = Pair::new(device);
            pair.board.write(0, &[9; 8]).unwrap();
            let (data, mut to) = (pair.memory(8, 1), pair.memory(8, 2));
            let part = |at: usize| pair.board.remote().slice(at..at + 8).unwrap();
            let done = |handle: PendingWork<'_>| {
                while let Err(error) = handle.wait(Duration::from_millis(1)) {
                    assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
                    pair.release();
                }
                handle.operation()
            };
            let list = GatherList::from([data.as_slice()]);
            let write = WriteWorkRequest::from_list(&list, part(8));
            // SAFETY: SAFETY.md F8: each region outlives the channel, and is left alone until its request has
            // completed; here and below.
            let written = done(unsafe { pair.here.write_unpolled(write) }.unwrap());
            let mut list = ScatterList::from([to.as_slice_mut()]);
            let read = ReadWorkRequest::from_list(&mut list, part(0));
            // SAFETY: SAFETY.md F8: as above.
            let read = done(unsafe { pair.here.read_unpolled(read) }.unwrap());
            assert_eq!([written, read], [Operation::Write, Operation::Read]);
            let mut bytes = [0; 8];
            pair.board.read(8, &mut bytes).unwrap();
            assert_eq!((&to[..], bytes), (&[9; 8][..], [1; 8]));
        });
    }
}

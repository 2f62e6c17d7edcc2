//! Peers that are gone.

use std::thread;
use std::time::{Duration, Instant};

use rdma_channel::{CloseReason, FailedWork, Operation, ScopeError, TransportError};
use rdma_mem::{AsyncEventKind, GatherList, RemoteMemoryRegion};
use rdma_qp::{
    AckTimeout, MaxAckRetries, ReceiveWorkRequest, SendWorkRequest, WorkErrorCode, WriteWorkRequest,
};

use crate::common::{DEVICES, DRAIN, HANG, HELD, Pair, WIRE, must_end, short};

/// A pair that soon gives up on a peer that does not answer.
fn pair(device: &str) -> Pair {
    Pair::with(device, |builder| {
        let builder = builder.ack_timeout(AckTimeout::limited(10).unwrap()); // 4 ms
        builder.max_ack_retries(MaxAckRetries::limited(1).unwrap()).drain_timeout(DRAIN)
    })
}

fn is_gone(error: &TransportError) -> bool {
    matches!(error, TransportError::WorkError(error) if error.code() == WorkErrorCode::RetryExceededError)
}

#[test]
fn a_blocking_call_to_a_destroyed_peer_fails_and_later_calls_report_why() {
    for device in DEVICES.into_iter().filter(|&device| device != HELD) {
        must_end(move || {
            let Pair { mut here, there, board, pd, .. } = pair(device);
            there.close().unwrap();
            let data = pd.allocate_region(8).unwrap();
            let list = GatherList::from([data.as_slice()]);
            let begin = Instant::now();
            let error = here.write(WriteWorkRequest::from_list(&list, board.remote())).unwrap_err();
            assert!(is_gone(&error) && begin.elapsed() < Duration::from_secs(25), "{error}");
            let error = here.send(SendWorkRequest::only_immediate(1)).unwrap_err();
            let TransportError::Closed { reason: CloseReason::Work { operation, error }, .. } =
                error
            else {
                panic!("{error}")
            };
            assert_eq!(
                (operation, error.code()),
                (Operation::Write, WorkErrorCode::RetryExceededError)
            );
        });
    }
}

#[test]
fn a_scope_with_a_lost_peer_ends_and_reports_the_failed_operations() {
    for device in DEVICES.into_iter().filter(|&device| device != HELD) {
        must_end(move || {
            let mut pair = pair(device);
            let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
            let data = pair.memory(8, 1);
            let mut room = pair.memory(8, 3);
            let there = pair.there;
            let left = pair.here.scope(|s| {
                let _ = s.receive_into(room.as_slice_mut())?;
                let sent = s.send_from(data.as_slice())?;
                let _ = s.send_from(data.as_slice())?;
                assert_eq!(soft.in_flight(qpn), 2);
                there.close().unwrap();
                // Its limit is thirty seconds.
                let sent = sent.wait(Duration::MAX).unwrap();
                assert!(is_gone(&sent.result.unwrap_err()));
                Ok::<(), TransportError>(())
            });
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            let operations: Vec<_> = errors.iter().map(|failed| failed.operation).collect();
            assert_eq!(operations, [Operation::Send, Operation::Receive], "{errors:?}");
            let closed = pair.here.closed();
            assert!(matches!(closed, Some(CloseReason::Work { .. })), "{closed:?}");
        });
    }
}

/// A flushed request has no cause, but the device may report it. The error reads that event without removing it from
/// other readers of events.
#[test]
fn a_request_flushed_by_a_refusal_of_the_peer_reports_that_cause() {
    for device in DEVICES.into_iter().chain([WIRE]).filter(|&device| device != HELD) {
        must_end(move || {
            let Pair { mut here, mut there, pd, .. } = Pair::with(device, |builder| builder);
            let context = there.pd().context().clone();
            let events = context.async_events().unwrap();
            let nowhere = RemoteMemoryRegion::new(0x1000, 8, 0x1234_5678);
            here.write_from(&pd.allocate_region(8).unwrap(), nowhere).unwrap_err();
            let mut room = there.pd().allocate_region(8).unwrap();
            let error = there.receive_into(&mut room).unwrap_err();
            let TransportError::WorkError(FailedWork { error: flushed, event, .. }) = error else {
                panic!("{error}")
            };
            assert_eq!(flushed.code(), WorkErrorCode::WorkRequestFlushError);
            // The device may report the cause later than the completion.
            assert!(event.is_none_or(|kind| kind == AsyncEventKind::QP_ACCESS_ERR), "{event:?}");
            let said = loop {
                let error = there.receive_into(&mut room).unwrap_err();
                let TransportError::Closed { event, .. } = error else { panic!("{error}") };
                if event.is_some() {
                    break error.to_string();
                }
                thread::yield_now();
            };
            let why = "since a receive failed: work request flushed";
            assert!(said.contains(why) && said.contains("access violation by the peer"), "{said}");
            let event = events.get_event_timeout(HANG).unwrap().unwrap();
            assert_eq!(event.kind, AsyncEventKind::QP_ACCESS_ERR);
            assert_eq!(events.try_get_event().unwrap(), None);
        });
    }
}

#[test]
fn a_peer_in_the_error_state_counts_as_gone() {
    for device in DEVICES.into_iter().filter(|&device| device != HELD) {
        must_end(move || {
            let mut pair = pair(device);
            // Its receive times out, so that its queue pair is in error.
            pair.there
                .within(Duration::ZERO)
                .receive(ReceiveWorkRequest::only_immediate())
                .unwrap_err();
            let error = pair.here.send(SendWorkRequest::only_immediate(1)).unwrap_err();
            assert!(is_gone(&error), "{error}");
        });
    }
}

/// The device does not even try to reach the peer.
#[test]
fn a_device_that_never_reaches_the_peer_is_caught_by_the_limit() {
    must_end(|| {
        let mut pair = Pair::with(HELD, short);
        let there = pair.there;
        there.close().unwrap();
        let error = pair.here.send(SendWorkRequest::only_immediate(1)).unwrap_err();
        assert!(matches!(error, TransportError::Timeout { .. }), "{error}");
        assert_eq!(pair.device.in_flight(pair.here.qpn().unwrap()), 0);
    });
}

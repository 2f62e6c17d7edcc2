//! Scopes that close their channel.

use std::time::{Duration, Instant};

use rdma_channel::{CloseReason, Scope, ScopeError, TransportError};
use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};

use crate::common::provider::{DESTROYED, STAY, faulty, honest};
use crate::common::stuck::{Handles, Stuck};
use crate::common::{LATE, Pair, must_end, short};

/// More than the duration of an ending that waits for nothing.
const LONG: Duration = Duration::from_secs(10);

fn patient(device: &str) -> Pair {
    Pair::on(&faulty(device), |builder| short(builder).drain_timeout(2 * LONG))
}

fn is_asked(error: &TransportError) -> bool {
    matches!(error, TransportError::Closed { reason: CloseReason::Asked, .. })
}

/// Leaves a scope with three requests that do not complete, after `close` has closed it.
fn leave(
    pair: &mut Pair,
    close: impl FnOnce(&Scope<'_, '_>),
) -> Result<(), ScopeError<TransportError>> {
    let mut stuck = Stuck::new(pair);
    let (soft, qpn) = (pair.device, pair.here.qpn().unwrap());
    let begin = Instant::now();
    let left = pair.here.scope(|s| {
        stuck.post(s, Handles::Dropped).unwrap();
        assert_eq!(soft.in_flight(qpn), 2, "no request of the send queue has completed");
        close(s);
        assert_eq!(s.closed(), Some(CloseReason::Asked));
        let refused = s.post_send(SendWorkRequest::only_immediate(1)).unwrap_err();
        assert!(is_asked(&refused), "{refused}");
        Ok(())
    });
    assert!(begin.elapsed() < LONG);
    assert_eq!(pair.here.closed(), Some(CloseReason::Asked));
    honest();
    stuck.assert_given_back(pair);
    left
}

#[test]
fn a_scope_that_closes_its_channel_flushes_at_once_and_that_is_no_failure() {
    for device in LATE {
        must_end(move || {
            let mut pair = patient(device);
            leave(&mut pair, |s| s.close()).unwrap();
            assert_eq!(DESTROYED.get(), 0);
            let again = pair.here.receive(ReceiveWorkRequest::only_immediate()).unwrap_err();
            assert!(is_asked(&again), "{again}");
        });
    }
}

/// It is retried when the scope ends.
#[test]
fn a_failed_transition_to_error_is_retried_at_the_end_of_the_scope() {
    for device in LATE {
        must_end(move || {
            let mut pair = patient(device);
            let left = leave(&mut pair, |s| {
                STAY.set(true);
                s.close();
                STAY.set(false);
            });
            left.unwrap();
            assert_eq!(DESTROYED.get(), 0);
        });
    }
}

#[test]
fn requests_that_never_complete_after_close_are_lost() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::on(&faulty(device), short);
            let left = leave(&mut pair, |s| {
                STAY.set(true);
                s.close();
            });
            let Err(ScopeError::AutoPollError(errors)) = left else { panic!("{left:?}") };
            assert!(errors.iter().all(|lost| matches!(lost.error, TransportError::Lost { .. })));
            assert_eq!((errors.len(), DESTROYED.get()), (3, 1));
        });
    }
}

#[test]
fn handles_of_a_closed_scope_report_flushed_operations() {
    for device in LATE {
        must_end(move || {
            let mut pair = Pair::new(device);
            pair.here
                .scope(|s| {
                    let room = s.post_receive(ReceiveWorkRequest::only_immediate())?;
                    assert!(room.poll().is_none());
                    s.close();
                    let error = room.wait(LONG).unwrap_err();
                    assert!(matches!(error, TransportError::WorkError(_)), "{error}");
                    Ok::<(), TransportError>(())
                })
                .unwrap();
        });
    }
}

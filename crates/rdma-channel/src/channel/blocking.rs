//! Blocking operations: post a request, wait until it completes, and end it if the wait fails.

use rdma_connect::{CloseReason, Operation, TransportError, WorkId};
use rdma_qp::{WorkErrorClass, WorkSuccess};

use crate::deadline::BatchDeadline;
use crate::ledger::Ledger;
use crate::ledger::end::without_unwinding;
use crate::ledger::post::PostFailure;
use crate::ledger::queues::RequestSlot;
use crate::ledger::ticket::{Ticket, Unsettled};

/// The state of a blocking call whose post or first poll did not yield a success.
pub(crate) enum Unfinished {
    /// The request has completed with this result.
    Nothing(Result<WorkSuccess, TransportError>),
    /// The post was refused, or its outcome is unknown. The ledger holds the reason.
    Refused,
    /// The request is still in flight, because the wait for it failed. Its limit has expired, the peer is gone, or no
    /// completions can be received any longer.
    InFlight { id: WorkId, operation: Operation, failure: TransportError },
}

impl Unfinished {
    #[inline(never)]
    pub(crate) fn after(ticket: Ticket<'_>, so_far: Unsettled) -> Self {
        let request = ticket.request();
        match request.wait(so_far, None) {
            Ok(result) => Self::Nothing(result.map_err(|error| request.failed(error))),
            Err(failure) => {
                let (id, operation) = ticket.keep();
                Self::InFlight { id, operation, failure }
            }
        }
    }
}

impl Ledger {
    /// Ends the request if it is still in flight, so that the device no longer uses the caller's memory.
    #[inline(never)]
    pub(crate) fn end_call(
        &mut self,
        unfinished: Unfinished,
    ) -> Result<WorkSuccess, TransportError> {
        let (id, operation, failure) = match unfinished {
            Unfinished::Nothing(result) => return result,
            Unfinished::Refused => {
                let PostFailure { error, maybe_posted } = self.take_refusal();
                if let Some(id) = maybe_posted {
                    self.end_maybe_posted(id);
                } else if let TransportError::Timeout { .. } | TransportError::PeerGone { .. } =
                    error
                {
                    self.end_closed();
                }
                return Err(error);
            }
            Unfinished::InFlight { id, operation, failure } => (id, operation, failure),
        };
        let reason = match failure {
            TransportError::Timeout { .. } => CloseReason::Timeout { operation },
            TransportError::PeerGone { reason, .. } => reason,
            _ => CloseReason::Poll,
        };
        match self.give_up(id, reason) {
            // The request completed before the device was made to release it.
            Some(Ok(success)) => Ok(success),
            Some(Err(work)) if work.class() != WorkErrorClass::Flushed => {
                Err(self.queues.slot_of(id.wr_id()).map_or(failure, |slot| self.failed(slot, work)))
            }
            _ => Err(failure),
        }
    }

    /// Ends a request whose post failed, in case the device has accepted it.
    #[cold]
    #[inline(never)]
    fn end_maybe_posted(&mut self, id: WorkId) {
        if let Some(slot) = self.in_flight(id.wr_id()) {
            let operation = slot.operation.get();
            self.give_up(id, CloseReason::Doubtful { operation });
        }
    }

    /// Ends the requests of a call unless all have succeeded. After this, the device no longer uses the memory of any
    /// request.
    ///
    /// # Errors
    /// Returns the call's own error.
    pub(crate) fn end_calls<T>(
        &mut self,
        outcome: Result<Result<T, TransportError>, TransportError>,
    ) -> Result<T, TransportError> {
        without_unwinding(|| {
            match &outcome {
                Ok(Ok(_)) => {}
                // A wait for a free slot can time out, too.
                Ok(Err(TransportError::Timeout { operation, .. }))
                | Err(TransportError::Timeout { operation, .. }) => {
                    self.end_now(CloseReason::Timeout { operation: *operation });
                }
                Ok(Err(TransportError::PeerGone { reason, .. }))
                | Err(TransportError::PeerGone { reason, .. }) => self.end_now(*reason),
                // The requests in flight get as much time as at the end of a scope.
                Ok(Err(_)) => drop(self.end()),
                // Nothing was posted.
                Err(_) => {}
            }
            outcome.and_then(|outcome| outcome)
        })
    }
}

/// Waits for all requests in these slots, even if one of them fails. Passes each success to `each`, in the order of the
/// slots.
///
/// # Errors
/// The error of the first request that failed, or the error of a wait, for example a timeout. After a failed wait, some
/// requests are still in flight.
#[inline(always)]
pub(crate) fn wait_all(
    ledger: &Ledger,
    slots: &[&RequestSlot],
    deadline: &mut BatchDeadline,
    mut each: impl FnMut(WorkSuccess),
) -> Result<(), TransportError> {
    let mut failure = None;
    for slot in slots {
        let ticket = Ticket::new(ledger, slot);
        let so_far = match ticket.request().glance() {
            Ok(success) => {
                ticket.release();
                each(success);
                continue;
            }
            Err(so_far) => so_far,
        };
        let operations = || slots.iter().map(|slot| slot.operation.get());
        let deadline = deadline.get(|| ledger.limits.longest(operations()));
        match ticket.request().wait_until(so_far, deadline)? {
            Some(Ok(success)) => each(success),
            Some(Err(error)) => {
                failure.get_or_insert_with(|| ledger.failed(slot, error));
            }
            None => {
                let (operation, timeout) = (ticket.request().operation(), deadline.limit());
                return Err(TransportError::Timeout {
                    operation,
                    timeout,
                    peer: ledger.peer_of(slot),
                });
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

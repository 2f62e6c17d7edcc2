//! Operations one at a time: post, wait, and if that fails, end.

use rdma_connect::{CloseReason, Operation, TransportError, WorkId};
use rdma_qp::{WorkErrorClass, WorkSuccess};

use crate::deadline::BatchDeadline;
use crate::ledger::Ledger;
use crate::ledger::end::without_unwinding;
use crate::ledger::post::PostFailure;
use crate::ledger::queues::RequestSlot;
use crate::ledger::ticket::{Ticket, Unsettled};

/// What is left of a blocking call that has not ended at a glance.
pub(crate) enum Left {
    /// It ended so.
    Nothing(Result<WorkSuccess, TransportError>),
    /// It was not posted, or perhaps: why is in the ledger.
    Refused,
    /// For it took too long, or the completion queue has failed.
    InFlight { id: WorkId, operation: Operation, failure: TransportError },
}

impl Left {
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
    /// If it is not over by now, the request is ended: its memory goes back to the caller.
    #[inline(never)]
    pub(crate) fn end_call(&mut self, left: Left) -> Result<WorkSuccess, TransportError> {
        let (id, operation, failure) = match left {
            Left::Nothing(result) => return result,
            Left::Refused => {
                let PostFailure { error, perhaps } = self.take_refusal();
                if let Some(id) = perhaps {
                    self.end_perhaps_posted(id);
                } else if let TransportError::Timeout { .. } | TransportError::PeerGone { .. } =
                    error
                {
                    self.end_closed();
                }
                return Err(error);
            }
            Left::InFlight { id, operation, failure } => (id, operation, failure),
        };
        let reason = match failure {
            TransportError::Timeout { .. } => CloseReason::Timeout { operation },
            TransportError::PeerGone { reason, .. } => reason,
            _ => CloseReason::Poll,
        };
        match self.give_up(id, reason) {
            // It was done before the device was made to let go.
            Some(Ok(success)) => Ok(success),
            Some(Err(work)) if work.class() != WorkErrorClass::Flushed => {
                Err(self.queues.slot_of(id.wr_id()).map_or(failure, |slot| self.failed(slot, work)))
            }
            _ => Err(failure),
        }
    }

    /// Ends a request that was refused, and may be with the device all the same.
    #[cold]
    #[inline(never)]
    fn end_perhaps_posted(&mut self, id: WorkId) {
        if let Some(slot) = self.in_flight(id.wr_id()) {
            let operation = slot.operation.get();
            self.give_up(id, CloseReason::Doubtful { operation });
        }
    }

    /// Ends what a call has posted that has not all succeeded. After it the device uses no memory of any request.
    ///
    /// # Errors
    /// Those of the call.
    pub(crate) fn end_calls<T>(
        &mut self,
        outcome: Result<Result<T, TransportError>, TransportError>,
    ) -> Result<T, TransportError> {
        without_unwinding(|| {
            match &outcome {
                Ok(Ok(_)) => {}
                // Also for lack of space.
                Ok(Err(TransportError::Timeout { operation, .. }))
                | Err(TransportError::Timeout { operation, .. }) => {
                    self.end_now(CloseReason::Timeout { operation: *operation });
                }
                Ok(Err(TransportError::PeerGone { reason, .. }))
                | Err(TransportError::PeerGone { reason, .. }) => self.end_now(*reason),
                // What is in flight is given the time that a scope would give it.
                Ok(Err(_)) => drop(self.end()),
                // Nothing was posted.
                Err(_) => {}
            }
            outcome.and_then(|outcome| outcome)
        })
    }
}

/// Waits for the requests in these slots, also if one fails, and hands on their successes in order.
///
/// # Errors
/// That of the first that failed; or that time ran out, and then some are in flight.
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

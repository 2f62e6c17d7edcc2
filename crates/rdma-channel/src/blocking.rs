//! Operations one at a time: post, wait, and if that fails, end.
#![allow(unsafe_code)]

use std::time::Duration;

use rdma_qp::{ReceiveWorkRequest, WorkErrorClass, WorkSuccess};

use crate::core::{Core, SendRequest};
use crate::ending::without_unwinding;
use crate::lane::Lane;
use crate::patience::Patience;
use crate::ticket::Ticket;
use crate::{CloseReason, Operation, TransportError, WorkId};

impl Core {
    /// Posts a request of the send queue, and waits for it.
    #[inline(always)]
    pub(crate) fn block_send<R: SendRequest>(
        &mut self,
        peer: usize,
        operation: Operation,
        request: R,
        timeout: Duration,
    ) -> Result<WorkSuccess, TransportError> {
        // SAFETY: SAFETY.md F22: its memory is borrowed by this call, which ends after the request.
        self.block(peer, timeout, |core, lane| unsafe {
            core.post(lane, operation, request.made_signaled(), true)
        })
    }

    /// As [`block_send`](Self::block_send), of a receive.
    #[inline(always)]
    pub(crate) fn block_receive(
        &mut self,
        peer: usize,
        _: Operation,
        request: ReceiveWorkRequest<'_, '_>,
        timeout: Duration,
    ) -> Result<WorkSuccess, TransportError> {
        // SAFETY: SAFETY.md F22: its memory is borrowed by this call, which ends after the request.
        self.block(peer, timeout, |core, lane| unsafe { core.post_receive(lane, request, true) })
    }

    /// Posts one request, and returns when the device uses its memory no more.
    #[inline(always)]
    fn block(
        &mut self,
        peer: usize,
        timeout: Duration,
        post: impl for<'c> FnOnce(&'c Self, &'c Lane) -> Result<Ticket<'c>, TransportError>,
    ) -> Result<WorkSuccess, TransportError> {
        without_unwinding(|| {
            let left = match self.lane(peer).and_then(|lane| post(self, lane)) {
                Ok(ticket) => match ticket.wait(timeout) {
                    Ok(Some(result)) => return Ok(result?),
                    Ok(None) => Ok((ticket.keep(), None)),
                    Err(error) => Ok((ticket.keep(), Some(error))),
                },
                Err(error) => Err(error),
            };
            match left {
                Ok(((id, operation), failure)) => {
                    self.out_of_patience(id, operation, timeout, failure)
                }
                Err(error) => {
                    if error.may_be_posted() {
                        self.end_doubtful();
                    }
                    Err(error)
                }
            }
        })
    }

    /// Runs what posts several requests and [waits](wait_all) for them. Returns when the device uses the memory
    /// of none.
    pub(crate) fn block_all<T>(
        &mut self,
        run: impl for<'c> FnOnce(&'c Self) -> Result<T, TransportError>,
    ) -> Result<T, TransportError> {
        without_unwinding(|| {
            let outcome = run(self);
            match &outcome {
                Ok(_) => {}
                Err(TransportError::Timeout { operation, .. }) => {
                    let _ = self.end_now(CloseReason::Timeout { operation: *operation });
                }
                // What is under way is given the time that a scope would give it.
                Err(_) => drop(self.end()),
            }
            outcome
        })
    }

    /// The request is ended: its memory goes back to the caller.
    #[cold]
    #[inline(never)]
    fn out_of_patience(
        &mut self,
        id: WorkId,
        operation: Operation,
        timeout: Duration,
        failure: Option<TransportError>,
    ) -> Result<WorkSuccess, TransportError> {
        let reason = match failure {
            Some(_) => CloseReason::Poll,
            None => CloseReason::Timeout { operation },
        };
        let error = failure.unwrap_or(TransportError::Timeout { operation, timeout });
        match self.give_up(id, reason).own {
            // It was done before the device was told to let go.
            Some(Ok(Ok(success))) => Ok(success),
            Some(Ok(Err(work))) if work.class() != WorkErrorClass::Flushed => Err(work.into()),
            _ => Err(error),
        }
    }

    /// Ends a request that was refused, and may be with the device all the same.
    #[cold]
    #[inline(never)]
    fn end_doubtful(&mut self) {
        let id = self.doubtful.replace(0);
        if let Some(slot) = self.in_flight(id) {
            let operation = slot.operation.get();
            self.give_up(WorkId(id), CloseReason::Doubtful { operation });
        }
    }
}

/// Waits for all, also if one fails, and hands on their successes in order. The limit is for all.
///
/// # Errors
/// Of the first that failed; or that time ran out, and then some are under way.
pub(crate) fn wait_all<'c>(
    tickets: impl IntoIterator<Item = Ticket<'c>>,
    timeout: Duration,
    mut each: impl FnMut(WorkSuccess),
) -> Result<(), TransportError> {
    let (mut patience, mut failure) = (Patience::new(timeout), None);
    for ticket in tickets {
        match ticket.wait_with(&mut patience)? {
            Some(Ok(success)) => each(success),
            Some(Err(error)) => {
                failure.get_or_insert(error);
            }
            None => return Err(TransportError::Timeout { operation: ticket.operation(), timeout }),
        }
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}

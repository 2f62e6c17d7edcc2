//! Operations one at a time: post, wait, and if that fails, end.
#![allow(unsafe_code)]

use std::time::Duration;

use rdma_qp::{ReceiveWorkRequest, WorkErrorClass, WorkResult, WorkSuccess};

use crate::core::{Core, Room, SendRequest, To, seldom};
use crate::ending::{AbortOnUnwind, without_unwinding};
use crate::lane::Lane;
use crate::patience::Patience;
use crate::ticket::{Ticket, Unsettled};
use crate::{CloseReason, Operation, TransportError, WorkId};

impl Core {
    /// Posts a request of the send queue, and waits for it, so long, or as long as operations of its kind may
    /// take.
    #[inline(always)]
    pub(crate) fn block_send<R: SendRequest>(
        &mut self,
        to: impl To,
        operation: Operation,
        request: R,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(to, timeout, Sent { operation, request })
    }

    /// As [`block_send`](Self::block_send), of a receive.
    #[inline(always)]
    pub(crate) fn block_receive(
        &mut self,
        to: impl To,
        _: Operation,
        request: ReceiveWorkRequest<'_, '_>,
        timeout: Option<Duration>,
    ) -> Result<WorkSuccess, TransportError> {
        self.block(to, timeout, request)
    }

    /// Posts one request, and returns when the device uses its memory no more.
    #[inline(always)]
    fn block<P: Posted>(
        &mut self,
        to: impl To,
        timeout: Option<Duration>,
        request: P,
    ) -> Result<WorkSuccess, TransportError> {
        let guard = AbortOnUnwind;
        let left = {
            let posted = match to.lane(self) {
                // SAFETY: SAFETY.md F22: its memory is borrowed by this call, which ends after the request.
                Ok(lane) => unsafe { request.post(self, lane, Room::Call(timeout)) },
                Err(error) => Err(error),
            };
            match posted {
                Ok(ticket) => match ticket.place().glance() {
                    Ok(success) => {
                        ticket.release();
                        guard.disarm();
                        return Ok(success);
                    }
                    Err(so_far) => Left::after(ticket, so_far, timeout),
                },
                Err(error) => seldom(move || Left::Refused(error)),
            }
        };
        let result = self.end_of(left);
        guard.disarm();
        Ok(result??)
    }

    /// Runs what posts several requests and [waits](wait_all) for them. Returns when the device uses the memory
    /// of none.
    ///
    /// # Errors
    /// The outer one if nothing was posted: then all is as it was, unless its time was over.
    pub(crate) fn block_all<T>(
        &mut self,
        run: impl for<'c> FnOnce(&'c Self) -> Result<Result<T, TransportError>, TransportError>,
    ) -> Result<T, TransportError> {
        without_unwinding(|| {
            let outcome = match run(self) {
                Ok(outcome) => outcome,
                // For want of room.
                Err(TransportError::Timeout { operation, timeout }) => {
                    let _ = self.end_now(CloseReason::Timeout { operation });
                    return Err(TransportError::Timeout { operation, timeout });
                }
                Err(error) => return Err(error),
            };
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

    /// If it is not over by now, the request is ended: its memory goes back to the caller.
    #[inline(never)]
    fn end_of(&mut self, left: Left) -> Result<WorkResult, TransportError> {
        let (id, operation, failure) = match left {
            Left::Nothing(result) => return Ok(result),
            Left::Refused(error) => {
                if error.may_be_posted() {
                    self.end_doubtful();
                } else if let TransportError::Timeout { .. } = error {
                    self.end_closed();
                }
                return Err(error);
            }
            Left::UnderWay { id, operation, failure } => (id, operation, failure),
        };
        let reason = match failure {
            TransportError::Timeout { .. } => CloseReason::Timeout { operation },
            _ => CloseReason::Poll,
        };
        match self.give_up(id, reason) {
            // It was done before the device was told to let go.
            Some(Ok(success)) => Ok(Ok(success)),
            Some(Err(work)) if work.class() != WorkErrorClass::Flushed => Ok(Err(work)),
            _ => Err(failure),
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

/// A request, as it is posted. No closure: what is called by reference is in memory.
trait Posted {
    /// # Safety
    /// As of [`Core::post`].
    unsafe fn post<'c>(
        self,
        core: &'c Core,
        lane: &'c Lane,
        room: Room,
    ) -> Result<Ticket<'c>, TransportError>;
}

struct Sent<R> {
    operation: Operation,
    request: R,
}

impl<R: SendRequest> Posted for Sent<R> {
    #[inline(always)]
    unsafe fn post<'c>(
        self,
        core: &'c Core,
        lane: &'c Lane,
        room: Room,
    ) -> Result<Ticket<'c>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { core.post(lane, self.operation, self.request.made_signaled(), room) }
    }
}

impl Posted for ReceiveWorkRequest<'_, '_> {
    #[inline(always)]
    unsafe fn post<'c>(
        self,
        core: &'c Core,
        lane: &'c Lane,
        room: Room,
    ) -> Result<Ticket<'c>, TransportError> {
        // SAFETY: SAFETY.md F22: the same contract.
        unsafe { core.post_receive(lane, self, room) }
    }
}

/// What is left of a request that was not done at a glance.
enum Left {
    Nothing(WorkResult),
    /// It was not posted, or nobody knows.
    Refused(TransportError),
    /// For it took too long, or the completion queue has failed.
    UnderWay {
        id: WorkId,
        operation: Operation,
        failure: TransportError,
    },
}

impl Left {
    #[inline(never)]
    fn after(ticket: Ticket<'_>, so_far: Unsettled, timeout: Option<Duration>) -> Self {
        match ticket.place().wait(so_far, timeout) {
            Ok(result) => Self::Nothing(result),
            Err(failure) => {
                let (id, operation) = ticket.keep();
                Self::UnderWay { id, operation, failure }
            }
        }
    }
}

/// Waits for all, also if one fails, and hands on their successes in order. The limit is for all.
///
/// # Errors
/// Of the first that failed; or that time ran out, and then some are under way.
pub(crate) fn wait_all<'c>(
    tickets: impl IntoIterator<Item = Ticket<'c>>,
    patience: &mut Patience,
    mut each: impl FnMut(WorkSuccess),
) -> Result<(), TransportError> {
    let mut failure = None;
    for ticket in tickets {
        match ticket.place().wait_with(patience)? {
            Some(Ok(success)) => each(success),
            Some(Err(error)) => {
                failure.get_or_insert(error);
            }
            None => {
                let (operation, timeout) = (ticket.place().operation(), patience.limit());
                return Err(TransportError::Timeout { operation, timeout });
            }
        }
    }
    failure.map_or(Ok(()), |error| Err(error.into()))
}

//! Posts requests to the queue pair of an entry.
#![allow(unsafe_code)]

use rdma_connect::{CloseReason, TransportError};
use rdma_qp::{CompletionQueue, PollSlot, PolledCompletions, WorkSuccess};

use super::ConnectionEntry;
use crate::buffer::held::Held;
use crate::buffer::held::sealed::Lease;
use crate::ledger::closed;
use crate::ledger::post::{self, PostFailure, RequestSpec};
use crate::ledger::slots::{Id, Side};
use crate::operation::kinds::Kind;

/// The state of a request after its post and one poll.
#[derive(Debug)]
pub(crate) enum Posting {
    /// The request has succeeded, and its memory is back. The word is the result of an atomic operation.
    Done(WorkSuccess, u64),
    /// The request and its memory are in its slot. It may have ended.
    InFlight(Id),
    /// Like `InFlight`, but [in doubt](ConnectionEntry::is_in_doubt). Nothing was polled.
    Doubtful(Id),
}

impl ConnectionEntry {
    /// Posts a request, and moves its memory into its slot. Also returns [`is_in_doubt`](Self::is_in_doubt).
    ///
    /// # Errors
    /// [`TransportError::Closed`] if the connection accepts no requests, [`TransportError::WouldBlock`] if the queue
    /// was created without slots, and [`PostFailure::NoSlot`] if no slot is free. Otherwise returns the reason why the
    /// post was refused. In each case, the memory stays in `memory`.
    #[inline]
    pub(crate) fn post<K: Kind>(
        &mut self,
        entry: usize,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
    ) -> Result<(Id, bool), PostFailure> {
        // SAFETY: the next statement moves the memory into its slot.
        let (id, is_in_doubt) = unsafe { self.post_from::<K>(entry, request, memory) }?;
        self.keep_posted::<K>(id, memory);
        Ok((id, is_in_doubt))
    }

    /// Like [`post`](Self::post), but then polls once. Also returns completions, for the caller to deliver.
    ///
    /// # Errors
    /// Same errors as [`post`](Self::post).
    #[inline(always)]
    pub(crate) fn post_and_poll<'p, K: Kind>(
        &mut self,
        entry: usize,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
        cq: &CompletionQueue,
        polled: &'p mut [PollSlot],
    ) -> Result<(Posting, Option<PolledCompletions<'p>>), PostFailure> {
        // SAFETY: the memory stays in `memory` until its completion was polled or it is moved into its slot, below. In
        // between, no code can panic.
        let (id, is_in_doubt) = unsafe { self.post_from::<K>(entry, request, memory) }?;
        if is_in_doubt {
            self.keep_posted::<K>(id, memory);
            return Ok((Posting::Doubtful(id), None));
        }
        // If the completion queue has failed, the wait for the outcome returns the error.
        let mut completions = cq.poll(polled).ok();
        // Usually the only completion, which then needs no delivery.
        if self.is_plain(Side::of(K::OPERATION))
            && let Some(completions) = &mut completions
            && let Some(success) = first_success(completions, id)
        {
            completions.next();
            let posting = Posting::Done(success, self.word(K::OPERATION, id));
            return Ok((posting, Some(completions.clone())));
        }
        self.keep_posted::<K>(id, memory);
        Ok((Posting::InFlight(id), completions))
    }

    /// Posts a request with the memory in `memory`. Also returns [`is_in_doubt`](Self::is_in_doubt).
    ///
    /// # Safety
    /// If this returns an ID, the memory is moved to the slot of the request, with [`keep_posted`](Self::keep_posted),
    /// unless its completion is polled first. No other code uses or drops the memory, or posts, in the meantime.
    #[inline(always)]
    unsafe fn post_from<K: Kind>(
        &mut self,
        entry: usize,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
    ) -> Result<(Id, bool), PostFailure> {
        let free = self.slots.next_id(entry, Side::of(K::OPERATION));
        let (Some(id), Some(qp), None) = (free, &self.qp, self.closed) else {
            return Err(self.refusal(Side::of(K::OPERATION)));
        };
        let words = self.words.as_ref();
        // SAFETY: SAFETY.md F28: by this function's contract, the memory of the request is in `memory` or in its slot.
        // It is taken from there only after the request has completed or the queue pair has been destroyed. Until then,
        // no one else has the memory or, if it is shared, no one writes it. The word of an atomic operation belongs to
        // its slot. A bound window keeps its region, and gives out no reference to its bytes, until it is unbound.
        let is_in_doubt = match unsafe { post::post::<K>(qp, request, memory, words, id) } {
            Ok(()) => false,
            // The provider refused without reporting whether it had posted the request. The slot keeps the memory until
            // the caller destroys the queue pair.
            Err(error) if error.posted() > 0 => {
                self.closed = Some(CloseReason::Doubtful { operation: K::OPERATION });
                true
            }
            Err(error) => {
                let error = post::refused(K::OPERATION, self.peer, error);
                return Err(PostFailure::Failed(error.into()));
            }
        };
        self.counters.posted += 1;
        Ok((id, is_in_doubt))
    }

    /// Moves the memory of a posted request into its slot.
    #[inline(always)]
    fn keep_posted<K: Kind>(&mut self, id: Id, memory: &mut Option<K::Memory>) {
        let held = match memory.take() {
            Some(memory) => memory.into_held(),
            None => Held::Nothing,
        };
        self.slots.fill(id, Side::of(K::OPERATION), K::OPERATION, held);
    }

    /// Returns why a queue accepts no request now.
    #[cold]
    fn refusal(&self, side: Side) -> PostFailure {
        match self.closed {
            Some(reason) => PostFailure::Failed(closed(reason, self.peer).into()),
            // The queue was created without slots.
            None if self.slots.has_none(side) => {
                PostFailure::Failed(TransportError::WouldBlock.into())
            }
            None => PostFailure::NoSlot,
        }
    }
}

/// Returns the first completion if it is that of this request and a success.
#[inline(always)]
pub(crate) fn first_success(completions: &PolledCompletions<'_>, id: Id) -> Option<WorkSuccess> {
    let first = completions.clone().next().filter(|first| Id(first.wr_id()) == id)?;
    first.result().ok()
}

//! Posts requests to a connection.

use rdma_connect::Operation;
use rdma_qp::WorkSuccess;

use super::Inner;
use crate::ledger::Table;
use crate::ledger::entry::ConnectionEntry;
use crate::ledger::entry::posting::Posting;
use crate::ledger::post::{PostFailure, RequestSpec};
use crate::ledger::slots::{Id, Side};
use crate::operation::kinds::Kind;
use crate::sync::MutexGuard;

impl Inner {
    /// Posts a request if a slot is free. If `has_queued` is set, a posted operation stops counting as a waiter, under
    /// the same lock as the post.
    ///
    /// # Errors
    /// If the request was not posted. Its memory stays in `memory`.
    #[inline]
    pub(crate) fn post<K: Kind>(
        &self,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
        has_queued: &mut bool,
    ) -> Result<Id, PostFailure> {
        let table = self.lock_to_post::<K>()?;
        self.post_under::<K>(table, request, memory, has_queued)
    }

    /// Like [`post`](Self::post), but then polls once. If the request has succeeded, its memory is still in `memory`.
    /// Otherwise returns its ID.
    ///
    /// # Errors
    /// Same errors as [`post`](Self::post).
    #[inline(always)]
    pub(crate) fn post_and_poll<K: Kind>(
        &self,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
        has_queued: &mut bool,
    ) -> Result<Result<(WorkSuccess, u64), Id>, PostFailure> {
        let table = self.lock_to_post::<K>()?;
        self.post_and_poll_under::<K>(table, request, memory, has_queued)
    }

    /// Like [`post`](Self::post), but only if the queue pair has this epoch.
    ///
    /// # Errors
    /// If the request was not posted. Its memory stays in `memory`.
    #[cfg(not(loom))]
    pub(crate) fn post_in_epoch<K: Kind>(
        &self,
        request: &RequestSpec,
        epoch: u32,
        memory: &mut Option<K::Memory>,
    ) -> Result<Id, PostFailure> {
        let mut table = self.ledger.lock();
        if table.at(self.entry).epoch != epoch {
            return Err(PostFailure::NoSlot);
        }
        self.post_under::<K>(table, request, memory, &mut false)
    }

    /// Like [`post`](Self::post), but only if the queue pair has this epoch and its send queue is empty, because this
    /// request must not wait for others. The operation must not count as a waiter. Checks once whether the request has
    /// already ended.
    ///
    /// # Errors
    /// If the request was not posted. Its memory stays in `memory`.
    pub(crate) fn post_alone<K: Kind>(
        &self,
        request: &RequestSpec,
        epoch: u32,
        memory: &mut Option<K::Memory>,
    ) -> Result<Result<(WorkSuccess, u64), Id>, PostFailure> {
        for is_last in [false, true] {
            let mut table = self.ledger.lock();
            let entry = table.at(self.entry);
            if entry.epoch != epoch {
                break;
            }
            if !entry.is_sending() {
                return self.post_and_poll_under::<K>(table, request, memory, &mut false);
            }
            drop(table);
            if !is_last {
                // After a poll, requests that have completed no longer count as outstanding.
                let _ = self.ledger.progress();
            }
        }
        Err(PostFailure::NoSlot)
    }

    /// Takes the lock for a post, unless the operation uses memory whose lease is over.
    #[inline(always)]
    fn lock_to_post<K: Kind>(&self) -> Result<MutexGuard<'_, Table>, PostFailure> {
        if K::OPERATION == Operation::Atomic {
            self.prepare_words().map_err(|error| PostFailure::Failed(error.into()))?;
        }
        let mut table = self.ledger.lock();
        if let Some(lease) = &self.lease {
            lease.check(table.at(self.entry), K::OPERATION)?;
        }
        Ok(table)
    }

    #[inline(always)]
    fn post_under<K: Kind>(
        &self,
        mut table: MutexGuard<'_, Table>,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
        has_queued: &mut bool,
    ) -> Result<Id, PostFailure> {
        let (id, is_in_doubt) = table.at(self.entry).post::<K>(self.entry, request, memory)?;
        self.note_posted(&mut table, Side::of(K::OPERATION), has_queued);
        self.ledger.unlock(table);
        if is_in_doubt {
            self.end_doubt();
        }
        Ok(id)
    }

    #[inline(always)]
    fn post_and_poll_under<K: Kind>(
        &self,
        mut table: MutexGuard<'_, Table>,
        request: &RequestSpec,
        memory: &mut Option<K::Memory>,
        has_queued: &mut bool,
    ) -> Result<Result<(WorkSuccess, u64), Id>, PostFailure> {
        let cq = self.ledger.cq();
        let posted = table.post_and_poll::<K>(cq, self.entry, request, memory)?;
        self.note_posted(&mut table, Side::of(K::OPERATION), has_queued);
        self.ledger.unlock(table);
        Ok(match posted {
            Posting::Done(success, word) => Ok((success, word)),
            Posting::InFlight(id) => Err(id),
            Posting::Doubtful(id) => {
                self.end_doubt();
                Err(id)
            }
        })
    }

    /// Stops counting a posted operation as a waiter.
    #[inline(always)]
    fn note_posted(&self, table: &mut Table, side: Side, has_queued: &mut bool) {
        if *has_queued {
            *has_queued = false;
            table.note_waiting(self.entry, side, false);
        }
    }

    /// Ends the connection if a request may or may not have been posted. If the queue pair cannot be destroyed now, its
    /// operations end when it is destroyed.
    #[cold]
    fn end_doubt(&self) {
        let closed = self.ledger.lock().at(self.entry).closed();
        if let Some(reason) = closed
            && let Err(error) =
                self.ledger.close_if(self.entry, reason, ConnectionEntry::is_in_doubt)
        {
            tracing::error!(%error, "the queue pair of a request in doubt could not be destroyed");
        }
    }
}

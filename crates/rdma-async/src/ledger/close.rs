//! Closes connections, which ends their requests.

use std::sync::Arc;

use rdma_connect::CloseReason;
use rdma_qp::Error;

use super::Ledger;
use super::after::After;
use super::entry::ConnectionEntry;
use super::slots::Side;

impl Ledger {
    /// Marks the completion queue as failed, and ends all its connections.
    #[cold]
    pub(crate) fn fail(&self) {
        self.lock().has_failed = true;
        self.close_all(CloseReason::Poll);
    }

    pub(crate) fn close_all(&self, reason: CloseReason) {
        self.close_those_of(None, reason);
    }

    /// Ends the connections of a port, or all connections if `port` is `None`.
    pub(crate) fn close_those_of(&self, port: Option<u8>, reason: CloseReason) {
        let entries = self.lock().entries.len();
        for entry in 0..entries {
            if !self.lock().at(entry).note_outage(port) {
                continue;
            }
            if let Err(error) = self.close_if(entry, reason, |entry| entry.is_of(port)) {
                tracing::error!(%error, "a queue pair could not be destroyed: its memory stays in use");
            }
        }
    }

    /// Ends a connection by destroying its queue pair, which ends all its operations. Requests that have already
    /// completed keep their result.
    ///
    /// # Errors
    /// If the provider refuses to destroy the queue pair. The operations then end as they complete, or when a later
    /// call destroys the queue pair.
    pub(crate) fn close(&self, entry: usize, reason: CloseReason) -> Result<(), Error> {
        self.lock().at(entry).forbid_renewal();
        self.close_if(entry, reason, |_| true)
    }

    /// Like [`close`](Self::close), but only if `is_so` returns true for the entry. The check and the removal of the
    /// queue pair happen under the same lock.
    ///
    /// # Errors
    /// If the provider refuses to destroy the queue pair.
    pub(crate) fn close_if(
        &self,
        entry: usize,
        reason: CloseReason,
        is_so: impl FnOnce(&ConnectionEntry) -> bool,
    ) -> Result<(), Error> {
        // A failed completion queue has no completions left to poll.
        let _ = self.drain();
        let taken = {
            let mut table = self.lock();
            let entry = table.at(entry);
            if is_so(entry) { entry.take(reason) } else { None }
        };
        let Some(qp) = taken else { return Ok(()) };
        if reason.is_of_peer() {
            // Requests that the peer executed before it closed have succeeded, but their completions may not have been
            // polled yet. Destroying the queue pair would drop these completions, so the queue pair is moved to error
            // first. If the move fails, the queue pair is destroyed anyway.
            let _ = qp.to_error();
            let _ = self.drain();
        }
        // Destroying takes time, so the lock is not held and other connections continue.
        let closed = qp.close();
        // Polls the completions of the destroyed queue pair that the provider left in the completion queue, and any
        // that arrived in the meantime.
        let _ = self.drain();
        let mut table = self.lock();
        let afters = match closed {
            Ok(()) => {
                if table.at(entry).is_draining() {
                    table.note_waiting(entry, Side::Send, false);
                }
                let (afters, reported) = table.at(entry).end();
                reported.into_iter().for_each(|solicited| table.afters.note_reported(solicited));
                afters
            }
            Err((qp, error)) => {
                table.at(entry).put_back(qp);
                let waiters = Arc::clone(table.at(entry).waiters());
                drop(table);
                After::Close(waiters).run();
                return Err(error);
            }
        };
        // Frees the entry if the connection's last owner was dropped in the meantime.
        let left = table.at(entry).is_abandoned().then(|| table.vacate(entry));
        drop(table);
        afters.into_iter().for_each(After::run);
        drop(left);
        Ok(())
    }

    /// Ends a connection whose last owner was dropped, and frees its entry.
    pub(crate) fn leave(&self, entry: usize) {
        let closed = self.close(entry, CloseReason::Destroyed);
        let mut table = self.lock();
        let count = std::mem::take(&mut table.unmatched);
        // If the queue pair has yet to be destroyed, by another thread or in a later call, the entry is freed then.
        let left = (!table.at(entry).abandon()).then(|| table.vacate(entry));
        drop(table);
        drop(left);
        if count > 0 {
            tracing::debug!(count, "completions matched no request");
        }
        if let Err(error) = closed {
            tracing::error!(%error, "a queue pair could not be destroyed: its memory stays in use");
        }
    }
}

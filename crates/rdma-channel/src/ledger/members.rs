//! Peers that come and go while the channels are there.

use rdma_connect::{CloseReason, TransportError};
use rdma_qp::QueuePair;

use super::queues::{Connection, RequestSlot};
use super::{Ledger, closed};

impl Ledger {
    /// The places of the peers that are there.
    pub(crate) fn members(&self) -> impl Iterator<Item = usize> {
        let there =
            |(peer, connection): (usize, &Connection)| (!connection.is_absent()).then_some(peer);
        self.queues.iter().enumerate().filter_map(there)
    }

    /// The lowest place without a peer.
    pub(crate) fn lowest_absent(&self) -> Option<usize> {
        self.queues.lowest_absent()
    }

    /// A connection in a place without a peer, by a queue pair whose completions come to the completion queue of these.
    pub(crate) fn add(&mut self, peer: usize, qp: QueuePair) {
        self.queues.put_new(peer, qp);
        self.told.forget(peer);
        self.checked();
    }

    /// Ends a connection, with all requests that it has, and frees its place.
    ///
    /// # Errors
    /// If there is no such peer, or its queue pair could not be destroyed: then it stays closed in its place, and what is in
    /// flight in its slots.
    pub(crate) fn remove(&mut self, peer: usize) -> Result<(), TransportError> {
        let connection = self.connection(peer)?;
        if connection.is_absent() {
            return Err(closed(connection));
        }
        self.check_process()?;
        connection.close(CloseReason::Destroyed);
        self.flush();
        let destroyed = match self.queues.take_qp(peer).map(QueuePair::close) {
            None | Some(Ok(())) => Ok(()),
            Some(Err((qp, error))) => {
                self.queues.put_back(peer, qp);
                Err(error)
            }
        };
        // Nobody asks any more: who had a handle has borrowed the channels.
        let is_over = |slot: &&RequestSlot| {
            let state = slot.state();
            state.is_occupied() && (destroyed.is_ok() || !state.is_in_flight())
        };
        for slot in self.all_of(self.connection(peer)?).filter(is_over) {
            if slot.state().is_in_flight() && !slot.state().is_marker() {
                self.counts.fail();
            }
            self.release(slot);
        }
        destroyed?;
        self.empty_completion_queue();
        self.queues.vacate(peer);
        Ok(())
    }

    /// Takes what a queue pair has left there that is destroyed, so that there are as many free places for the next
    /// one as it may need. As many completions as there can be: a device may never stop making them up.
    fn empty_completion_queue(&self) {
        for _ in 0..self.cq.min_capacity() {
            // If it fails, all connections are closed.
            if !self.takes_any().unwrap_or(false) {
                return;
            }
        }
    }
}

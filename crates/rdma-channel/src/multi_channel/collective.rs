//! One operation for each of several peers.

use std::time::Duration;

use rdma_connect::{CloseReason, Operation, OperationError, TransportError, WorkId};
use rdma_qp::{SendWorkRequest, WorkSuccess};

use super::MultiChannel;
use super::to_peer::{
    PeerReadWorkRequest, PeerReceiveWorkRequest, PeerSendWorkRequest, PeerWriteWorkRequest, ToPeer,
};
use crate::deadline::Deadline;
use crate::ledger::post::PostFailure;
use crate::ledger::{Ledger, closed};
use crate::lend::Call;
use crate::request::Post;

impl Ledger {
    /// Collects the requests. Fails unless each request's peer has an open connection.
    ///
    /// The iterator is drained before the first post. So an invalid peer prevents all posts, and no code of the caller
    /// runs while requests are in flight.
    pub(crate) fn gathered<W>(
        &self,
        requests: impl IntoIterator<Item = ToPeer<W>>,
    ) -> Result<Vec<ToPeer<W>>, TransportError> {
        let requests: Vec<_> = requests.into_iter().collect();
        for request in &requests {
            let connection = self.connection(request.peer)?;
            if connection.closed().is_some() {
                return Err(closed(connection));
            }
        }
        Ok(requests)
    }

    /// Posts all requests. Returns when the device no longer uses the memory of any request.
    fn block_collective<'data, W: Post<'data>>(
        &mut self,
        requests: impl IntoIterator<Item = ToPeer<W>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let (requests, timeout) = (self.gathered(requests)?, self.limits.of(W::OPERATION));
        let post_all = |call: Call<'_, 'data>| {
            let (ledger, mut refused) = (call.ledger(), None);
            let post = |ToPeer { peer, wr }: ToPeer<W>| {
                let to = ledger.connection(peer).map_err(|error| ledger.refuse(error, None));
                match to.and_then(|to| call.post(to, wr)) {
                    Ok(ticket) => Some(ticket.keep().0),
                    Err(error) => {
                        refused = Some(error.why());
                        None
                    }
                }
            };
            // Collects the IDs into the memory that was allocated for the requests.
            (requests.into_iter().map_while(post).collect(), refused)
        };
        self.block_each(post_all, |ledger, ids, refused| ledger.end_each(ids, refused, timeout))
    }

    /// Waits for the requests of a call for at most `timeout`. After a refused post, the drain limit applies instead if
    /// it is shorter. Then ends the requests that are still in flight, and closes only their connections. Returns all
    /// successes, or the error of the call.
    pub(super) fn end_each(
        &mut self,
        ids: &[WorkId],
        refused: Option<PostFailure>,
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let limit = match refused {
            Some(_) => timeout.min(self.limits.drain),
            None => timeout,
        };
        let awaited = self.await_each(ids, limit).err();
        self.settle_each(ids, refused.as_ref().and_then(|refusal| refusal.maybe_posted));
        let outcomes = self.outcomes(ids, timeout);
        if self.has_unreleased() {
            // Collects the flushed requests of other calls on the connections that were closed.
            self.collect(0);
        }
        match awaited.or(refused.map(|refusal| refusal.error)) {
            Some(error) => Err(error),
            None => outcomes,
        }
    }

    /// Waits until all requests have completed, or the time limit expires.
    fn await_each(&self, ids: &[WorkId], limit: Duration) -> Result<(), TransportError> {
        let mut deadline = Deadline::new(limit);
        for id in ids {
            while let Some(slot) = self.in_flight(id.wr_id()) {
                let operation = slot.operation.get();
                if !self.take_completions()? && self.pause(&mut deadline, operation)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Ends the requests that are still in flight. If the device may have accepted the refused request, ends that one,
    /// too.
    fn settle_each(&mut self, ids: &[WorkId], maybe_posted: Option<WorkId>) {
        let mut late = ids.iter().chain(&maybe_posted).filter_map(|id| self.in_flight(id.wr_id()));
        if late.next().is_none() {
            return;
        }
        self.settle(|ledger| {
            let close = |id: WorkId, reason: fn(Operation) -> CloseReason| {
                if let Some(slot) = ledger.in_flight(id.wr_id()) {
                    ledger.close_connection_of(id, reason(slot.operation.get()));
                }
            };
            maybe_posted
                .iter()
                .for_each(|&id| close(id, |operation| CloseReason::Doubtful { operation }));
            ids.iter().for_each(|&id| close(id, |operation| CloseReason::Timeout { operation }));
        });
    }

    /// Returns the results in order, and frees the slots.
    fn outcomes(
        &self,
        ids: &[WorkId],
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let (mut successes, mut errors) = (Vec::with_capacity(ids.len()), Vec::new());
        self.query_causes();
        for &id in ids {
            let Some(slot) = self.queues.slot_of(id.wr_id()) else { continue };
            let operation = slot.operation.get();
            let peer = self.peer_of(slot);
            let result = slot.report().ok_or(TransportError::Lost { operation, peer });
            if let Ok(Ok(success)) = result {
                successes.push(success);
            } else {
                let error = match self.failure(slot, result) {
                    None => TransportError::Lost { operation, peer },
                    Some(TransportError::Closed {
                        reason: CloseReason::Timeout { .. }, ..
                    }) => TransportError::Timeout { operation, timeout, peer },
                    Some(error) => error,
                };
                let peer = Some(slot.connection as usize);
                errors.push(OperationError::new(operation, id, peer, error));
            }
            self.release(slot);
        }
        if errors.is_empty() { Ok(successes) } else { Err(TransportError::Collective(errors)) }
    }
}

impl MultiChannel {
    /// Sends one message per request, each to the peer of its request, and waits until all have completed. Returns the
    /// successes in the order of the requests.
    ///
    /// The iterator is drained before the first post. There can be several requests for one peer, up to the capacity of
    /// its queue. The call waits for all requests, even if one fails, for at most the time limit of this kind of
    /// operation. Then the connections of unfinished requests are closed. The others stay open.
    ///
    /// The call allocates one list for the requests and one for the results, and nothing per request.
    ///
    /// # Errors
    /// - [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] ([`closed`](Self::closed) identifies the peer),
    ///   before anything is posted;
    /// - the error of a failed post. The call waits for the requests that were posted before, like a scope does when it
    ///   ends, for at most the [drain limit](crate::ChannelBuilder::drain_timeout). Then the connections of requests
    ///   that are still in flight are closed;
    /// - [`TransportError::Collective`] with each operation that failed or timed out, and its peer.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{PeerSendWorkRequest, prelude::*};
    /// # use rdma_qp::ReceiveWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let prepared = pd.create_multi_channel().num_channels(2).build()?;
    /// # let peers = [pd.create_channel().build()?, pd.create_channel().build()?];
    /// # let ends = prepared.endpoints();
    /// # let mut channels = prepared.handshake(peers.each_ref().map(|peer| peer.endpoint()))?;
    /// # let threads = peers.into_iter().zip(ends).map(|(peer, end)| std::thread::spawn(move || {
    /// #     let mut peer = peer.handshake(end)?;
    /// #     let number = peer.receive(ReceiveWorkRequest::only_immediate())?.immediate_data();
    /// #     Ok::<_, rdma_channel::TransportError>(number)
    /// # }));
    /// # let threads: Vec<_> = threads.collect();
    ///
    /// let numbers = [17, 4];
    /// let requests = numbers.iter().enumerate();
    /// channels.scatter_send(
    ///     requests.map(|(peer, &number)| PeerSendWorkRequest::only_immediate(peer, number)),
    /// )?;
    /// # let received = threads.into_iter().map(|thread| thread.join().unwrap().unwrap().unwrap());
    /// # assert_eq!(received.collect::<Vec<_>>(), numbers);
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn scatter_send<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerSendWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_collective(wrs)
    }

    /// Performs one write per request, each to the memory of that request's peer.
    ///
    /// See [`scatter_send`](Self::scatter_send) for details.
    ///
    /// # Errors
    /// Same errors as [`scatter_send`](Self::scatter_send).
    pub fn scatter_write<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerWriteWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_collective(wrs)
    }

    /// Receives one message per request, each from that request's peer.
    ///
    /// See [`scatter_send`](Self::scatter_send) for details.
    ///
    /// # Errors
    /// Same errors as [`scatter_send`](Self::scatter_send).
    pub fn gather_receive<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerReceiveWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_collective(wrs)
    }

    /// Performs one read per request, each of the memory of that request's peer.
    ///
    /// See [`scatter_send`](Self::scatter_send) for details.
    ///
    /// # Errors
    /// Same errors as [`scatter_send`](Self::scatter_send).
    pub fn gather_read<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerReadWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_collective(wrs)
    }

    /// Sends one message to each of these peers.
    ///
    /// See [`scatter_send`](Self::scatter_send) for details.
    ///
    /// # Errors
    /// Same errors as [`scatter_send`](Self::scatter_send).
    pub fn multicast_send(
        &mut self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let wrs = peers.into_iter().map(|peer| PeerSendWorkRequest::from_wr(peer, wr));
        self.ledger.block_collective(wrs)
    }
}

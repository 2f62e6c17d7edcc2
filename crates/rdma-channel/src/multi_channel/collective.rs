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
    /// The requests, if there is a peer for each, which takes requests.
    ///
    /// All are taken from the iterator before the first is posted: so nothing is posted in vain, and no code of the
    /// caller's runs while the device has some.
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

    /// Posts all requests, and returns when the device uses the memory of none.
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
            // In the memory of the requests.
            (requests.into_iter().map_while(post).collect(), refused)
        };
        self.block_each(post_all, |ledger, ids, refused| ledger.end_each(ids, refused, timeout))
    }

    /// Waits for requests of a call so long, ends those that are not done then, and says how all have ended. Only their
    /// own connections are closed.
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
        self.settle_each(ids, refused.as_ref().and_then(|refusal| refusal.perhaps));
        let outcomes = self.outcomes(ids, timeout);
        if self.has_unreleased() {
            // Others of the connections that were closed.
            self.collect(0);
        }
        match awaited.or(refused.map(|refusal| refusal.error)) {
            Some(error) => Err(error),
            None => outcomes,
        }
    }

    /// Waits until all are done, or the time is over.
    fn await_each(&self, ids: &[WorkId], limit: Duration) -> Result<(), TransportError> {
        let mut deadline = Deadline::new(limit);
        for id in ids {
            while let Some(slot) = self.in_flight(id.wr_id()) {
                let operation = slot.operation.get();
                if self.take_completions()? == 0 && self.pause(&mut deadline, operation)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Ends those that are not done, and the one that was refused and may be posted all the same.
    fn settle_each(&mut self, ids: &[WorkId], perhaps: Option<WorkId>) {
        let mut late = ids.iter().chain(&perhaps).filter_map(|id| self.in_flight(id.wr_id()));
        if late.next().is_none() {
            return;
        }
        self.settle(|ledger| {
            let close = |id: WorkId, reason: fn(Operation) -> CloseReason| {
                if let Some(slot) = ledger.in_flight(id.wr_id()) {
                    ledger.close_connection_of(id, reason(slot.operation.get()));
                }
            };
            perhaps
                .iter()
                .for_each(|&id| close(id, |operation| CloseReason::Doubtful { operation }));
            ids.iter().for_each(|&id| close(id, |operation| CloseReason::Timeout { operation }));
        });
    }

    /// How they ended, in order; then their slots are free.
    fn outcomes(
        &self,
        ids: &[WorkId],
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let (mut successes, mut errors) = (Vec::with_capacity(ids.len()), Vec::new());
        self.ask_for_causes();
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
    /// Sends a message for each request, each to its peer, and waits until all are over. Returns how they ended, in
    /// the order of the requests.
    ///
    /// All requests are taken from the iterator before the first is posted. There can be several for one peer, as
    /// many as its queue holds. All are waited for, also if one fails, for no longer than one operation of the kind
    /// may take: then the connections are closed whose requests are not done, and the others stay as they are.
    ///
    /// The call allocates the list of the requests and that of the results, and nothing for each.
    ///
    /// # Errors
    /// - [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] ([`closed`](Self::closed) tells which peer), before
    ///   anything is posted;
    /// - that of a post: the requests before it are waited for as when a scope ends, for no longer than the
    ///   [drain limit](crate::ChannelBuilder::drain_timeout), and their connections closed if that is not enough;
    /// - [`TransportError::Collective`] with each operation that failed, or was not done in time, and its peer.
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

    /// Writes for each request into memory of its peer.
    ///
    /// See [`scatter_send`](Self::scatter_send) for the rest.
    ///
    /// # Errors
    /// Those of [`scatter_send`](Self::scatter_send).
    pub fn scatter_write<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerWriteWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_collective(wrs)
    }

    /// Takes one message for each request, each of its peer.
    ///
    /// See [`scatter_send`](Self::scatter_send) for the rest.
    ///
    /// # Errors
    /// Those of [`scatter_send`](Self::scatter_send).
    pub fn gather_receive<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerReceiveWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_collective(wrs)
    }

    /// Reads for each request memory of its peer.
    ///
    /// See [`scatter_send`](Self::scatter_send) for the rest.
    ///
    /// # Errors
    /// Those of [`scatter_send`](Self::scatter_send).
    pub fn gather_read<'wr, 'data: 'wr>(
        &mut self,
        wrs: impl IntoIterator<Item = PeerReadWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_collective(wrs)
    }

    /// Sends one message to each of these peers.
    ///
    /// See [`scatter_send`](Self::scatter_send) for the rest.
    ///
    /// # Errors
    /// Those of [`scatter_send`](Self::scatter_send).
    pub fn multicast_send(
        &mut self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let wrs = peers.into_iter().map(|peer| PeerSendWorkRequest::from_wr(peer, wr));
        self.ledger.block_collective(wrs)
    }
}

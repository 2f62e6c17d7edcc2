//! Several requests for several peers, with one doorbell for each peer.

use std::time::Duration;

use rdma_connect::TransportError;
use rdma_qp::WorkSuccess;

use super::MultiChannel;
use super::to_peer::ToPeer;
use crate::deadline::BatchDeadline;
use crate::ledger::Ledger;
use crate::ledger::post::{BatchNotPosted, PostFailure};
use crate::ledger::queues::InBatch;
use crate::ledger::ticket::Ticket;
use crate::lend::Call;
use crate::request::BatchRequest;
use crate::scope::Scope;
use crate::scope::pending_work::{PendingWork, ScopedPendingWork};

/// The requests for one peer, with their positions in the batch.
struct Group<'wr, 'data> {
    peer: usize,
    requests: Vec<BatchRequest<'wr, 'data>>,
    places: Vec<usize>,
}

impl Ledger {
    /// Groups the requests by peer, in the order of each peer's first request. Fails unless each request's peer has an
    /// open connection.
    fn grouped<'wr, 'data>(
        &self,
        requests: impl IntoIterator<Item = ToPeer<BatchRequest<'wr, 'data>>>,
    ) -> Result<Vec<Group<'wr, 'data>>, TransportError> {
        let (mut groups, mut group_of) = (Vec::new(), vec![None; self.queues.len()]);
        for (place, ToPeer { peer, wr }) in self.gathered(requests)?.into_iter().enumerate() {
            let group = *group_of[peer].get_or_insert_with(|| {
                groups.push(Group { peer, requests: Vec::new(), places: Vec::new() });
                groups.len() - 1
            });
            groups[group].requests.push(wr);
            groups[group].places.push(place);
        }
        Ok(groups)
    }
}

/// Merges the results of the groups into the order of the batch.
fn in_order<T>(parts: impl IntoIterator<Item = (Vec<usize>, Vec<T>)>) -> Vec<T> {
    let mut all: Vec<(usize, T)> =
        parts.into_iter().flat_map(|(places, part)| places.into_iter().zip(part)).collect();
    all.sort_unstable_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, one)| one).collect()
}

impl MultiChannel {
    /// Posts requests with one doorbell per peer, and waits until all have completed. Returns the successes in the
    /// order of the requests.
    ///
    /// Requests for one peer complete in order. An unsignaled request completes together with the next signaled one for
    /// its peer. The last request for each peer is always signaled. Of the time limits that apply to the operations in
    /// the batch, the longest applies to the whole batch. The call allocates memory.
    ///
    /// # Errors
    /// - [`TransportError::NoSuchPeer`] or [`TransportError::Closed`], before anything is posted;
    /// - the error of a failed post, for example [`TransportError::BatchTooLarge`]. The call waits for the requests
    ///   that were posted before, like a scope does when it ends;
    /// - [`TransportError::Collective`] with each operation that failed or timed out, and its peer.
    ///
    /// Connections whose operations failed or timed out are closed. The others stay open.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{PeerWriteWorkRequest, PeerRemoteMemoryRegion, prelude::*};
    /// # use rdma_mem::AccessFlags;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let prepared = pd.create_multi_channel().num_channels(2).build()?;
    /// # let endpoints = prepared.endpoints();
    /// # let mut channels = prepared.handshake(endpoints)?; // each to itself
    /// let access = AccessFlags::new().with_local_write().with_remote_write();
    /// let board = pd.allocate_shared_region(16, access)?;
    /// let mut memory = pd.allocate_region(16)?;
    /// memory.fill(3);
    /// let (head, body) = memory.as_slice().split_at(4);
    /// let (head, body) = ([head.gather_element()], [body.gather_element()]);
    /// let at = |peer, offset| {
    ///     PeerRemoteMemoryRegion::new(peer, board.remote().sub_region(offset).expect("within"))
    /// };
    /// let results = channels.batch([
    ///     PeerWriteWorkRequest::new(&body, at(0, 4)).into(),
    ///     PeerWriteWorkRequest::new(&head, at(1, 0)).into(),
    /// ])?;
    /// assert_eq!(results.len(), 2);
    /// # let mut bytes = [0; 16];
    /// # board.read(0, &mut bytes).unwrap();
    /// # assert_eq!(bytes, [3; 16]);
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn batch<'wr, 'data: 'wr>(
        &mut self,
        requests: impl IntoIterator<Item = ToPeer<BatchRequest<'wr, 'data>>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let groups = self.ledger.grouped(requests)?;
        let requests = groups.iter().flat_map(|group| &group.requests);
        let timeout = self.ledger.limits.longest(requests.map(InBatch::operation));
        self.ledger.block_groups(groups, timeout)
    }
}

impl Ledger {
    /// Posts each peer's requests with one doorbell. Returns when the device no longer uses the memory of any request.
    fn block_groups<'wr, 'data: 'wr>(
        &mut self,
        mut groups: Vec<Group<'wr, 'data>>,
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let post_all = |call: Call<'_, 'data>| {
            let (ledger, mut deadline) = (call.ledger(), BatchDeadline::new(Some(timeout)));
            let mut ids = Vec::new();
            for Group { peer, requests, .. } in &mut groups {
                let mut slots = vec![ledger.dead_slot(); requests.len()];
                let posted = ledger
                    .connection(*peer)
                    .map_err(BatchNotPosted::from)
                    .and_then(|to| call.post_batch(to, requests, &mut slots, &mut deadline));
                if let Err(BatchNotPosted { posted, .. }) = &posted {
                    slots.truncate(*posted);
                }
                ids.extend(slots.iter().map(|slot| Ticket::new(ledger, slot).keep().0));
                if let Err(BatchNotPosted { error, .. }) = posted {
                    return (ids, Some(PostFailure { error, maybe_posted: None }));
                }
            }
            (ids, None)
        };
        let successes = self
            .block_each(post_all, |ledger, ids, refused| ledger.end_each(ids, refused, timeout))?;
        let mut successes = successes.into_iter();
        let parts = groups.into_iter().map(|Group { places, .. }| {
            let part = successes.by_ref().take(places.len()).collect();
            (places, part)
        });
        Ok(in_order(parts.collect::<Vec<_>>()))
    }
}

impl<'scope> Scope<'scope, '_, MultiChannel> {
    /// Posts requests with one doorbell per peer. Waits until all fit into the queues. The handles are in the order of
    /// the requests. The call allocates memory.
    ///
    /// An unsignaled request completes together with the next signaled one for its peer. The last request for each peer
    /// is always signaled.
    ///
    /// # Errors
    /// [`TransportError::NoSuchPeer`] or [`TransportError::Closed`] is returned before anything is posted. If a post
    /// fails, for example with [`TransportError::BatchTooLarge`], the requests before it are in flight, and the scope
    /// waits for them.
    pub fn post_batch<'wr, 'data: 'scope + 'wr>(
        &self,
        requests: impl IntoIterator<Item = ToPeer<BatchRequest<'wr, 'data>>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        let mut parts = Vec::new();
        for Group { peer, requests, places } in self.only.ledger().grouped(requests)? {
            match self.to(peer).and_then(|peer| peer.post_list(requests)) {
                Ok(handles) => parts.push((places, handles)),
                Err(error) => {
                    in_order(parts).into_iter().for_each(PendingWork::disown);
                    return Err(error);
                }
            }
        }
        Ok(in_order(parts))
    }
}

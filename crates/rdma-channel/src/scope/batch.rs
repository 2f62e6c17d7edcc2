//! Several requests of a scope, with one doorbell.

use std::array;

use rdma_connect::TransportError;
use rdma_qp::ReceiveWorkRequest;

use super::peer::ScopedPeer;
use super::pending_work::{PendingWork, ScopedPendingWork};
use crate::deadline::BatchDeadline;
use crate::ledger::queues::{InBatch, RequestSlot};
use crate::ledger::ticket::Ticket;
use crate::request::BatchRequest;

impl<'scope> ScopedPeer<'scope> {
    /// Posts requests with one doorbell. Waits until all fit into the queue.
    ///
    /// An unsignaled request completes together with the next signaled one. The last request is always signaled.
    ///
    /// # Errors
    /// The batch was not posted, or only a part of it was. The scope waits for that part.
    /// [`TransportError::BatchTooLarge`] if the queue cannot hold the batch.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_batch<'data: 'scope, const N: usize>(
        &self,
        requests: [BatchRequest<'_, 'data>; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        self.post_array(requests)
    }

    /// Like [`post_batch`](Self::post_batch), for a number of requests that is known only at run time. The call
    /// allocates memory.
    ///
    /// # Errors
    /// Same errors as [`post_batch`](Self::post_batch).
    pub fn post_batch_of<'wr, 'data: 'scope + 'wr>(
        &self,
        requests: impl IntoIterator<Item = BatchRequest<'wr, 'data>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_list(requests.into_iter().collect())
    }

    /// Posts receives with one doorbell. If the queue is full, behaves like [`post_receive`](Self::post_receive).
    ///
    /// # Errors
    /// Same errors as [`post_batch`](Self::post_batch).
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_receive_batch<'data: 'scope, const N: usize>(
        &self,
        receives: [ReceiveWorkRequest<'_, 'data>; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        self.post_array(receives.map(|receive| receive.with_id(0)))
    }

    #[inline(always)]
    fn post_array<'data: 'scope, I: InBatch<'data>, const N: usize>(
        &self,
        mut items: [I; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        let mut slots = [self.ledger().dead_slot(); N];
        self.post_into(&mut items, &mut slots)?;
        Ok(array::from_fn(|place| PendingWork::new(Ticket::new(self.ledger(), slots[place]))))
    }

    pub(crate) fn post_list<'data: 'scope, I: InBatch<'data>>(
        &self,
        mut items: Vec<I>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        let mut slots = vec![self.ledger().dead_slot(); items.len()];
        self.post_into(&mut items, &mut slots)?;
        let tickets = slots.into_iter().map(|slot| Ticket::new(self.ledger(), slot));
        Ok(tickets.map(PendingWork::new).collect())
    }

    /// Posts all requests, and stores their slots in `slots`. If only some were posted, the scope waits for those.
    #[inline(always)]
    fn post_into<'data: 'scope, I: InBatch<'data>>(
        &self,
        items: &mut [I],
        slots: &mut [&'scope RequestSlot],
    ) -> Result<(), TransportError> {
        let (ledger, mut deadline) = (self.ledger(), BatchDeadline::new(None));
        ledger
            .post_batch(self.connection(), items, slots, &mut deadline, self.kept())
            .map(drop)
            .map_err(|refused| ledger.disown_posted(refused, slots))
    }
}

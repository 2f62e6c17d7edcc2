//! Several requests of a scope, with one doorbell.

use std::{array, fmt};

use rdma_connect::TransportError;
use rdma_mem::RemoteMemoryRegion;
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

use super::in_flight::InFlight;
use super::peer::ScopedPeer;
use super::pending_work::{PendingWork, ScopedPendingWork};
use super::rent::sealed::{Gathered as _, Scattered as _};
use super::rent::{Rent, RentMut};
use crate::channel::batch::BatchRefused;
use crate::deadline::BatchDeadline;
use crate::ledger::Ledger;
use crate::ledger::post::BatchNotPosted;
use crate::ledger::queues::{InBatch, Kept};
use crate::ledger::ticket::Ticket;
use crate::request::{Request, queued, queued_list};

/// A batch that was not posted, or not wholly, with its memory.
#[non_exhaustive]
pub struct RefusedBatch<'scope, B> {
    /// What is in flight, or may be: the first ones.
    pub posted: Vec<InFlight<'scope, B>>,
    /// The memory of the others.
    pub refused: Vec<B>,
    /// Why they were not posted.
    pub error: TransportError,
}

impl<'scope, B> RefusedBatch<'scope, B> {
    pub(crate) fn new<const N: usize>(refused: BatchRefused<'scope, N>, bufs: [B; N]) -> Self {
        let BatchRefused { error, tickets } = refused;
        let mut batch = Self { posted: Vec::new(), refused: Vec::new(), error };
        for (ticket, buf) in tickets.into_iter().zip(bufs) {
            match ticket {
                Some(ticket) => batch.posted.push(InFlight::new(ticket, buf)),
                None => batch.refused.push(buf),
            }
        }
        batch
    }
}

impl<B> fmt::Debug for RefusedBatch<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedBatch")
            .field("posted", &self.posted.len())
            .field("refused", &self.refused.len())
            .field("error", &self.error)
            .finish()
    }
}

type Rented<'scope, B, const N: usize> = Result<[InFlight<'scope, B>; N], RefusedBatch<'scope, B>>;

impl<'scope> ScopedPeer<'scope> {
    /// Posts requests with one doorbell; waits until all fit.
    ///
    /// Unsignaled ones are done with the next signaled one; the last one is made signaled.
    ///
    /// # Errors
    /// If it was not posted. If that is known of a part only, the scope ends what was posted.
    /// [`TransportError::BatchTooLarge`] if the queue does not hold so many.
    #[inline]
    pub fn post_batch<'data: 'scope, const N: usize>(
        &self,
        mut requests: [Request<'_, 'data>; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        Ok(self.post_array(&mut requests, self.kept(), PendingWork::new)?)
    }

    /// Posts as many requests as there are with one doorbell: [`post_batch`](Self::post_batch) where their number is known
    /// at run time. It allocates.
    ///
    /// # Errors
    /// Those of [`post_batch`](Self::post_batch).
    pub fn post_batch_of<'wr, 'data: 'scope + 'wr>(
        &self,
        requests: impl IntoIterator<Item = Request<'wr, 'data>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        let mut requests: Vec<_> = requests.into_iter().collect();
        self.post_list(&mut requests)
    }

    /// Posts receives with one doorbell. A full queue is as for [`post_receive`](Self::post_receive).
    ///
    /// # Errors
    /// Those of [`post_batch`](Self::post_batch).
    #[inline]
    pub fn post_receive_batch<'data: 'scope, const N: usize>(
        &self,
        receives: [ReceiveWorkRequest<'_, 'data>; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        Ok(self.post_array(&mut queued(receives), self.kept(), PendingWork::new)?)
    }

    /// Posts as many receives as there are with one doorbell. A full queue is as for
    /// [`post_receive`](Self::post_receive). It allocates.
    ///
    /// # Errors
    /// Those of [`post_batch`](Self::post_batch).
    pub fn post_receive_batch_of<'wr, 'data: 'scope + 'wr>(
        &self,
        receives: impl IntoIterator<Item = ReceiveWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        self.post_list(&mut queued_list(receives))
    }

    #[inline(always)]
    fn post_array<'data: 'kept, 'kept, I: InBatch<'data>, H, const N: usize>(
        &self,
        items: &mut [I; N],
        kept: Kept<'kept>,
        handle: impl Fn(Ticket<'scope>) -> H,
    ) -> Result<[H; N], BatchRefused<'scope, N>> {
        let mut deadline = BatchDeadline::new(None);
        self.ledger().post_array(self.connection(), items, Some(&mut deadline), kept, handle)
    }

    pub(crate) fn post_list<'data: 'scope, I: InBatch<'data>>(
        &self,
        items: &mut [I],
    ) -> Result<Vec<ScopedPendingWork<'scope>>, TransportError> {
        let (ledger, mut deadline) = (self.ledger(), BatchDeadline::new(None));
        let mut slots = vec![ledger.no_slot(); items.len()];
        let deadline = Some(&mut deadline);
        let posted = ledger.post_batch(self.connection(), items, &mut slots, deadline, self.kept());
        let tickets = slots.into_iter().map(|slot| Ticket::new(ledger, slot));
        match posted {
            Ok(()) => Ok(tickets.map(PendingWork::new).collect()),
            Err(BatchNotPosted { error, posted }) => {
                tickets.take(posted).for_each(Ticket::disown);
                Err(error)
            }
        }
    }

    /// Sends a message of each, with one doorbell. Waits until all fit.
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    #[inline]
    pub fn send_batch_from<B: Rent + 'scope, const N: usize>(
        &self,
        bufs: [B; N],
    ) -> Rented<'scope, B, N> {
        Ledger::rent_batch(bufs, |bufs, kept| {
            let lists = bufs.each_ref().map(|buf| buf.gather());
            let mut requests = lists.each_ref().map(|list| {
                let (elements, domains) = list.parts();
                Request::from(SendWorkRequest::new(elements).with_domains(domains))
            });
            self.post_array(&mut requests, kept, |ticket| ticket)
        })
    }

    /// Writes each to the beginning of its remote memory, with one doorbell. Waits until all fit.
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    #[inline]
    pub fn write_batch_from<B: Rent + 'scope, const N: usize>(
        &self,
        writes: [(B, RemoteMemoryRegion); N],
    ) -> Rented<'scope, B, N> {
        let remotes = writes.each_ref().map(|(_, remote)| *remote);
        Ledger::rent_batch(writes.map(|(buf, _)| buf), |bufs, kept| {
            let lists = bufs.each_ref().map(|buf| buf.gather());
            let mut requests = array::from_fn(|place| {
                let (elements, domains) = lists[place].parts();
                let request = WriteWorkRequest::new(elements, remotes[place]);
                Request::from(request.with_domains(domains))
            });
            self.post_array(&mut requests, kept, |ticket| ticket)
        })
    }

    /// Fills each from the beginning of its remote memory, with one doorbell. Waits until all fit.
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    #[allow(clippy::expect_used)] // both are of N
    #[inline]
    pub fn read_batch_into<B: RentMut + 'scope, const N: usize>(
        &self,
        reads: [(B, RemoteMemoryRegion); N],
    ) -> Rented<'scope, B, N> {
        let remotes = reads.each_ref().map(|(_, remote)| *remote);
        Ledger::rent_batch(reads.map(|(buf, _)| buf), |bufs, kept| {
            let mut lists = bufs.each_mut().map(|buf| buf.scatter());
            let mut remotes = remotes.iter();
            let mut requests = lists.each_mut().map(|list| {
                let (elements, domains) = list.parts();
                let remote = remotes.next().expect("one for each");
                Request::from(ReadWorkRequest::new(elements, *remote).with_domains(domains))
            });
            self.post_array(&mut requests, kept, |ticket| ticket)
        })
    }

    /// Takes a message into each, with one doorbell. A full queue is as for
    /// [`post_receive`](Self::post_receive).
    ///
    /// # Errors
    /// [`RefusedBatch`] with the memory of what was not posted.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use rdma_channel::{TransportError, prelude::*};
    /// # use rdma_qp::SendWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let mut memory = pd.allocate_region(128)?;
    /// channel
    ///     .scope(|s| {
    ///         let (one, other) = memory.as_slice_mut().split_at(64);
    ///         let [first, second] = s.receive_batch_into([one, other])?;
    /// #       s.post_batch([1, 2].map(|n| SendWorkRequest::only_immediate(n).into()))?;
    ///         let (_, message) = first.done(Duration::from_secs(1))?;
    ///         println!("{} bytes", message.scattered_bytes().unwrap_or(0));
    ///         Ok::<_, TransportError>(drop(second)) // the scope ends it
    ///     })
    ///     .unwrap();
    /// # Ok::<(), TransportError>(())
    /// ```
    #[inline]
    pub fn receive_batch_into<B: RentMut + 'scope, const N: usize>(
        &self,
        bufs: [B; N],
    ) -> Rented<'scope, B, N> {
        Ledger::rent_batch(bufs, |bufs, kept| {
            let mut lists = bufs.each_mut().map(|buf| buf.scatter());
            let mut receives = lists.each_mut().map(|list| {
                let (elements, domains) = list.parts();
                ReceiveWorkRequest::new(elements).with_domains(domains).with_id(0)
            });
            self.post_array(&mut receives, kept, |ticket| ticket)
        })
    }
}

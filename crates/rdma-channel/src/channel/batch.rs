//! Several requests with one call of the provider: one doorbell.

use std::array;
use std::time::Duration;

use rdma_connect::TransportError;
use rdma_qp::{ReceiveWorkRequest, WcOpcode, WorkSuccess};

use crate::channel::Channel;
use crate::channel::blocking::wait_all;
use crate::deadline::BatchDeadline;
use crate::ledger::Ledger;
use crate::ledger::post::BatchNotPosted;
use crate::ledger::queues::{Connection, InBatch, Kept, Slot};
use crate::ledger::ticket::Ticket;
use crate::lend::Call;
use crate::request::{Request, queued, queued_list};
use crate::scope::in_flight::InFlight;

/// A batch that was not posted, or not wholly: the tickets of what was.
pub(crate) struct BatchRefused<'l, const N: usize> {
    pub(crate) error: TransportError,
    pub(crate) tickets: [Option<Ticket<'l>>; N],
}

impl<const N: usize> From<BatchRefused<'_, N>> for TransportError {
    #[cold]
    fn from(refused: BatchRefused<'_, N>) -> Self {
        refused.tickets.into_iter().flatten().for_each(Ticket::disown);
        refused.error
    }
}

/// Each ticket with its memory.
#[inline(always)]
#[allow(clippy::expect_used)] // both are of N
pub(crate) fn with_memory<'l, B, const N: usize>(
    tickets: [Ticket<'l>; N],
    bufs: [B; N],
) -> [InFlight<'l, B>; N] {
    let mut tickets = tickets.into_iter();
    bufs.map(|buf| InFlight::new(tickets.next().expect("one for each"), buf))
}

impl Ledger {
    /// Posts an array of requests, and makes of each ticket what is wanted.
    #[inline(always)]
    pub(crate) fn post_array<'l, 'data: 'kept, 'kept, I: InBatch<'data>, H, const N: usize>(
        &'l self,
        connection: &'l Connection,
        items: &mut [I; N],
        deadline: Option<&mut BatchDeadline>,
        kept: Kept<'kept>,
        handle: impl Fn(Ticket<'l>) -> H,
    ) -> Result<[H; N], BatchRefused<'l, N>> {
        let mut slots = [self.no_slot(); N];
        match self.post_batch(connection, items, &mut slots, deadline, kept) {
            Ok(()) => Ok(array::from_fn(|place| handle(Ticket::new(self, slots[place])))),
            Err(refused) => Err(self.refused_array(refused, slots)),
        }
    }

    #[cold]
    fn refused_array<'l, const N: usize>(
        &'l self,
        refused: BatchNotPosted,
        slots: [&'l Slot; N],
    ) -> BatchRefused<'l, N> {
        let BatchNotPosted { error, posted } = refused;
        let ticket = |place| (place < posted).then(|| Ticket::new(self, slots[place]));
        BatchRefused { error, tickets: array::from_fn(ticket) }
    }

    /// Posts all requests, and returns when they are over.
    fn block_array<'data, I: InBatch<'data>, const N: usize>(
        &mut self,
        timeout: Option<Duration>,
        items: &mut [I; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        let (mut place, mut successes) = (0, [WorkSuccess::of_send(WcOpcode::SEND); N]);
        self.block_all(|call| {
            let mut slots = [call.ledger().no_slot(); N];
            let only = call.ledger().only();
            call.block_batch(only, timeout, items, &mut slots, |success| {
                successes[place] = success;
                place += 1;
            })
        })?;
        Ok(successes)
    }

    /// The same, of as many as there are.
    fn block_list<'data, I: InBatch<'data>>(
        &mut self,
        timeout: Option<Duration>,
        items: &mut [I],
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let mut successes = Vec::with_capacity(items.len());
        self.block_all(|call| {
            let mut slots = vec![call.ledger().no_slot(); items.len()];
            let only = call.ledger().only();
            call.block_batch(only, timeout, items, &mut slots, |success| successes.push(success))
        })?;
        Ok(successes)
    }
}

impl<'l, 'data> Call<'l, 'data> {
    /// Posts all requests, and waits for them.
    ///
    /// # Errors
    /// The outer one if none was posted.
    #[inline(always)]
    pub(crate) fn block_batch<I: InBatch<'data>>(
        self,
        connection: &'l Connection,
        timeout: Option<Duration>,
        items: &mut [I],
        slots: &mut [&'l Slot],
        each: impl FnMut(WorkSuccess),
    ) -> Result<Result<(), TransportError>, TransportError> {
        let (ledger, mut deadline) = (self.ledger(), BatchDeadline::new(timeout));
        let posted = self.post_batch(connection, items, slots, Some(&mut deadline));
        if let Err(BatchNotPosted { error, posted }) = posted {
            if posted == 0 {
                return Err(error);
            }
            slots.iter().take(posted).for_each(|slot| Ticket::new(ledger, slot).disown());
            return Ok(Err(error));
        }
        Ok(wait_all(ledger, slots, &mut deadline, each))
    }
}

impl Channel {
    /// Posts requests with one doorbell, and waits until all are done. In the order of the requests.
    ///
    /// Unsignaled ones are done with the next signaled one; the last one is made signaled. The limit is the
    /// longest of the kinds in the batch.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), of the first that failed. [`TransportError::BatchTooLarge`] if the queue does
    /// not hold so many.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// use rdma_qp::WriteWorkRequest;
    /// # use rdma_mem::AccessFlags;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// # let access = AccessFlags::new().with_local_write().with_remote_write();
    /// # let board = pd.allocate_shared_region(128, access)?;
    /// # let (body_there, head_there) = (board.remote().slice(64..128).unwrap(), board.remote());
    /// let mut memory = pd.allocate_region(72)?;
    /// memory[..8].fill(1);
    /// let (head, body) = memory.as_slice().split_at(8);
    /// channel.batch([
    ///     WriteWorkRequest::new(&[body.gather_element()], body_there).signaled(false).into(),
    ///     WriteWorkRequest::new(&[head.gather_element()], head_there).into(),
    /// ])?;
    /// # let mut word = [0; 8];
    /// # board.read(0, &mut word).unwrap();
    /// # assert_eq!(word, [1; 8]);
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn batch<const N: usize>(
        &mut self,
        mut requests: [Request<'_, '_>; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.ledger.block_array(None, &mut requests)
    }

    /// The same as [`batch`](Self::batch), with a limit for all of them. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub fn batch_timeout<const N: usize>(
        &mut self,
        mut requests: [Request<'_, '_>; N],
        timeout: Duration,
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.ledger.block_array(Some(timeout), &mut requests)
    }

    /// Posts as many requests as there are with one doorbell, and waits until all are done: [`batch`](Self::batch) where
    /// their number is known at run time. It allocates.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::{Request, prelude::*};
    /// use rdma_mem::{AccessFlags, GatherList};
    /// use rdma_qp::WriteWorkRequest;
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let mut channel = channel.handshake(endpoint)?; // to itself
    /// let access = AccessFlags::new().with_local_write().with_remote_write();
    /// let board = pd.allocate_shared_region(64, access)?;
    /// let mut memory = pd.allocate_region(64)?;
    /// memory.fill(1);
    /// let pieces = memory.as_slice().split_at(24);
    /// let lists = [pieces.0, pieces.1].map(|piece| GatherList::from([piece]));
    /// let remotes = [board.remote(), board.remote().sub_region(24).expect("within")];
    /// let writes = lists.iter().zip(remotes);
    /// channel.batch_of(writes.map(|(list, remote)| WriteWorkRequest::from_list(list, remote).into()))?;
    /// # let mut bytes = [0; 64];
    /// # board.read(0, &mut bytes).unwrap();
    /// # assert_eq!(bytes, [1; 64]);
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    pub fn batch_of<'wr, 'data: 'wr>(
        &mut self,
        requests: impl IntoIterator<Item = Request<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let mut requests: Vec<_> = requests.into_iter().collect();
        self.ledger.block_list(None, &mut requests)
    }

    /// The same as [`batch_of`](Self::batch_of), with a limit for all of them. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub fn batch_of_timeout<'wr, 'data: 'wr>(
        &mut self,
        requests: impl IntoIterator<Item = Request<'wr, 'data>>,
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        let mut requests: Vec<_> = requests.into_iter().collect();
        self.ledger.block_list(Some(timeout), &mut requests)
    }

    /// Posts receives with one doorbell, and waits until all are done.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub fn receive_batch<const N: usize>(
        &mut self,
        receives: [ReceiveWorkRequest<'_, '_>; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.receive_batch_timeout(receives, self.ledger.limits.receive)
    }

    /// The same as [`receive_batch`](Self::receive_batch), with a limit for all of them. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub fn receive_batch_timeout<const N: usize>(
        &mut self,
        receives: [ReceiveWorkRequest<'_, '_>; N],
        timeout: Duration,
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.ledger.block_array(Some(timeout), &mut queued(receives))
    }

    /// Posts as many receives as there are with one doorbell, and waits until all are done. It allocates.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub fn receive_batch_of<'wr, 'data: 'wr>(
        &mut self,
        receives: impl IntoIterator<Item = ReceiveWorkRequest<'wr, 'data>>,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.receive_batch_of_timeout(receives, self.ledger.limits.receive)
    }

    /// The same as [`receive_batch_of`](Self::receive_batch_of), with a limit for all of them. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// Those of [`batch`](Self::batch).
    pub fn receive_batch_of_timeout<'wr, 'data: 'wr>(
        &mut self,
        receives: impl IntoIterator<Item = ReceiveWorkRequest<'wr, 'data>>,
        timeout: Duration,
    ) -> Result<Vec<WorkSuccess>, TransportError> {
        self.ledger.block_list(Some(timeout), &mut queued_list(receives))
    }
}

//! Several requests with one call of the provider: one doorbell.
#![allow(unsafe_code)]

use std::array;
use std::time::Duration;

use rdma_qp::{
    AtomicWorkRequest, PostError, QueuePair, QueuedReceive, QueuedRequest, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WcOpcode, WorkSuccess, WriteWorkRequest,
};

use crate::blocking::wait_all;
use crate::core::{Core, closed};
use crate::lane::{Lane, Ring};
use crate::slot::{Slot, State};
use crate::ticket::Ticket;
use crate::{Channel, Operation, PendingWork, Scope, ScopedPendingWork, TransportError};

/// A request of the send queue in a batch, of any kind: made by `into()` of each.
#[derive(Debug)]
pub struct Request<'wr, 'data> {
    operation: Operation,
    queued: QueuedRequest<'wr, 'data>,
}

macro_rules! requests {
    ($($request:ident => $operation:ident),+) => {$(
        impl<'wr, 'data> From<$request<'wr, 'data>> for Request<'wr, 'data> {
            #[inline]
            fn from(request: $request<'wr, 'data>) -> Self {
                Self { operation: Operation::$operation, queued: request.with_id(0) }
            }
        }
    )+};
}

requests!(
    SendWorkRequest => Send, WriteWorkRequest => Write, ReadWorkRequest => Read,
    AtomicWorkRequest => Atomic
);

/// What a batch is made of: requests of the send queue, or receives.
pub(crate) trait Item {
    type Queued;
    /// Whether it is of the send queue, whose requests are done in order.
    const SENDS: bool;

    fn operation(&self) -> Operation;
    fn is_signaled(&self) -> bool;
    fn ring(lane: &Lane) -> &Ring;
    /// How many silent requests are at the end of the queue: receives have nothing to do with those of the
    /// send queue.
    fn run(lane: &Lane) -> u32;
    fn queue(self, id: u64, signaled: bool) -> Self::Queued;

    /// # Safety
    /// As of [`QueuePair::post_batch`].
    unsafe fn post(batch: &mut [Self::Queued], qp: &QueuePair) -> Result<(), PostError>;
}

impl<'wr, 'data> Item for Request<'wr, 'data> {
    type Queued = QueuedRequest<'wr, 'data>;
    const SENDS: bool = true;

    #[inline(always)]
    fn operation(&self) -> Operation {
        self.operation
    }

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        self.queued.is_signaled()
    }

    #[inline(always)]
    fn ring(lane: &Lane) -> &Ring {
        &lane.send
    }

    #[inline(always)]
    fn run(lane: &Lane) -> u32 {
        lane.run.get()
    }

    #[inline(always)]
    fn queue(self, id: u64, signaled: bool) -> Self::Queued {
        self.queued.with_id(id).signaled(signaled)
    }

    #[inline(always)]
    unsafe fn post(batch: &mut [Self::Queued], qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F21: the same contract.
        unsafe { qp.post_batch(batch) }
    }
}

impl<'wr, 'data> Item for ReceiveWorkRequest<'wr, 'data> {
    type Queued = QueuedReceive<'wr, 'data>;
    const SENDS: bool = false;

    #[inline(always)]
    fn operation(&self) -> Operation {
        Operation::Receive
    }

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        true
    }

    #[inline(always)]
    fn ring(lane: &Lane) -> &Ring {
        &lane.receive
    }

    #[inline(always)]
    fn run(_: &Lane) -> u32 {
        0
    }

    #[inline(always)]
    fn queue(self, id: u64, _: bool) -> Self::Queued {
        self.with_id(id)
    }

    #[inline(always)]
    unsafe fn post(batch: &mut [Self::Queued], qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F21: the same contract.
        unsafe { qp.post_receive_batch(batch) }
    }
}

/// A batch that was not posted, or not wholly: the tickets of what was.
pub(crate) struct BatchRefused<'c, const N: usize> {
    pub(crate) error: TransportError,
    pub(crate) tickets: [Option<Ticket<'c>>; N],
}

impl<const N: usize> BatchRefused<'_, N> {
    #[cold]
    pub(crate) fn nothing_posted(error: TransportError) -> Self {
        Self { error, tickets: [const { None }; N] }
    }
}

impl<const N: usize> From<BatchRefused<'_, N>> for TransportError {
    fn from(refused: BatchRefused<'_, N>) -> Self {
        refused.error
    }
}

impl Core {
    /// Posts all requests in order. The last one is made signaled, so that it tells of all.
    ///
    /// # Safety
    /// As of [`post`](Self::post), for each.
    #[inline]
    pub(crate) unsafe fn post_batch<'c, I: Item, const N: usize>(
        &'c self,
        lane: &'c Lane,
        items: [I; N],
        wait: bool,
    ) -> Result<[Ticket<'c>; N], BatchRefused<'c, N>> {
        let operations = items.each_ref().map(I::operation);
        let slots = match self.reserve::<I, N>(lane, &operations, wait) {
            Ok(slots) => slots,
            Err(error) => return Err(BatchRefused::nothing_posted(error)),
        };
        let (mut run, mut signaled) = (I::run(lane), [true; N]);
        let mut place = 0;
        let mut queued = items.map(|item| {
            let last = place + 1 == N || run + 1 >= I::ring(lane).count / 2;
            signaled[place] = item.is_signaled() || last;
            run = if signaled[place] { 0 } else { run + 1 };
            let request = item.queue(slots[place].id.get(), signaled[place]);
            place += 1;
            request
        });
        let posted = match &lane.qp {
            // SAFETY: SAFETY.md F21: this function's contract.
            Some(qp) => unsafe { I::post(&mut queued, qp) }.map_err(|e| (e.posted(), e.into())),
            None => Err((0, closed(lane))),
        };
        let in_flight = |place: usize| {
            self.posted(slots[place], operations[place]);
            if I::SENDS && (!signaled[place] || lane.silent.get() != 0) {
                self.link(lane, slots[place], signaled[place]);
            }
            Ticket::new(self, slots[place])
        };
        posted.map(|()| array::from_fn(in_flight)).map_err(|(count, error)| {
            slots.iter().skip(count).for_each(|slot| slot.state.set(State::FREE));
            let tickets = array::from_fn(|place| (place < count).then(|| in_flight(place)));
            BatchRefused { error, tickets }
        })
    }

    /// Posts all requests, and returns when they are over.
    fn block_batch<I: Item, const N: usize>(
        &mut self,
        timeout: Duration,
        items: [I; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.block_all(|core| {
            // SAFETY: SAFETY.md F22: the memory is borrowed by the call, which ends after the requests.
            let tickets = match unsafe { core.post_batch(core.lane(0)?, items, true) } {
                Ok(tickets) => tickets,
                Err(refused) if refused.tickets.iter().all(Option::is_none) => {
                    return Err(refused.error);
                }
                Err(refused) => return Ok(Err(refused.error)),
            };
            let (mut place, mut successes) = (0, [WorkSuccess::of_send(WcOpcode::SEND); N]);
            let waited = wait_all(tickets, timeout, |success| {
                successes[place] = success;
                place += 1;
            });
            Ok(waited.map(|()| successes))
        })
    }

    /// Slots for so many requests of one queue.
    #[inline]
    fn reserve<'c, I: Item, const N: usize>(
        &'c self,
        lane: &'c Lane,
        operations: &[Operation; N],
        wait: bool,
    ) -> Result<[&'c Slot; N], TransportError> {
        let ring = I::ring(lane);
        if N > ring.count as usize && lane.closed.get().is_none() {
            return Err(TransportError::BatchTooLarge { requests: N, room: ring.count });
        }
        let mut slots = [&self.table[0]; N];
        for (place, &operation) in operations.iter().enumerate() {
            match self.take(lane, ring, operation, wait) {
                Ok((slot, _)) => {
                    slot.state.set(State::RESERVED);
                    slots[place] = slot;
                }
                Err(error) => {
                    slots[..place].iter().for_each(|slot| slot.state.set(State::FREE));
                    return Err(error);
                }
            }
        }
        Ok(slots)
    }
}

impl Channel {
    /// Posts requests with one doorbell, and waits until all are done. In the order of the requests.
    ///
    /// Unsignaled ones are done with the next signaled one; the last one is made signaled. The limit is the
    /// longest of the kinds in the batch.
    ///
    /// # Errors
    /// As of [`send`](Self::send), of the first that failed. [`TransportError::BatchTooLarge`] if the queue does
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
        requests: [Request<'_, '_>; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        let limits = &self.core.limits;
        let timeout = requests.iter().map(|request| limits.of(request.operation)).max();
        self.batch_timeout(requests, timeout.unwrap_or_default())
    }

    /// As [`batch`](Self::batch), with a limit of its own. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// As there.
    pub fn batch_timeout<const N: usize>(
        &mut self,
        requests: [Request<'_, '_>; N],
        timeout: Duration,
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.core.block_batch(timeout, requests)
    }

    /// Posts receives with one doorbell, and waits until all are done.
    ///
    /// # Errors
    /// As of [`batch`](Self::batch).
    pub fn receive_batch<const N: usize>(
        &mut self,
        receives: [ReceiveWorkRequest<'_, '_>; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.receive_batch_timeout(receives, self.core.limits.receive)
    }

    /// As [`receive_batch`](Self::receive_batch), with a limit of its own for all. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// As there.
    pub fn receive_batch_timeout<const N: usize>(
        &mut self,
        receives: [ReceiveWorkRequest<'_, '_>; N],
        timeout: Duration,
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.core.block_batch(timeout, receives)
    }

    /// As [`send_unpolled`](Self::send_unpolled), of a batch with one doorbell.
    ///
    /// # Errors
    /// As there. Of a batch that was posted in part the handles of that part are dropped.
    ///
    /// # Safety
    /// As there, for each.
    #[inline]
    pub unsafe fn batch_unpolled<const N: usize>(
        &self,
        requests: [Request<'_, '_>; N],
    ) -> Result<[PendingWork<'_>; N], TransportError> {
        // SAFETY: SAFETY.md F21: the same contract.
        let tickets = unsafe { self.core.post_batch(self.core.lane(0)?, requests, false) }?;
        Ok(tickets.map(PendingWork::new))
    }

    /// As [`receive_unpolled`](Self::receive_unpolled), of a batch with one doorbell.
    ///
    /// # Errors
    /// As of [`batch_unpolled`](Self::batch_unpolled).
    ///
    /// # Safety
    /// As there, for each.
    #[inline]
    pub unsafe fn receive_batch_unpolled<const N: usize>(
        &self,
        receives: [ReceiveWorkRequest<'_, '_>; N],
    ) -> Result<[PendingWork<'_>; N], TransportError> {
        // SAFETY: SAFETY.md F21: the same contract.
        let tickets = unsafe { self.core.post_batch(self.core.lane(0)?, receives, false) }?;
        Ok(tickets.map(PendingWork::new))
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Posts requests with one doorbell; waits for room for all.
    ///
    /// Unsignaled ones are done with the next signaled one; the last one is made signaled.
    ///
    /// # Errors
    /// If it was not posted. If that is known of a part only, the scope ends what was posted.
    /// [`TransportError::BatchTooLarge`] if the queue does not hold so many.
    #[inline]
    pub fn post_batch<const N: usize>(
        &'scope self,
        requests: [Request<'_, 'scope>; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        // SAFETY: SAFETY.md F22: the memory is borrowed for the scope, which ends after the requests.
        let tickets = unsafe { self.core.post_batch(self.core.lane(0)?, requests, true) }?;
        Ok(tickets.map(PendingWork::new))
    }

    /// Posts receives with one doorbell. A full queue is as for [`post_receive`](Self::post_receive).
    ///
    /// # Errors
    /// As of [`post_batch`](Self::post_batch).
    #[inline]
    pub fn post_receive_batch<'data: 'scope, const N: usize>(
        &'scope self,
        receives: [ReceiveWorkRequest<'_, 'data>; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        // SAFETY: SAFETY.md F22: the memory is borrowed for the scope, which ends after the requests.
        let tickets = unsafe { self.core.post_batch(self.core.lane(0)?, receives, true) }?;
        Ok(tickets.map(PendingWork::new))
    }
}

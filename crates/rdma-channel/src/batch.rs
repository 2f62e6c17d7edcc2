//! Several requests with one call of the provider: one doorbell.
#![allow(unsafe_code)]

use std::time::Duration;
use std::{array, slice};

use rdma_qp::{
    AtomicWorkRequest, PostError, QueuePair, QueuedReceive, QueuedRequest, ReadWorkRequest,
    ReceiveWorkRequest, SendWorkRequest, WcOpcode, WorkSuccess, WriteWorkRequest,
};

use crate::blocking::wait_all;
use crate::core::{Core, closed};
use crate::lane::{Lane, Ring};
use crate::patience::{FOR_EVER, Patience};
use crate::slot::{Slot, State};
use crate::ticket::Ticket;
use crate::{Channel, Operation, PendingWork, Scope, ScopedPendingWork, TransportError};

/// A request of the send queue in a batch, of any kind: made by `into()` of each.
#[derive(Debug)]
#[repr(transparent)]
pub struct Request<'wr, 'data>(QueuedRequest<'wr, 'data>);

macro_rules! requests {
    ($($request:ident)+) => {$(
        impl<'wr, 'data> From<$request<'wr, 'data>> for Request<'wr, 'data> {
            #[inline]
            fn from(request: $request<'wr, 'data>) -> Self {
                Self(request.with_id(0))
            }
        }
    )+};
}

requests!(SendWorkRequest WriteWorkRequest ReadWorkRequest AtomicWorkRequest);

/// What a batch is made of: requests of the send queue, or receives.
pub(crate) trait Item: Sized {
    /// Whether it is of the send queue, whose requests are done in order.
    const SENDS: bool;

    fn operation(&self) -> Operation;
    fn is_signaled(&self) -> bool;
    fn ring(lane: &Lane) -> &Ring;
    fn number(&mut self, id: u64, signaled: bool);

    /// # Safety
    /// As of [`QueuePair::post_batch`].
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError>;
}

impl Item for Request<'_, '_> {
    const SENDS: bool = true;

    #[inline(always)]
    fn operation(&self) -> Operation {
        Operation::of(self.0.opcode())
    }

    #[inline(always)]
    fn is_signaled(&self) -> bool {
        self.0.is_signaled()
    }

    #[inline(always)]
    fn ring(lane: &Lane) -> &Ring {
        &lane.send
    }

    #[inline(always)]
    fn number(&mut self, id: u64, signaled: bool) {
        self.0.set_wr_id(id);
        self.0.set_signaled(signaled);
    }

    #[inline(always)]
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        let (first, count) = (batch.as_mut_ptr().cast(), batch.len());
        // SAFETY: SAFETY.md F5: each is laid out as what is in it; borrowed as the slice is.
        let queued: &mut [QueuedRequest<'_, '_>] =
            unsafe { slice::from_raw_parts_mut(first, count) };
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        unsafe { qp.post_batch(queued) }
    }
}

impl Item for QueuedReceive<'_, '_> {
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
    fn number(&mut self, id: u64, _: bool) {
        self.set_wr_id(id);
    }

    #[inline(always)]
    unsafe fn post(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        unsafe { qp.post_receive_batch(batch) }
    }
}

/// Receives, to be numbered.
#[inline]
pub(crate) fn queued<'wr, 'data, const N: usize>(
    receives: [ReceiveWorkRequest<'wr, 'data>; N],
) -> [QueuedReceive<'wr, 'data>; N] {
    receives.map(|receive| receive.with_id(0))
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
    #[cold]
    fn from(refused: BatchRefused<'_, N>) -> Self {
        refused.tickets.into_iter().flatten().for_each(Ticket::disown);
        refused.error
    }
}

impl Core {
    /// Posts all requests in order, and makes of each ticket what is wanted. The last one is made signaled, so that
    /// it tells of all. Waits for room as long as there is patience.
    ///
    /// # Safety
    /// As of [`post`](Self::post), for each.
    #[inline]
    pub(crate) unsafe fn post_batch<'c, I: Item, H, const N: usize>(
        &'c self,
        items: &mut [I; N],
        patience: Option<&mut Patience>,
        handle: impl Fn(Ticket<'c>) -> H,
    ) -> Result<[H; N], BatchRefused<'c, N>> {
        let (lane, ring) = (self.only(), I::ring(self.only()));
        let slots = match self.run_at_hand(ring) {
            Some(slots) => slots,
            None => self.reserve(items, patience).map_err(BatchRefused::nothing_posted)?,
        };
        // Receives have nothing to do with silent requests of the send queue.
        let mut run = if I::SENDS { lane.run.get() } else { 0 };
        let mut silent = run != 0;
        for (place, (item, slot)) in items.iter_mut().zip(&slots).enumerate() {
            let signaled = item.is_signaled() || place + 1 == N || lane.has_to_signal(run);
            run = if signaled { 0 } else { run + 1 };
            silent |= !signaled;
            item.number(slot.id.get(), signaled);
        }
        let posted = match lane.qp() {
            // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract.
            Some(qp) => unsafe { I::post(items, qp) }.map_err(|e| (e.posted(), e.into())),
            None => Err((0, closed(lane))),
        };
        match posted {
            Ok(()) => {
                if silent {
                    self.posted_in_part(lane, items, &slots, N);
                } else {
                    for (item, slot) in items.iter().zip(&slots) {
                        self.posted(slot, item.operation());
                    }
                }
                if let Some(last) = slots.last() {
                    lane.advance(ring, last.next.get());
                }
                Ok(slots.map(|slot| handle(Ticket::new(self, slot))))
            }
            Err((count, error)) => {
                self.posted_in_part(lane, items, &slots, count);
                let ticket = |place| (place < count).then(|| Ticket::new(self, slots[place]));
                Err(BatchRefused { error, tickets: array::from_fn(ticket) })
            }
        }
    }

    /// Notes what is with the device of a batch that was not posted wholly, or has silent requests.
    #[cold]
    fn posted_in_part<I: Item>(&self, lane: &Lane, items: &[I], slots: &[&Slot], count: usize) {
        for (item, slot) in items.iter().zip(slots).take(count) {
            self.posted(slot, item.operation());
            if I::SENDS {
                self.link(lane, slot, item.is_signaled());
            }
        }
        slots.iter().skip(count).for_each(|slot| slot.state.set(State::FREE));
    }

    /// Posts all requests, and returns when they are over.
    fn block_batch<I: Item, const N: usize>(
        &mut self,
        timeout: Duration,
        items: &mut [I; N],
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.block_all(|core| {
            let mut patience = Patience::new(timeout);
            let room = (timeout != FOR_EVER).then_some(&mut patience);
            // SAFETY: SAFETY.md F22: the memory is borrowed by the call, which ends after the requests.
            let tickets = match unsafe { core.post_batch(items, room, |ticket| ticket) } {
                Ok(tickets) => tickets,
                Err(refused) if refused.tickets.iter().all(Option::is_none) => {
                    return Err(refused.error);
                }
                Err(refused) => return Ok(Err(refused.error)),
            };
            let (mut place, mut successes) = (0, [WorkSuccess::of_send(WcOpcode::SEND); N]);
            let waited = wait_all(tickets, &mut patience, |success| {
                successes[place] = success;
                place += 1;
            });
            Ok(waited.map(|()| successes))
        })
    }

    /// The slots that come next in a queue, if all are free and no more has to be looked at.
    #[inline]
    fn run_at_hand<const N: usize>(&self, ring: &Ring) -> Option<[&Slot; N]> {
        let (mut slots, mut next) = ([&self.table[0]; N], ring.cursor());
        if N > ring.count as usize {
            return None;
        }
        for place in &mut slots {
            // SAFETY: SAFETY.md F23: of this core's table.
            let slot = unsafe { next.slot() };
            if slot.state.get() != State::FREE {
                return None;
            }
            (*place, next) = (slot, slot.next.get());
        }
        Some(slots)
    }

    /// Slots for so many requests of one queue, wherever they are.
    #[cold]
    fn reserve<I: Item, const N: usize>(
        &self,
        items: &[I; N],
        mut patience: Option<&mut Patience>,
    ) -> Result<[&Slot; N], TransportError> {
        let (lane, ring) = (self.only(), I::ring(self.only()));
        if N > ring.count as usize && lane.closed.get().is_none() {
            return Err(TransportError::BatchTooLarge { requests: N, room: ring.count });
        }
        let mut slots = [&self.table[0]; N];
        for (place, item) in items.iter().enumerate() {
            match self.take(lane, ring, item.operation(), patience.as_deref_mut()) {
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

    /// The patience for posting requests whose scope does not say how long.
    pub(crate) fn usual_patience<I: Item>(&self, items: &[I]) -> Option<Patience> {
        let longest = items.iter().map(|item| self.limits.of(item.operation())).max();
        longest.and_then(Patience::for_room)
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
        let timeout = requests.iter().map(|request| limits.of(request.operation())).max();
        self.batch_timeout(requests, timeout.unwrap_or_default())
    }

    /// As [`batch`](Self::batch), with a limit of its own. [`Duration::MAX`] is none.
    ///
    /// # Errors
    /// As there.
    pub fn batch_timeout<const N: usize>(
        &mut self,
        mut requests: [Request<'_, '_>; N],
        timeout: Duration,
    ) -> Result<[WorkSuccess; N], TransportError> {
        self.core.block_batch(timeout, &mut requests)
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
        self.core.block_batch(timeout, &mut queued(receives))
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
        mut requests: [Request<'_, '_>; N],
    ) -> Result<[PendingWork<'_>; N], TransportError> {
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        Ok(unsafe { self.core.post_batch(&mut requests, None, PendingWork::new) }?)
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
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        Ok(unsafe { self.core.post_batch(&mut queued(receives), None, PendingWork::new) }?)
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
        mut requests: [Request<'_, 'scope>; N],
    ) -> Result<[ScopedPendingWork<'scope>; N], TransportError> {
        let mut patience = self.core.usual_patience(&requests);
        // SAFETY: SAFETY.md F22: the memory is borrowed for the scope, which ends after the requests.
        Ok(unsafe { self.core.post_batch(&mut requests, patience.as_mut(), PendingWork::new) }?)
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
        let mut receives = queued(receives);
        let mut patience = self.core.usual_patience(&receives);
        // SAFETY: SAFETY.md F22: the memory is borrowed for the scope, which ends after the requests.
        Ok(unsafe { self.core.post_batch(&mut receives, patience.as_mut(), PendingWork::new) }?)
    }
}

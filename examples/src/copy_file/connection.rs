//! One end of the connection, and all posts of the program.
//!
//! The only unsafe code of the program is here. What it guards: memory that was posted is neither
//! written nor freed before its completion. So the memory that requests read is owned by the type
//! here, in slots, which are posted in a ring; a slot is handed out only while it is not in flight;
//! and what is in flight is known from completions alone, which are counted nowhere else.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use rdma_mem::{OwnedRegion, RemoteMemoryRegion, SliceMut};
use rdma_qp::{
    CompletionQueue, PollSlot, PostError, QueuePair, ReceiveWorkRequest, WriteWorkRequest,
};

use super::stop::{Stop, Wait};
use super::{Error, Settings};

/// The number of every receive. Requests of the send queue are numbered from 1, and never get so far.
const RECEIVE: u64 = 1 << 63;

/// A connected queue pair with its completion queue, the slots that it sends from, and as many
/// receives as the peer may have messages on their way.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Destroyed before `slots`, which its requests name.
    queue_pair: QueuePair,
    completions: CompletionQueue,
    /// None at the side that sends only credits.
    slots: Option<OwnedRegion>,
    settings: Settings,
    /// Requests of the send queue that the device has got.
    posted: u64,
    /// Those of them, from the first on, that are completed.
    completed: u64,
    /// Messages of the peer that nobody has taken yet; at most as many as there are receives.
    arrivals: VecDeque<Arrival>,
}

/// A message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) immediate: u32,
    /// How many bytes it wrote into our memory.
    pub(crate) bytes: usize,
}

impl Connection {
    /// Posts the receives. Queues and slots have room for `depth` of each kind.
    pub(crate) fn new(
        queue_pair: QueuePair,
        completions: CompletionQueue,
        slots: Option<OwnedRegion>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let arrivals = VecDeque::with_capacity(settings.depth());
        let (posted, completed) = (0, 0);
        let connection =
            Self { queue_pair, completions, slots, settings, posted, completed, arrivals };
        for _ in 0..settings.depth() {
            connection.post_receive()?;
        }
        Ok(connection)
    }

    /// How much memory is registered here. Receives, and writes of nothing, need none.
    pub(crate) fn registered_bytes(&self) -> usize {
        self.slots.as_ref().map_or(0, |slots| slots.len())
    }

    /// Whether the send queue has room, and the next slot is not in flight.
    pub(crate) fn can_send(&self) -> bool {
        self.posted - self.completed < self.settings.depth() as u64
    }

    /// Whether everything that was posted to the send queue is completed.
    pub(crate) fn all_sent(&self) -> bool {
        self.posted == self.completed
    }

    /// Where the slot that is posted next begins; the peer's has the same place.
    pub(crate) fn next_offset(&self) -> usize {
        let slot = self.posted % self.settings.depth() as u64;
        usize::try_from(slot).unwrap_or(0) * self.settings.chunk()
    }

    /// The memory of the slot that is posted next, unless it is in flight.
    pub(crate) fn next_slot(&mut self) -> Result<SliceMut<'_>, Error> {
        let (offset, chunk) = (self.next_offset(), self.settings.chunk());
        let free = self.can_send();
        let slots = self.slots.as_mut().filter(|_| free);
        slots.and_then(|slots| slots.get_mut(offset, chunk)).ok_or(Error::NoSlot)
    }

    /// Writes the first `length` bytes of the next slot into the peer's memory.
    pub(crate) fn write_slot(
        &mut self,
        length: usize,
        remote: RemoteMemoryRegion,
        immediate: u32,
    ) -> Result<(), Error> {
        let slot = self.slots.as_ref().filter(|_| self.can_send());
        let slot = slot.and_then(|slots| slots.get_ref(self.next_offset(), length));
        let elements = [slot.ok_or(Error::NoSlot)?.gather_element()];
        let request = WriteWorkRequest::new(&elements, remote).with_immediate(immediate);
        // SAFETY: SAFETY.md F6, F8: the slot lies in `slots`, which stays registered until the queue
        // pair is destroyed. `next_slot` does not hand it out before `poll` has counted its
        // completion: there are `depth` slots, used in turn, and less than `depth` in flight.
        let result = unsafe { self.queue_pair.post_write(request, self.posted + 1) };
        self.count(result)
    }

    /// Writes nothing, but tells the peer this number.
    pub(crate) fn write_nothing(&mut self, immediate: u32) -> Result<(), Error> {
        let request = WriteWorkRequest::only_immediate(immediate);
        // SAFETY: SAFETY.md F1: the request names no memory.
        let result = unsafe { self.queue_pair.post_write(request, self.posted + 1) };
        self.count(result)
    }

    /// Has room for one more message of the peer.
    pub(crate) fn post_receive(&self) -> Result<(), Error> {
        let request = ReceiveWorkRequest::only_immediate();
        // SAFETY: SAFETY.md F1: the request names no memory.
        Ok(unsafe { self.queue_pair.post_receive(request, RECEIVE) }?)
    }

    /// What the device may have got counts as in flight.
    fn count(&mut self, result: Result<(), PostError>) -> Result<(), Error> {
        self.posted += result.map_or_else(|error| error.posted() as u64, |()| 1);
        Ok(result?)
    }

    /// Takes one completion, if there is one.
    fn poll(&mut self) -> Result<bool, Error> {
        let mut slot = [PollSlot::default()];
        let mut polled = self.completions.poll(&mut slot).map_err(rdma_qp::Error::from)?;
        let Some(completion) = polled.next() else { return Ok(false) };
        let success = completion.result()?;
        if completion.wr_id() != RECEIVE {
            // The send queue completes in order, and each of its requests is signaled.
            if completion.wr_id() != self.completed + 1 {
                return Err(Error::Protocol(format!("{completion:?} is not the one that was due")));
            }
            self.completed += 1;
            return Ok(true);
        }
        match (success.immediate_data(), success.scattered_bytes()) {
            (Some(immediate), Some(bytes)) => self.arrivals.push_back(Arrival { immediate, bytes }),
            _ => return Err(Error::Protocol(format!("{success:?} has no immediate"))),
        }
        Ok(true)
    }

    /// Waits until `ready` gives something; it is asked after each completion.
    fn until<T>(
        &mut self,
        stop: &Stop<'_>,
        mut ready: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Error> {
        let mut wait = Wait::new(stop);
        loop {
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            if self.poll()? {
                wait = Wait::new(stop);
            } else {
                wait.pause()?;
            }
        }
    }

    /// Waits for a message of the peer.
    pub(crate) fn arrival(&mut self, stop: &Stop<'_>) -> Result<Arrival, Error> {
        self.until(stop, |connection| connection.arrivals.pop_front())
    }

    /// Waits until something [can be sent](Self::can_send).
    pub(crate) fn room(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        self.until(stop, |connection| connection.can_send().then_some(()))
    }

    /// Waits until [everything is sent](Self::all_sent).
    pub(crate) fn drained(&mut self, stop: &Stop<'_>) -> Result<(), Error> {
        self.until(stop, |connection| connection.all_sent().then_some(()))
    }
}

//! The header of a queue pair. The code of its sides and queues gets a reference to it, and does not depend on the
//! whole queue pair.

use std::marker::PhantomData;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use rdma_types::{AsyncEventKind, WcOpcode, WcStatus};

use crate::counters::SendCounts;
use crate::engine::adapter::Adapter;
use crate::engine::completion::work_completion::{Completion, JUNK, Side, Source};
use crate::engine::completion::{CompletionQueue, Reclaimed, Seat};
use crate::engine::events::report::Reporter;
use crate::engine::queue_pair::capacity::Capacity;
use crate::engine::queue_pair::service::Service;
use crate::engine::receive_queue::shared::SharedReceiveQueue;
use crate::engine::receive_queue::{Receive, ReceiveQueue, ReceiveSlots, Waiter};
use crate::engine::wire::faults::QueuePairFaults;
use crate::fabric::deferred::Deferrable;
use crate::fabric::run_queue::{Entry, Task};
use crate::memory::grace_period::Visit;
use crate::memory::keys::Keys;
use crate::memory::protection::ProtectionDomain;
use crate::sync::{Line, Lock};

/// A queue pair, as seen by code that has only its header.
pub(crate) trait Owner: Task + Waiter + Deferrable {
    /// Moves the queue pair to error and flushes both queues, oldest request first. Does nothing if an incarnation is
    /// given and the queue pair was reset since. Reports the event unless one was reported since the last reset. The
    /// caller holds no lock except the receive side of an inbox.
    fn enter_error(&self, incarnation: Option<u32>, event: Option<AsyncEventKind>);

    /// Completes the requests that the peer is known to have executed: they have succeeded, whatever happens next. The
    /// caller holds no lock except the receive side of an inbox.
    fn complete_executed(self: Arc<Self>);
}

/// The header of a queue pair. Its plain fields do not change while the queue pair lives.
#[derive(Debug)]
pub(crate) struct Station {
    /// Never 0, and unique in the fabric: no other queue pair and no protection domain has this number. Windows that
    /// are bound to the queue pair use it as their scope.
    pub(crate) id: u64,
    pub(crate) qpn: u32,
    pub(crate) service: Service,
    pub(crate) adapter: &'static Adapter,
    pub(crate) pd: Arc<ProtectionDomain>,
    /// The number of `pd`, kept here because every request needs it.
    pub(crate) pd_number: u64,
    /// Whether a post executes its requests before it returns.
    pub(crate) immediate: bool,
    /// Whether the queue pair uses packets, according to its last connection. A post only selects its fast path by this.
    pub(crate) uses_packets: AtomicBool,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) receive_cq: Arc<CompletionQueue>,
    pub(crate) capacity: Capacity,
    /// Whether every send request is signaled.
    pub(crate) signal_all: bool,
    pub(super) send_seat: Seat,
    pub(super) receive_seat: Seat,
    pub(crate) reclaimed: Arc<Reclaimed>,
    pub(crate) entry: Entry,
    pub(crate) reporter: Reporter,
    pub(crate) counts: Line<SendCounts>,
    pub(crate) receive: Line<Lock<ReceiveQueue>>,
    /// The slots for the requests of `receive`. They are outside its lock, because the responder reads them without it.
    pub(crate) receives: ReceiveSlots,
    /// The queue from which receive requests are taken, if it is not the queue pair's own.
    pub(crate) shared: Option<Arc<SharedReceiveQueue>>,
    /// The number of the domain that the elements of receive requests are checked against.
    pub(crate) receive_pd_number: u64,
    /// The faults of the queue pair's requests and packets, if the device has such faults.
    pub(crate) faults: Option<Box<QueuePairFaults>>,
    /// The queue pair itself.
    pub(crate) owner: Weak<dyn Owner>,
}

impl Station {
    /// Builds the completion of a failed send request, whose number is one less than `upto`. Polling it releases the
    /// slots of this and all earlier requests.
    pub(crate) fn failed_send(&self, wr_id: u64, upto: u32, status: WcStatus) -> Completion {
        Completion {
            wr_id,
            status,
            opcode: WcOpcode::SEND,
            byte_len: JUNK,
            imm: JUNK,
            flags: 0,
            qpn: self.qpn,
            vendor_err: status.raw(),
            source: Source::UNDEFINED,
            solicited: false,
            side: Side::Send,
            upto,
        }
    }

    pub(crate) fn failed_receive(&self, receive: &Receive, status: WcStatus) -> Completion {
        Completion {
            side: Side::Receive,
            ..self.failed_send(receive.wr_id, receive.index.wrapping_add(1), status)
        }
    }

    /// Returns the keys of the queue pair's own domain.
    #[inline(always)]
    pub(crate) fn keys<'a>(&'a self, _visit: &'a Visit) -> Keys<'a> {
        let (regions, pd) = (&self.adapter.memory.regions, self.pd_number);
        Keys { regions, visit: PhantomData, pd, queue_pair: self.id }
    }

    /// Returns the keys for the elements of receive requests.
    #[inline(always)]
    pub(crate) fn receive_keys<'a>(&'a self, visit: &'a Visit) -> Keys<'a> {
        Keys { pd: self.receive_pd_number, ..self.keys(visit) }
    }

    #[inline]
    pub(crate) fn push_send(&self, completion: Completion) {
        self.send_cq.push(self.send_seat, completion);
    }

    #[inline]
    pub(crate) fn push_receive(&self, completion: Completion) {
        self.receive_cq.push(self.receive_seat, completion);
    }

    /// Wakes a requester that waits for a receive request here. It then finds that the responder is gone.
    pub(crate) fn dismiss_waiter(&self, receive: &mut ReceiveQueue) {
        let of_shared = || self.shared.as_ref()?.dismiss_waiter(self.id);
        let waiter = receive.waiter.take().or_else(of_shared);
        if let Some(requester) = waiter.and_then(|waiter| waiter.upgrade()) {
            requester.receiver_has_gone();
        }
    }

    /// Returns the queue pair as an entry of a run queue.
    pub(crate) fn driven(&self) -> Weak<dyn Task> {
        self.owner.clone()
    }

    /// Returns the queue pair as a waiter for a receive request.
    pub(crate) fn waiter(&self) -> Weak<dyn Waiter> {
        self.owner.clone()
    }
}

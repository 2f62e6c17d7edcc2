//! A queue pair's implementations of the traits through which lower modules use it.

use std::sync::Arc;

use rdma_types::{AsyncEventKind, QpState, Qpn};

use crate::address::{Group, Path};
use crate::counters::{Counters, Counting};
use crate::device::Delivery;
use crate::engine::aftermath::Aftermath;
use crate::engine::completion::User;
use crate::engine::queue_pair::QueuePair;
use crate::engine::receive_queue::Waiter;
use crate::engine::requester::drive::Work;
use crate::engine::requester::peer::{DatagramReceiver, Near};
use crate::engine::requester::side::{Blocked, SendSide};
use crate::engine::responder::side::Responder;
use crate::engine::responder::wire::Continuation;
use crate::engine::station::Owner;
use crate::engine::turn::Turn;
use crate::engine::wire::{Mailbox, Outlet};
use crate::fabric::deferred::Deferrable;
use crate::fabric::run_queue::{Entry, Task};
use crate::sync::{Lock, locked};

impl Counting for QueuePair {
    fn add_to(&self, sum: &mut Counters) {
        {
            let send = self.send.lock();
            sum.sent_pkts += send.executed - self.counts.local.get();
            sum.rdma_sends += self.counts.sends.get();
            sum.mapped_requests += self.counts.mapped.get();
            sum.sent_bytes += send.bytes;
        }
        let responder = self.responder.lock();
        sum.rcvd_pkts += responder.executed;
        sum.rdma_recvs += responder.receives;
        sum.rcvd_bytes += responder.bytes;
    }
}

/// The maximum number of turns that send answers before the completions that wait for these answers are published. A
/// ring between processes holds the answers of this many turns.
const ANSWERS: u32 = 4;

impl Task for QueuePair {
    fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Sends some of this queue pair's packets, starting with answers to its peer.
    fn run(self: Arc<Self>) -> bool {
        let mut aftermath = Aftermath::default();
        let answers = self.responder.lock().transmit(&self, &mut aftermath);
        aftermath.flush(&self);
        let requests = self.send.lock().transmit(&self, &mut aftermath);
        aftermath.flush(&self);
        answers || requests
    }

    /// Completes the executed requests at once, unless a turn has more to do.
    fn word_has_changed(self: Arc<Self>) {
        let mut aftermath = Aftermath::default();
        let Some(mut send) = self.send.lock_if(|| false) else { return self.entry.queue() };
        let is_all = send.complete_executed_alone(&self, &mut aftermath);
        drop(send);
        aftermath.flush(&self);
        if !is_all {
            self.entry.queue();
        }
    }

    fn expire(self: Arc<Self>) {
        let mut aftermath = Aftermath::default();
        // If this process was stopped or got no processor time, the answer may already have arrived.
        let late = self.send.lock().has_expired(&self);
        if late && let Some(link) = self.device.fabric.polled.get() {
            link.catch_up();
        }
        self.send.lock().expire(&self, &mut aftermath);
        aftermath.flush(&self);
    }
}

impl QueuePair {
    /// Sends most or all of the answers owed to the peer. The caller holds no lock except the receive side of an
    /// inbox.
    pub(crate) fn answer(self: &Arc<Self>) {
        let mut aftermath = Aftermath::default();
        let more = (0..ANSWERS).all(|_| self.responder.lock().transmit(self, &mut aftermath));
        aftermath.flush(self);
        if more {
            self.entry.queue();
        }
    }

    /// Completes the requests that the peer has executed. Returns `None`, and completes nothing, if another thread is using
    /// the send side and `may_wait` is false.
    pub(crate) fn complete_executed_if(self: &Arc<Self>, may_wait: bool) -> Option<()> {
        let mut aftermath = Aftermath::default();
        self.send.lock_if(|| may_wait)?.complete_executed(self, &mut aftermath);
        aftermath.flush(self);
        Some(())
    }

    /// Acknowledges received requests that are not acknowledged yet. The caller holds no lock.
    pub(crate) fn answer_now(self: &Arc<Self>) {
        if self.responder.lock().owes_acknowledgement() {
            self.answer();
            self.device.fabric.run_queue.run();
        }
    }
}

impl Owner for QueuePair {
    fn enter_error(&self, incarnation: Option<u32>, event: Option<AsyncEventKind>) {
        let mut attributes = locked(&self.attributes);
        if incarnation.is_some_and(|incarnation| incarnation != attributes.incarnation)
            || attributes.settings.state == QpState::RESET
        {
            return;
        }
        if let Some(event) = event
            && !attributes.reported
        {
            attributes.reported = true;
            self.reporter.report(event);
        }
        attributes.settings.state = QpState::ERR;
        self.flush();
    }

    fn complete_executed(self: Arc<Self>) {
        let _ = self.complete_executed_if(true);
    }
}

impl Near for QueuePair {
    #[inline(always)]
    fn send_side(&self) -> &Lock<SendSide<Self>> {
        &self.send
    }

    #[inline(always)]
    fn responder(&self) -> &Lock<Responder> {
        &self.responder
    }

    fn arrived(&self) -> u64 {
        self.arrived_for(self.qpn)
    }

    fn lid(&self) -> u16 {
        self.device.identity.lid
    }

    fn find_peer(&self, path: Option<&Path>, number: u32) -> Option<Arc<Self>> {
        self.device.find_peer(path, number)
    }

    fn receiver(&self, path: &Path, number: u32) -> DatagramReceiver<Self> {
        match self.device.datagram_delivery(path, number) {
            Delivery::Wire(outlet) => DatagramReceiver::Wire(outlet),
            Delivery::Direct(there) => {
                let found = there.and_then(|there| there.queue_pair(number));
                found.map_or(DatagramReceiver::Nobody, DatagramReceiver::Direct)
            }
        }
    }

    fn inboxes_of(&self, group: Group) -> impl Iterator<Item = &'static dyn Mailbox> {
        let device = self.device;
        let by_packets = device.devices_of(group).filter(|there| device.sends_packets_to(there));
        by_packets.map(|there| &**there.inbox(Qpn::MULTICAST.get()) as &dyn Mailbox)
    }

    fn members_of(&self, group: Group) -> impl Iterator<Item = Arc<Self>> {
        let device = self.device;
        let others = device.devices_of(group).filter(|there| !device.sends_packets_to(there));
        let up = others.filter(|there| there.port_is_up());
        up.flat_map(move |there| there.groups.members(group))
    }

    fn outlet_from(&self, path: &Path) -> Option<Outlet> {
        self.device.outlet_from(path)
    }
}

impl User for QueuePair {
    fn completion_is_lost(&self) {
        self.enter_error(None, Some(AsyncEventKind::QP_FATAL));
    }
}

impl Deferrable for QueuePair {
    fn step(self: Arc<Self>, requests: u32) {
        let Some(deferred) = &self.device.deferred else { return };
        let mut aftermath = Aftermath::default();
        {
            let mut send = self.send.lock();
            send.pending = false;
            if send.blocked == Blocked::No {
                send.drive(&self, Work::Turn(requests), &mut aftermath);
            }
            send.add_pending(&self, deferred);
        }
        aftermath.settle(&self);
    }
}

impl Waiter for QueuePair {
    #[cold]
    fn receiver_is_ready(self: Arc<Self>, turn: &mut Turn) -> bool {
        let mut aftermath = Aftermath::default();
        {
            let mut send = self.send.lock();
            // A requester that no longer waits was reset, or has given up.
            if let Blocked::NotReady { .. } = send.blocked {
                send.take_part(&self, turn, &mut aftermath);
            }
        }
        let continuation = self.responder.lock().handle_posted_receive();
        let is_far = !matches!(continuation, Continuation::Nothing);
        match continuation {
            Continuation::Nothing => {}
            Continuation::Refusal => self.entry.queue(),
            Continuation::Packet(letter) => {
                let inbox = self.device.inbox(self.qpn);
                inbox.arrive(letter.in_buffer(inbox.buffer_at_once()));
            }
        }
        aftermath.settle(&self);
        is_far
    }

    fn receiver_has_gone(&self) {
        self.entry.wake();
    }
}

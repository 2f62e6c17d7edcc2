//! The queue pair as those see it who know no queue pairs.

use std::sync::Arc;

use crate::counters::{Counters, Counting};
use crate::engine::queue_pair::QueuePair;
use crate::engine::queue_pair::aftermath::Aftermath;
use crate::fabric::clock::Time;
use crate::fabric::turns::{Driven, Place};

impl Counting for QueuePair {
    fn add_to(&self, sum: &mut Counters) {
        {
            let send = self.send.lock();
            sum.sent_pkts += send.executed - self.counts.local.get();
            sum.rdma_sends += self.counts.sends.get();
        }
        let responder = self.responder.lock();
        sum.rcvd_pkts += responder.executed;
        sum.rdma_recvs += responder.receives;
    }
}

/// How many turns of answers may leave before a completion that waits for them: as much as a ring between processes
/// holds.
const ANSWERS: u32 = 4;

impl Driven for QueuePair {
    fn place(&self) -> &Place {
        &self.place
    }

    /// Sends some of what this queue pair has to send: first what it owes its peer.
    fn take_turn(self: Arc<Self>) -> bool {
        let mut aftermath = Aftermath::default();
        let answers = self.responder.lock().transmit(&self, &mut aftermath);
        aftermath.flush(&self);
        let requests = self.send.lock().transmit(&self, &mut aftermath);
        aftermath.flush(&self);
        answers || requests
    }

    fn call(&self) {
        self.alarm.set(Time::AT_ONCE);
    }
}

impl QueuePair {
    /// Has what it owes its peer leave, or the most of it. The caller holds no lock but the receive side of the device.
    pub(crate) fn answer(self: &Arc<Self>) {
        let mut aftermath = Aftermath::default();
        let more = (0..ANSWERS).all(|_| self.responder.lock().transmit(self, &mut aftermath));
        aftermath.flush(self);
        if more {
            self.device.fabric.unsettled.note_turn(self);
        }
    }

    /// Acknowledges what was taken, if that was not done yet. The caller holds no lock.
    pub(crate) fn answer_now(self: &Arc<Self>) {
        if self.responder.lock().owes_acknowledgement() {
            self.answer();
            self.device.fabric.unsettled.settle();
        }
    }
}

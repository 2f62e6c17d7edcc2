//! The queue pair as those see it who know no queue pairs.

use crate::counters::{Counters, Counting};
use crate::engine::queue_pair::QueuePair;

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

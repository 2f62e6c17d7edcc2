//! Executing messages of one packet without a packet.

use rdma_types::Psn;

use crate::engine::responder::inbound::Inbound;
use crate::engine::responder::side::Responder;
use crate::engine::responder::wire::{Protocol, Wire};
use crate::engine::station::Station;
use crate::engine::wire::letter::ExecutedWords;
use crate::engine::wire::single::Single;
use crate::memory::copy::{Data, Segment};
use crate::memory::grace_period::Visit;

impl Wire {
    /// Returns true if this message is the next one to execute, and neither it nor an earlier one needs an answer.
    fn expects(&self, single: &Single) -> bool {
        let Protocol::Reliable(protocol) = &self.protocol else { return false };
        let waits = self.ready || self.expects_kept || self.kept.is_some();
        self.has_received && !waits && protocol.expects_send(single.psn, single.length.into())
    }

    /// Records that the [expected](Self::expects) message was executed. Returns the PSN that is expected next.
    fn has_executed_send(&mut self) -> Psn {
        if let Protocol::Reliable(protocol) = &mut self.protocol {
            protocol.has_executed_send();
        }
        self.psn()
    }
}

impl Responder {
    /// Executes a message of one packet, if it is the next one, and finds a receive request that it fits. Otherwise returns
    /// false, and the message must arrive as a packet. That packet uses the receive request that this call may have
    /// taken.
    #[inline]
    pub(crate) fn receive_single(
        &mut self,
        own: &Station,
        single: &Single,
        data: &[Segment],
        words: &dyn ExecutedWords,
    ) -> bool {
        let is_of_peer = self.path.is_some_and(|path| single.path.is_reverse_of(&path));
        // Completions stay in order, so none may be held back for its acknowledgement.
        if !is_of_peer || !self.is_ready() || self.has_held() || self.unflushed {
            return false;
        }
        if !self.wire.as_ref().is_some_and(|wire| wire.expects(single)) {
            return false;
        }
        let visit = Visit::begin();
        let reach = own.adapter.later();
        let mut inbound = Inbound { own, side: self, visit: &visit, reach };
        let (operation, length) = (single.operation(), u64::from(single.length));
        let is_placed = inbound.begin(&operation)
            && inbound.place(&operation, length, Data::Segments(data), (0, length)).is_ok();
        let Some(wire) = inbound.side.wire.as_mut().filter(|_| is_placed) else { return false };
        // The peer learns of the execution before the program can see the completion.
        words.store(single.word, wire.has_executed_send());
        inbound.complete(&operation, length);
        true
    }
}

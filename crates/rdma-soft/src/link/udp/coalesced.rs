//! Coalesces consecutive packets of a message into a burst, like the one in which a device sends them.

use rdma_proto::wire::{Headers, Operation};
use rdma_proto::{Burst, Last};

/// A burst to which packets can be added.
#[derive(Debug)]
pub(super) struct CoalescedBurst {
    pub(super) burst: Burst,
    /// Whether the burst can take no further packet.
    complete: bool,
}

impl CoalescedBurst {
    /// Starts a burst with a packet that has `length` bytes of payload.
    pub(super) fn of(headers: Headers, length: usize) -> Self {
        let bth = &headers.bth;
        let operation = bth.opcode.operation();
        let begins = matches!(
            operation,
            Operation::SendFirst
                | Operation::SendMiddle
                | Operation::RdmaWriteMiddle
                | Operation::RdmaReadResponseMiddle
        );
        // Only the last packet of a run can have one of these properties.
        let plain = !bth.solicited && !bth.ack_request;
        let complete = !begins || !plain || length == 0 || bth.pad_count.get() != 0;
        Self { burst: Burst::single(headers, length), complete }
    }

    /// Adds the next packet, if it belongs to the run.
    pub(super) fn extend(&mut self, headers: &Headers, length: usize) -> bool {
        let Burst { header, segment, segments, length: before, .. } = self.burst;
        if self.complete || length == 0 || length > segment.into() {
            return false;
        }
        let Ok(added) = u32::try_from(length) else { return false };
        let of_message = headers.bth.opcode.service() == header.bth.opcode.service()
            && header.bth.opcode.operation().goes_on_with(headers.bth.opcode.operation());
        let (Some(segments), true) = (segments.checked_add(1), of_message) else { return false };
        let last = Some(Last::of(headers));
        let longer = Burst { last, segments, length: before + added, ..self.burst };
        if longer.headers(segments - 1) != *headers {
            return false;
        }
        self.complete = !is_middle(&longer, headers) || length < segment.into();
        self.burst = longer;
        true
    }
}

/// Returns true if the last packet looks like a middle packet, so that more may follow.
fn is_middle(burst: &Burst, last: &Headers) -> bool {
    let segments = burst.segments.saturating_add(1);
    Burst { segments, ..*burst }.headers(burst.segments - 1) == *last
}

//! Executing requests without packets.

use rdma_types::{QpState, WcStatus as Status};

use crate::engine::aftermath::Aftermath;
use crate::engine::operation::Opcode;
use crate::engine::requester::peer::Near;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::{Requester, SendSide};
use crate::engine::requester::wire::mapped::{Outcome, Part, Placed, bytes_without_packets};
use crate::engine::requester::wire::{Protocol, Wire};
use crate::engine::turn::{Extent, STRETCH_BYTES, TURN_BYTES};
use crate::engine::wire::Word;
use crate::engine::wire::grant::Grant;
use crate::memory::copy::Reach;
use crate::memory::grace_period::Visit;

/// The least number of bytes that count for a request, so that a turn does not execute too many short ones.
const LEAST: u64 = 256;

/// The result of an attempt to execute the next request.
enum Step {
    Done,
    /// Another turn executes the rest.
    Later,
    /// The next request goes as packets, or waits.
    Packets,
}

impl<P: Near> SendSide<P> {
    /// Executes requests without packets, as far as grants permit. Returns true if another turn executes more.
    pub(super) fn execute_mapped(&mut self, own: &P, aftermath: &mut Aftermath) -> bool {
        let mut bytes = if self.posts.is_some() { STRETCH_BYTES } else { TURN_BYTES };
        loop {
            match self.execute_next(own, &mut bytes, aftermath) {
                Step::Done => {}
                Step::Later => return true,
                Step::Packets => return false,
            }
        }
    }

    /// Executes the next request, or a part of at most `bytes` bytes.
    fn execute_next(&mut self, own: &P, bytes: &mut u64, aftermath: &mut Aftermath) -> Step {
        let Self { queue, requester, wire: Some(wire), posts, state, .. } = self else {
            return Step::Packets;
        };
        let Wire {
            protocol: Protocol::Reliable(protocol),
            word: Some(word),
            mapped,
            head,
            mtu,
            ..
        } = &mut **wire
        else {
            return Step::Packets;
        };
        mapped.update(word, *head);
        let next = protocol.begun();
        let found =
            if mapped.grants.is_empty() || *state != QpState::RTS || !own.adapter.port_is_up() {
                None
            } else {
                mapped.check(queue, *head, next);
                queue.at(next.wrapping_sub(*head) as usize)
            };
        mapped.held = None;
        // Kept only if this call or a later one continues the same request.
        let from = std::mem::take(&mut mapped.copied);
        let Some((request, payload)) = found else { return Step::Packets };
        if mapped.placed.is_some_and(|placed| placed.request == next) {
            // The link had no space for its packet.
            mapped.hold_after(queue, *head, next);
            return Step::Packets;
        }
        let (operation, length) = (&request.operation, payload.length());
        let Some((grant, remote)) = mapped.find(operation, length) else { return Step::Packets };
        if !protocol.can_skip() {
            // If grants cover all requests in flight, this one waits for them: a stream of requests would otherwise go
            // as packets forever.
            mapped.held = mapped.covers_all_since(*head).then_some(next);
            return Step::Packets;
        }
        if *bytes == 0 || word.carrier().has_ended() {
            (mapped.held, mapped.copied) = (Some(next), from);
            return Step::Later;
        }
        let is_posted = posts.is_some_and(|posts| queue.len() <= posts as usize);
        let reach = if is_posted { Reach::Mapped } else { own.adapter.later() };
        let all = bytes_without_packets(operation.opcode, length, *mtu);
        let to = Extent::Bytes(*bytes).end(from, all);
        let part = Part { operation, remote, reach, from, to };
        let result = match requester.execute(own, word, grant, &part, payload) {
            Outcome::Not => {
                mapped.drop_invalid();
                return Step::Packets;
            }
            Outcome::Executed if to < all => {
                mapped.copied = to;
                *bytes = bytes.saturating_sub(to - from);
                return Step::Done;
            }
            Outcome::Executed => Ok(length),
            Outcome::Lost => Err(Status::LOC_PROT_ERR),
        };
        *bytes = bytes.saturating_sub((to - from).max(LEAST));
        own.counts.mapped.count();
        if operation.opcode == Opcode::WriteWithImm {
            // It fits, because a message has at most 2^31 bytes.
            let bytes = u32::try_from(to).unwrap_or(u32::MAX);
            mapped.placed = Some(Placed { request: next, bytes, is_stranded: false });
            mapped.hold_after(queue, *head, next);
            return Step::Packets;
        }
        protocol.skip();
        *head = head.wrapping_add(1);
        let upto = self.head_index().wrapping_add(1);
        self.queue.pop();
        self.finish(own, &request, upto, result, aftermath);
        Step::Done
    }

    /// Executes a request without packets, instead of queuing it. Returns its result, or `None` unless a grant covers the
    /// request, which is not long. The queue is empty.
    #[inline]
    pub(in crate::engine::requester) fn execute_posted(
        &mut self,
        own: &P,
        request: &Request,
        payload: Payload<'_>,
    ) -> Option<Result<u64, Status>> {
        let Self { requester, wire: Some(wire), .. } = self else { return None };
        let Wire { protocol: Protocol::Reliable(protocol), word: Some(word), mapped, head, .. } =
            &mut **wire
        else {
            return None;
        };
        mapped.update(word, *head);
        let may_run = protocol.can_skip() && own.adapter.port_is_up();
        if mapped.grants.is_empty() || !may_run || word.carrier().has_ended() {
            return None;
        }
        let (operation, length) = (&request.operation, payload.length());
        let (grant, remote) = mapped.find(operation, length)?;
        if length > STRETCH_BYTES || operation.opcode == Opcode::WriteWithImm {
            return None;
        }
        let part = Part { operation, remote, reach: Reach::Mapped, from: 0, to: length };
        let result = match requester.execute(own, word, grant, &part, payload) {
            Outcome::Not => {
                mapped.drop_invalid();
                return None;
            }
            Outcome::Executed => Ok(length),
            Outcome::Lost => Err(Status::LOC_PROT_ERR),
        };
        own.counts.mapped.count();
        protocol.skip();
        *head = head.wrapping_add(1);
        Some(result)
    }
}

impl<P: Near> Requester<P> {
    /// Executes a part of a request under a grant, within a visit.
    #[inline(always)]
    fn execute(
        &mut self,
        own: &P,
        word: &Word,
        grant: &dyn Grant,
        part: &Part<'_>,
        payload: Payload<'_>,
    ) -> Outcome {
        let visit = Visit::begin();
        // If local memory cannot be used, the protocol reports that.
        let local = self.locate_payload(own, &visit, part.operation.opcode, payload);
        let outcome = match local {
            Ok(_) => word.visit(|| match grant.is_valid() {
                true => part.execute(&self.local),
                false => Outcome::Not,
            }),
            Err(_) => Outcome::Not,
        };
        self.local.clear();
        outcome
    }
}

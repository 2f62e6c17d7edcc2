//! A send queue as the protocol sees it.

use rdma_proto::{Kind, MessageEnd, MessageStart, Remote, Work};
use rdma_types::{AccessFlags, Rkey, WcStatus as Status};

use crate::engine::adapter::faults::Injected;
use crate::engine::aftermath::Aftermath;
use crate::engine::operation::Opcode;
use crate::engine::requester::local;
use crate::engine::requester::peer::Near;
use crate::engine::requester::request::{Payload, Request};
use crate::engine::requester::side::{SendSide, local_length};
use crate::engine::requester::wire::mapped::Placed;
use crate::engine::wire::in_ring::{self, InRing};
use crate::engine::wire::run::Run;
use crate::memory::copy::{Data, Reach};
use crate::memory::grace_period::Visit;
use crate::memory::region::LOCAL_READ;

/// A send queue as the protocol sees it, with its lock held.
pub(super) struct Queue<'a, P> {
    pub(super) own: &'a P,
    pub(super) send: &'a mut SendSide<P>,
    pub(super) head: u32,
    pub(super) begun: u32,
    pub(super) admitted: u32,
    /// The number of the first request that this thread is posting, if any.
    pub(super) posted: Option<u32>,
    pub(super) aftermath: &'a mut Aftermath,
    /// The request whose last packet alone is sent, if any.
    pub(super) placed: Option<Placed>,
    /// The number of bytes that were placed before those that were gathered last.
    pub(super) gathered_after: u32,
    /// The packets that have arrived.
    pub(super) run: Run<'a>,
    /// The place of the payload that has arrived or is being sent, if a buffer represents it.
    pub(super) in_ring: Option<InRing>,
}

impl<P: Near> Queue<'_, P> {
    fn at(&self, n: u32) -> Option<(Request, Payload<'_>)> {
        self.send.queue.at(n.wrapping_sub(self.head) as usize)
    }

    /// Returns the status with which a fault makes this request fail.
    fn injected(&self, n: u32) -> Option<Status> {
        let faults = self.own.faults.as_ref()?;
        let number = self.send.head_index().wrapping_add(n.wrapping_sub(self.head));
        faults.failure(number.into())
    }

    /// Returns the number of bytes of a request that were copied without packets.
    fn placed(&self, n: u32) -> u32 {
        self.placed.filter(|placed| placed.request == n).map_or(0, |placed| placed.bytes)
    }

    /// Finds errors on this side before anything is sent.
    fn check(&self, request: &Request, payload: Payload<'_>) -> Result<u32, Status> {
        let opcode = request.operation.opcode;
        let length = local_length(opcode, payload.length())?;
        if !payload.is_inline() {
            let access = access(opcode);
            let visit = Visit::begin();
            let keys = self.own.keys(&visit);
            for sge in payload.sges() {
                keys.find(sge.lkey, sge.addr, sge.length.into(), access)
                    .ok_or(Status::LOC_PROT_ERR)?;
            }
        }
        Ok(length)
    }

    /// Writes the data of a READ response to its destination.
    fn deliver_bytes(&mut self, n: u32, at: u32, payload: &[u8]) -> Result<(), Status> {
        let SendSide { queue, requester, .. } = &mut *self.send;
        let found = queue.at(n.wrapping_sub(self.head) as usize);
        let (request, room) = found.ok_or(Status::LOC_QP_OP_ERR)?;
        let visit = Visit::begin();
        requester.locate_payload(self.own, &visit, request.operation.opcode, room)?;
        let memory = self.in_ring.and_then(|in_ring| in_ring.memory(payload));
        let data = memory.as_ref().map_or(Data::Bytes(payload), |memory| Data::Part(memory));
        let range = (u64::from(at), u64::from(at) + payload.len() as u64);
        let delivered = self.own.adapter.later().put(data, &requester.local, range.0, range.1);
        requester.local.clear();
        delivered.map_err(|_| Status::LOC_PROT_ERR)
    }

    /// Completes the oldest request.
    fn end(&mut self, n: u32, succeeded: Result<(), Status>) {
        debug_assert_eq!(n, self.head);
        let upto = self.send.head_index().wrapping_add(1);
        let Some((request, payload)) = self.send.queue.front() else { return };
        let bytes = payload.length();
        self.send.queue.pop();
        self.head = n.wrapping_add(1);
        let result = succeeded.map(|()| bytes);
        self.send.finish(self.own, &request, upto, result, self.aftermath);
    }
}

fn access(opcode: Opcode) -> u32 {
    if opcode.fetches() { AccessFlags::LOCAL_WRITE.bits() } else { LOCAL_READ }
}

impl<P: Near> Work for Queue<'_, P> {
    fn admitted(&self) -> u32 {
        self.admitted
    }

    fn request(&self, n: u32) -> rdma_proto::Wqe {
        let Some((request, payload)) = self.at(n) else {
            return rdma_proto::Wqe::Invalid(Status::LOC_QP_OP_ERR);
        };
        let operation = &request.operation;
        let is_new = n.wrapping_sub(self.begun).cast_signed() >= 0;
        if is_new && let Some(status) = self.injected(n) {
            return rdma_proto::Wqe::Invalid(status);
        }
        if operation.opcode.is_local() {
            return rdma_proto::Wqe::Local;
        }
        let length = match is_new {
            true => self.check(&request, payload),
            false => local_length(operation.opcode, payload.length()),
        };
        let length = match length {
            Ok(length) => length,
            Err(status) => return rdma_proto::Wqe::Invalid(status),
        };
        let placed = self.placed(n);
        let length = length.saturating_sub(placed);
        let va = operation.remote_address.wrapping_add(placed.into());
        let remote = Remote { va, rkey: Rkey::new(operation.rkey) };
        let atomic = |kind| MessageStart::atomic(kind, remote, operation.operand, operation.swap);
        let start = match operation.opcode {
            Opcode::Write | Opcode::WriteWithImm => {
                MessageStart::one_sided(Kind::Write, remote, length)
            }
            Opcode::Read => MessageStart::one_sided(Kind::Read, remote, length),
            Opcode::CompareAndSwap => atomic(Kind::CompareSwap),
            Opcode::FetchAndAdd => atomic(Kind::FetchAdd),
            _ => MessageStart::send(),
        };
        let opcode = operation.opcode;
        let with_imm = matches!(opcode, Opcode::SendWithImm | Opcode::WriteWithImm);
        let invalidates = opcode == Opcode::SendWithInvalidate;
        let end = MessageEnd {
            length,
            immediate: with_imm.then(|| u32::from_be(operation.imm)),
            invalidate: invalidates.then(|| Rkey::new(operation.imm)),
            solicited: operation.solicited,
        };
        rdma_proto::Wqe::Remote { start, end, fence: request.fence }
    }

    fn gather(&mut self, n: u32, at: u32, out: &mut [u8]) -> Result<(), Status> {
        let placed = self.placed(n);
        if placed > 0 && self.placed.is_some_and(|placed| placed.is_stranded) {
            return Err(Status::LOC_QP_OP_ERR);
        }
        let SendSide { queue, requester, .. } = &mut *self.send;
        let found = queue.at(n.wrapping_sub(self.head) as usize);
        let (request, payload) = found.ok_or(Status::LOC_QP_OP_ERR)?;
        let visit = Visit::begin();
        requester.locate_payload(self.own, &visit, request.operation.opcode, payload)?;
        let from = u64::from(placed) + u64::from(at);
        let is_posted = self.posted.is_some_and(|posted| n.wrapping_sub(posted).cast_signed() >= 0);
        // The memory of a request is mapped while the call that posts it runs.
        let reach = if is_posted { Reach::Mapped } else { self.own.adapter.later() };
        let collected = in_ring::collect(reach, (&requester.local, from), self.in_ring, out);
        requester.local.clear();
        self.gathered_after = placed;
        collected.map_err(|_| Status::LOC_PROT_ERR)
    }

    fn deliver(&mut self, n: u32, at: u32, payload: &[u8]) -> Result<(), Status> {
        // A request longer than the longest message was not sent.
        let length = self.at(n).and_then(|(_, room)| u32::try_from(room.length()).ok());
        let length = length.unwrap_or(0);
        let mut run = std::mem::take(&mut self.run);
        let delivered =
            run.place(at, payload, Some(length), |bytes| self.deliver_bytes(n, at, bytes));
        self.run = run;
        delivered
    }

    fn execute_local(&mut self, n: u32) -> Result<(), Status> {
        let (request, _) = self.at(n).ok_or(Status::LOC_QP_OP_ERR)?;
        local::execute(self.own, &request.operation)
    }

    fn done(&mut self, n: u32) {
        self.end(n, Ok(()));
    }

    fn failed(&mut self, n: u32, status: Status) {
        if self.injected(n) == Some(status)
            && let Some((Request { wr_id, .. }, _)) = self.at(n)
        {
            self.own.adapter.report_fault(Injected::Request { qpn: self.own.qpn, wr_id, status });
        }
        self.end(n, Err(status));
    }
}

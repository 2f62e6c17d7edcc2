//! The execution of a peer's requests. However a request arrived, only this code executes it.
//!
//! Keys are looked up again in each call, so that no address outlives the visit in which it was found. The requester
//! decides how much of a message arrives at a time. It calls `begin`, then `place`, `fetch` or `atomic` until the
//! message is complete, then `finish`.

use std::sync::{Arc, Weak};

use rdma_types::{AccessFlags, AsyncEventKind, Psn, WcOpcode, WcStatus as Status};

use crate::engine::aftermath::Aftermath;
use crate::engine::completion::work_completion::Source;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::receive_queue::{Waiter, Waits};
use crate::engine::responder::side::Responder;
use crate::engine::station::Station;
use crate::engine::wire::in_ring::{self, InRing};
use crate::engine::wire::letter::ExecutedWords;
use crate::memory::copy::{AtomicWord, Data, Fault, Reach, Segment};
use crate::memory::grace_period::Visit;

/// The refusal of a request: the status of the request, and that of the receive request that it took, if any. On a
/// reliable connection, a refusal moves the responder to error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) receive: Status,
    pub(crate) request: Status,
}

/// The refusal for a receive request whose memory cannot be used.
pub(super) const BAD_RECEIVE: Refused =
    Refused { receive: Status::LOC_PROT_ERR, request: Status::REM_OP_ERR };

/// The bytes at the start of a message that the requester has written itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Placed<'a> {
    pub(crate) bytes: u32,
    /// The memory that the requester's process checks, if the letter names any.
    pub(crate) words: Option<&'a Arc<dyn ExecutedWords>>,
}

/// The reason why a request that has begun cannot be completed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stop {
    /// The responder refuses the request.
    Refused(Refused),
    /// The requester's own memory was not mapped.
    Local,
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Returns the refusal of a request that is itself at fault, so that its receive request is only flushed.
fn fault_of_request(request: Status) -> Refused {
    Refused { receive: Status::WR_FLUSH_ERR, request }
}

/// Converts a fault in a copy to the responder's memory. `refused` applies if that memory is at fault.
pub(super) fn stop(fault: Fault, refused: Refused) -> Stop {
    match fault {
        Fault::Source => Stop::Local,
        Fault::Sink => Stop::Refused(refused),
    }
}

/// A responder that is ready for the requester, with its lock held.
pub(crate) struct Inbound<'a> {
    pub(crate) own: &'a Station,
    pub(crate) side: &'a mut Responder,
    pub(crate) visit: &'a Visit,
    /// Whether registered memory may have been unmapped.
    pub(crate) reach: Reach,
}

impl Inbound<'_> {
    /// Begins or continues a message. Takes a receive request if the message needs one and has none yet. Returns true
    /// if the message can continue.
    #[inline(always)]
    pub(crate) fn begin(&mut self, operation: &Operation) -> bool {
        !operation.opcode.takes_receive() || self.side.take_receive(self.own)
    }

    /// Looks for a receive request again, after a message found none. If there is still none, returns false: the
    /// receiver is not ready. The requester is notified once a request is posted, so it need not retry.
    #[cold]
    pub(crate) fn begin_or_wait(&mut self, requester: Weak<dyn Waiter>) -> bool {
        let waits = Waits { waiter: requester, is_far: false };
        let taken = self.side.take_receive_or_wait(self.own, waits);
        if !taken {
            self.own.adapter.tally.rare.send_rnr_err.count();
        }
        taken
    }

    /// Returns the progress of a message, given the number of bytes that the requester has copied. Returns 0 if the
    /// responder was reset since or received another message, because its memory then holds another message's bytes.
    #[inline(always)]
    pub(crate) fn resume(&self, origin: u64, progress: u64) -> u64 {
        if progress > 0 && self.side.begun != origin { 0 } else { progress }
    }

    /// Writes the bytes `from..to` of a SEND or WRITE of `length` bytes to their destination.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        operation: &Operation,
        length: u64,
        data: Data<'_>,
        (from, to): (u64, u64),
    ) -> Result<(), Stop> {
        let (moved, refused) = if operation.opcode.is_send() {
            self.find_room(length)?;
            let moved = self.reach.put(data, &self.side.room, from, to);
            self.side.room.clear();
            (moved, BAD_RECEIVE)
        } else {
            let sink = self.remote(operation, length)?;
            let moved = self.reach.put(data, &[sink], from, to);
            (moved, fault_of_request(Status::REM_ACCESS_ERR))
        };
        moved.map_err(|fault| stop(fault, refused))
    }

    /// Copies to `out` the bytes `from..to` of the memory that a READ of `length` bytes requested.
    #[inline]
    pub(crate) fn fetch(
        &mut self,
        operation: &Operation,
        length: u64,
        out: &[Segment],
        (from, to): (u64, u64),
    ) -> Result<(), Stop> {
        let source = self.remote(operation, length)?;
        self.reach.transfer(&[source], out, from, to).map_err(|fault| match fault {
            Fault::Source => Stop::Refused(fault_of_request(Status::REM_ACCESS_ERR)),
            Fault::Sink => Stop::Local,
        })
    }

    /// Copies the data for one response packet of a READ of `length` bytes, starting at offset `at`.
    pub(crate) fn fetch_bytes(
        &mut self,
        operation: &Operation,
        length: u64,
        at: u64,
        (in_ring, out): (Option<InRing>, &mut [u8]),
    ) -> Result<(), Refused> {
        let source = self.remote(operation, length)?;
        let fetched = in_ring::collect(self.reach, (&[source], at), in_ring, out);
        fetched.map_err(|_| fault_of_request(Status::REM_ACCESS_ERR))
    }

    /// Checks whether a one-sided request may access its memory.
    pub(crate) fn check(&self, operation: &Operation, length: u64) -> Result<(), Refused> {
        self.remote(operation, length).map(drop)
    }

    /// Checks a WRITE that begins with placed bytes, and continues with the `length` bytes of its packet. The requester
    /// must also have the right to read the placed bytes, or already have the region's file. Otherwise, it could present
    /// old bytes, which it does not know, as its message.
    #[cold]
    pub(crate) fn check_placed(
        &self,
        operation: &Operation,
        length: u64,
        placed: Placed<'_>,
    ) -> Result<(), Refused> {
        let (key, bytes) = (operation.rkey, u64::from(placed.bytes));
        let refused = fault_of_request(Status::REM_ACCESS_ERR);
        let remote_address = operation.remote_address.checked_sub(bytes).ok_or(refused)?;
        let length = bytes.saturating_add(length);
        let check =
            |opcode| self.check(&Operation { opcode, remote_address, ..*operation }, length);
        check(Opcode::Write)?;
        // The right may have been taken away after the requester wrote the bytes.
        let has_file = || placed.words.is_some_and(|words| words.has_file(key));
        check(Opcode::Read).or_else(|refused| if has_file() { Ok(()) } else { Err(refused) })
    }

    /// Executes an atomic, and returns the previous value.
    #[cold]
    pub(crate) fn atomic(&mut self, operation: &Operation) -> Result<u64, Refused> {
        let invalid = || fault_of_request(Status::REM_INV_REQ_ERR);
        if !operation.remote_address.is_multiple_of(8) || !self.own.adapter.limits.features.atomics
        {
            return Err(invalid());
        }
        // The address in the request may be aligned although the memory's address in this process is not, if the region
        // was registered with a different `iova`.
        let word = AtomicWord::at(self.remote(operation, 8)?).ok_or_else(invalid)?;
        if !self.reach.finds(word) {
            return Err(fault_of_request(Status::REM_ACCESS_ERR));
        }
        Ok(match operation.opcode {
            Opcode::CompareAndSwap => word.compare_and_swap(operation.operand, operation.swap),
            _ => word.fetch_and_add(operation.operand),
        })
    }

    /// Makes the responder expect the message that follows a message of `packets` packets starting at number `psn`.
    #[inline(always)]
    pub(crate) fn expect_after(&mut self, psn: Psn, packets: u32) {
        self.side.psn = psn.wrapping_add(packets);
    }

    /// Records that a part of a message was received. Only the requester that sent this part can send the rest, and it
    /// may never do so.
    #[cold]
    pub(crate) fn pause(&mut self, origin: u64) {
        self.side.begun = origin;
    }

    /// Finishes a message: invalidates the key that it names, if any, and completes the receive request that it took,
    /// if any.
    #[inline(always)]
    pub(crate) fn finish(&mut self, operation: &Operation, length: u64) -> Result<(), Refused> {
        if operation.opcode == Opcode::SendWithInvalidate {
            self.invalidate(operation.imm)?;
        }
        self.complete(operation, length);
        Ok(())
    }

    /// Finishes a message that invalidates nothing: completes the receive request that it took, if any.
    #[inline(always)]
    pub(crate) fn complete(&mut self, operation: &Operation, length: u64) {
        let opcode = operation.opcode;
        if opcode.takes_receive() {
            let completion =
                if opcode.is_send() { WcOpcode::RECV } else { WcOpcode::RECV_RDMA_WITH_IMM };
            self.side.complete(self.own, completion, length, operation, 0, Source::UNDEFINED);
        }
        self.side.executed += 1;
        self.side.bytes += length;
    }

    /// Moves the responder to error because of a refused request. The caller answers with the refusal.
    #[cold]
    pub(crate) fn fail(&mut self, refused: Refused, aftermath: &mut Aftermath) {
        // IBTA volume 1, 11.6.3.3: local access violation, or invalid request.
        let event = match refused.request {
            Status::REM_ACCESS_ERR => AsyncEventKind::QP_ACCESS_ERR,
            _ => AsyncEventKind::QP_REQ_ERR,
        };
        self.side.room.clear();
        self.side.fail(self.own, refused.receive, event, aftermath);
    }

    /// Drops a message that an unreliable service cannot receive. The next message uses the same receive request (IBTA
    /// volume 1, 9.9.3, class D), unless it is from a shared queue. Such a receive request completes in error, because
    /// the other queue pairs would otherwise lose it (class E). If the receive request itself is bad, the queue pair
    /// fails (class A). However, a call can fail only one responder. If it has already failed another one, this message
    /// is only dropped as above. The queue pair then fails when a later message finds a bad receive request.
    #[cold]
    pub(crate) fn abandon(&mut self, refused: Refused, aftermath: &mut Aftermath) {
        self.side.room.clear();
        if refused.receive == Status::LOC_PROT_ERR && !aftermath.is_full() {
            self.side.fail(self.own, refused.receive, AsyncEventKind::QP_FATAL, aftermath);
        } else if self.own.shared.is_some()
            && let Some(receive) = self.side.current.take()
        {
            self.side.begun = 0;
            let status = match refused.receive {
                Status::WR_FLUSH_ERR => refused.request,
                status => status,
            };
            self.own.push_receive(self.own.failed_receive(&receive, status));
        }
    }

    /// Finds the memory of the current receive request, for a message of `length` bytes.
    #[inline(always)]
    pub(crate) fn find_room(&mut self, length: u64) -> Result<(), Refused> {
        let Responder { sges, room, .. } = &mut *self.side;
        room.clear();
        let access = AccessFlags::LOCAL_WRITE.bits();
        let fits = self.own.receive_keys(self.visit).find_all(sges, access, room);
        let fits = fits.ok_or(BAD_RECEIVE)?;
        if fits >= length {
            return Ok(());
        }
        Err(Refused { receive: Status::LOC_LEN_ERR, request: Status::REM_INV_REQ_ERR })
    }

    /// Returns the remote range of a one-sided request, if the request may access it.
    #[inline(always)]
    fn remote(&self, operation: &Operation, length: u64) -> Result<Segment, Refused> {
        let Self { own, side, visit, .. } = self;
        let access = operation.opcode.remote_access();
        let no_resource = operation.opcode.fetches() && side.max_rd_atomic == 0;
        if side.access & access == 0 || no_resource {
            return Err(fault_of_request(Status::REM_INV_REQ_ERR));
        }
        let (key, address) = (operation.rkey, operation.remote_address);
        own.keys(visit)
            .find(key, address, length, access)
            .ok_or(fault_of_request(Status::REM_ACCESS_ERR))
    }

    /// Invalidates the window that a send names, after its data has arrived and before its receive completes. The
    /// caller holds the responder's lock. Peers use a type 2 window only under this lock, so none is using the window
    /// now. If the key cannot be invalidated, the responder moves to error, but the send counts as delivered, as in
    /// `rxe_resp.c`.
    #[cold]
    fn invalidate(&self, key: u32) -> Result<(), Refused> {
        if self.own.pd.invalidate(key, self.own.id) {
            return Ok(());
        }
        Err(Refused { receive: Status::REM_INV_REQ_ERR, request: Status::SUCCESS })
    }
}

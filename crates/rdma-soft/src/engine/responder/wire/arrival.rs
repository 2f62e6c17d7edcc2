//! A responder as the protocol sees it.

use rdma_proto::{Delivered, Host, Kind, MessageEnd, MessageStart, Nak, Source, Stop};
use rdma_types::WcStatus as Status;

use crate::engine::adapter::notices::Reason;
use crate::engine::aftermath::Aftermath;
use crate::engine::operation::{Opcode, Operation};
use crate::engine::receive_queue::Waits;
use crate::engine::responder::datagram::{Arrived, Datagram};
use crate::engine::responder::inbound::{self, Inbound, Placed, Refused};
use crate::engine::responder::side::Responder;
use crate::engine::station::Station;
use crate::engine::wire::in_ring::InRing;
use crate::engine::wire::letter;
use crate::engine::wire::run::Run;
use crate::memory::copy::Data;
use crate::memory::grace_period::Visit;

/// The length of an atomic request.
const ATOMIC_BYTES: u64 = 8;

/// A responder as the protocol sees it, with its lock held.
pub(super) struct Arrival<'a> {
    pub(super) own: &'a Station,
    pub(super) side: &'a mut Responder,
    pub(super) aftermath: &'a mut Aftermath,
    /// The reason why the current request was refused.
    refused: Option<Refused>,
    /// Whether the current request needs a receive request, and has taken one. If not, a refusal of the current request
    /// does not affect a receive request that another request took.
    uses_receive: bool,
    /// The link's information about a datagram.
    pub(super) datagram: Option<letter::Datagram>,
    /// The reason why a datagram was dropped, if it was.
    pub(super) dropped: Option<Reason>,
    /// The bytes that the peer's process has written itself, before those of the packet.
    pub(super) placed: Placed<'a>,
    /// The received packets.
    pub(super) run: Run<'a>,
    /// The place of the payload that was received or is being sent, if a buffer represents it.
    pub(super) in_ring: Option<InRing>,
    /// Whether this queue pair waits to be notified of the next receive request when a packet finds none.
    pub(super) waits: bool,
}

impl<'a> Arrival<'a> {
    pub(super) fn new(
        own: &'a Station,
        side: &'a mut Responder,
        aftermath: &'a mut Aftermath,
    ) -> Self {
        let (refused, uses_receive, datagram, dropped) = (None, false, None, None);
        let (placed, run, in_ring, waits) = (Placed::default(), Run::default(), None, false);
        Self {
            own,
            side,
            aftermath,
            refused,
            uses_receive,
            datagram,
            dropped,
            placed,
            run,
            in_ring,
            waits,
        }
    }

    /// Runs `work` on the responder, within a separate visit.
    fn inbound<R>(&mut self, work: impl FnOnce(&mut Inbound<'_>, &mut Aftermath) -> R) -> R {
        let visit = Visit::begin();
        let (own, side, reach) = (self.own, &mut *self.side, self.own.adapter.later());
        work(&mut Inbound { own, side, visit: &visit, reach }, self.aftermath)
    }

    fn refuse(&mut self, refused: Refused) -> Stop {
        self.refused = Some(refused);
        Stop::Nak(match refused.request {
            Status::REM_INV_REQ_ERR => Nak::InvalidRequest,
            Status::REM_ACCESS_ERR => Nak::RemoteAccess,
            _ => Nak::RemoteOperational,
        })
    }

    /// Writes payload to its destination, `at` bytes after the start of the message.
    fn place_bytes(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop> {
        let operation = operation(start, None);
        // A failed copy of the whole run may have left a refusal.
        self.refused = None;
        self.uses_receive |= operation.opcode.is_send();
        let from = u64::from(at);
        let to = from + payload.len() as u64;
        let length = start.length.map_or(to, u64::from);
        let memory = self.in_ring.and_then(|in_ring| in_ring.memory(payload));
        let data = memory.as_ref().map_or(Data::Bytes(payload), |memory| Data::Part(memory));
        let placed = self.inbound(|inbound, _| inbound.place(&operation, length, data, (from, to)));
        placed.map_err(|stop| match stop {
            inbound::Stop::Refused(refused) => self.refuse(refused),
            // The bytes of a packet are always mapped, unless a process has removed pages of its ring.
            inbound::Stop::Local => Stop::Drop,
        })
    }

    /// Takes the receive request that a message needs.
    fn receive_for(&mut self, operation: &Operation) -> Result<(), Stop> {
        if self.inbound(|inbound, _| inbound.begin(operation)) || self.retry_receive() {
            self.uses_receive = true;
            return Ok(());
        }
        Err(Stop::NotReady)
    }

    /// Looks for a receive request again. If there is none, this queue pair is notified of the next one.
    #[cold]
    fn retry_receive(&mut self) -> bool {
        let waits = || Waits { waiter: self.own.waiter(), is_far: true };
        self.waits && self.side.take_receive_or_wait(self.own, waits())
    }
}

/// Returns the operation of a message, given the start of the message, and its end if that has arrived.
fn operation(start: &MessageStart, end: Option<&MessageEnd>) -> Operation {
    let immediate = end.and_then(|end| end.immediate);
    let invalidate = end.and_then(|end| end.invalidate);
    let opcode = match (start.kind, immediate, invalidate) {
        (Kind::Send, Some(_), _) => Opcode::SendWithImm,
        (Kind::Send, None, Some(_)) => Opcode::SendWithInvalidate,
        (Kind::Send, None, None) => Opcode::Send,
        (Kind::Write, Some(_), _) => Opcode::WriteWithImm,
        (Kind::Write, None, _) => Opcode::Write,
        (Kind::Read, ..) => Opcode::Read,
        (Kind::CompareSwap, ..) => Opcode::CompareAndSwap,
        (Kind::FetchAdd, ..) => Opcode::FetchAndAdd,
    };
    Operation {
        opcode,
        solicited: end.is_some_and(|end| end.solicited),
        imm: match (immediate, invalidate) {
            (Some(immediate), _) => immediate.to_be(),
            (None, Some(key)) => key.get(),
            (None, None) => 0,
        },
        remote_address: start.remote.va,
        rkey: start.remote.rkey.get(),
        operand: start.operand,
        swap: start.swap,
    }
}

impl Host for Arrival<'_> {
    fn begin(&mut self, start: &MessageStart) -> Result<(), Stop> {
        let operation = operation(start, None);
        if operation.opcode.is_send() {
            return self.receive_for(&operation);
        }
        self.uses_receive = false;
        let length = start.length.unwrap_or_default().into();
        let placed = self.placed;
        let checked = self.inbound(|inbound, _| match placed.bytes {
            0 => inbound.check(&operation, length),
            _ => inbound.check_placed(&operation, length, placed),
        });
        checked.map_err(|refused| self.refuse(refused))?;
        if operation.opcode == Opcode::Read {
            self.side.executed += 1;
            self.side.bytes += length;
        }
        Ok(())
    }

    fn place(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop> {
        let mut run = std::mem::take(&mut self.run);
        let placed =
            run.place(at, payload, start.length, |bytes| self.place_bytes(start, at, bytes));
        self.run = run;
        placed
    }

    fn fetch(&mut self, start: &MessageStart, at: u32, out: &mut [u8]) -> Result<(), Stop> {
        let operation = operation(start, None);
        let length = start.length.unwrap_or_default().into();
        let out = (self.in_ring, out);
        let fetched =
            self.inbound(|inbound, _| inbound.fetch_bytes(&operation, length, at.into(), out));
        fetched.map_err(|refused| self.refuse(refused))
    }

    fn atomic(&mut self, start: &MessageStart) -> Result<u64, Stop> {
        let operation = operation(start, None);
        let before = self.inbound(|inbound, _| inbound.atomic(&operation));
        let before = before.map_err(|refused| self.refuse(refused))?;
        self.side.executed += 1;
        self.side.bytes += ATOMIC_BYTES;
        Ok(before)
    }

    fn take_receive(&mut self, _start: &MessageStart) -> Result<(), Stop> {
        self.receive_for(&Operation { opcode: Opcode::WriteWithImm, ..Operation::EMPTY })
    }

    fn finish(&mut self, start: &MessageStart, end: &MessageEnd) -> Result<(), Stop> {
        let operation = operation(start, Some(end));
        let length = u64::from(self.placed.bytes) + u64::from(end.length);
        let is_send = operation.opcode.is_send();
        let finished = self.inbound(|inbound, aftermath| {
            if is_send && length == 0 {
                // The message had no bytes, so no packet has checked yet whether the receive request can be used.
                inbound.find_room(0)?;
            }
            match inbound.finish(&operation, length) {
                // The message was delivered; only the responder fails.
                Err(refused) if refused.request == Status::SUCCESS => {
                    inbound.fail(refused, aftermath);
                    Ok(())
                }
                finished => finished,
            }
        });
        finished.map_err(|refused| self.refuse(refused))
    }

    fn abandon(&mut self) {
        if let Some(refused) = self.refused.take().filter(|_| self.uses_receive) {
            self.inbound(|inbound, aftermath| inbound.abandon(refused, aftermath));
        }
    }

    fn fail(&mut self, nak: Nak) {
        let of_packet = Refused { receive: Status::WR_FLUSH_ERR, request: nak.status() };
        let refused = self.refused.take().unwrap_or(of_packet);
        self.inbound(|inbound, aftermath| inbound.fail(refused, aftermath));
    }

    fn datagram(&mut self, from: &Source, end: &MessageEnd, payload: &[u8]) -> Delivered {
        let Some(letter::Datagram { source, header, .. }) = self.datagram else {
            return Delivered::Dropped;
        };
        let operation = operation(&MessageStart::send(), Some(end));
        let length = payload.len() as u64;
        let (operation, data) = (&operation, Data::Bytes(payload));
        let qkey = from.qkey;
        let datagram = Datagram { source, qkey, header, operation, length, data, upto: length };
        match self.inbound(|inbound, aftermath| inbound.datagram(&datagram, aftermath)) {
            Arrived::Not(reason) => {
                self.dropped = Some(reason);
                Delivered::Dropped
            }
            _ => Delivered::Whole,
        }
    }
}

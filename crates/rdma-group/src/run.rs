//! A collective in progress: executes a schedule over a buffer, without channels.

use std::ops::Range;

use bytemuck::Pod;
use rdma_mem::{Buffer, ProtectionDomain};

use crate::call::Call;
use crate::group::buffer::Elements;
use crate::reduction::{Combine, Side};
use crate::schedule::{Action, Schedule, Transfer};
use crate::world::lane::{Form, PIECE_BYTES};

/// The length of the header of a message: its call, and the length of its whole block in bytes.
pub(crate) const HEADER_BYTES: usize = Call::BYTES + size_of::<u64>();

/// The maximum number of data bytes of a message, and of its bytes with the header. Longer pieces are
/// [written](crate::world::lane) to the peer.
const DATA_BYTES: usize = 32 << 10;
pub(crate) const MESSAGE_BYTES: usize = HEADER_BYTES + DATA_BYTES;

/// Transfers of at most this length in bytes are sent in messages, and longer ones in long pieces.
const SHORT_BYTES: usize = 2 * DATA_BYTES;

/// The lengths in bytes at which transfers are divided.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    /// The maximum length of the data of a message.
    data: usize,
    /// The maximum length of a transfer that is sent in messages only.
    short: usize,
    /// The maximum length of a long piece.
    piece: usize,
}

/// The lengths of all groups. Only tests of schedules in memory use shorter ones.
pub(crate) const LENGTHS: Lengths =
    Lengths { data: DATA_BYTES, short: SHORT_BYTES, piece: PIECE_BYTES };

impl Lengths {
    /// Returns true if a transfer is sent in long pieces.
    pub(crate) const fn is_long<T>(&self, transfer: &Transfer) -> bool {
        block_bytes::<T>(transfer) > self.short
    }

    /// Returns the part of a transfer's range in a piece. A transfer has at least one piece.
    fn part_of<T>(&self, transfer: &Transfer, piece: usize) -> Option<Range<usize>> {
        let bytes = if self.is_long::<T>(transfer) { self.piece } else { self.data };
        let elements = (bytes / size_of::<T>().max(1)).max(1);
        let range = &transfer.range;
        let start = range.start + piece * elements;
        let is_part = piece == 0 || start < range.end;
        is_part.then(|| start..(start + elements).min(range.end))
    }
}

/// The number of bytes of a long piece that are combined at a time. They fit in the first-level cache of a processor,
/// together with the elements of this rank.
const COMBINED_BYTES: usize = 16 << 10;

/// The next step of a collective.
#[derive(Debug)]
pub(crate) enum Next {
    /// Send this part of the buffer to this rank.
    Send(usize, Range<usize>),
    /// Receive a message from this rank, and pass it to [`Run::received`].
    Receive(usize),
    Done,
}

/// A message that does not belong to the collective, or has the wrong length.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The peer's message is from this call.
    Call(Call),
    /// The peer sends a block of that many bytes; these are too few or too many.
    Length { found: usize, expected: usize },
}

/// A schedule with the memory of its messages. Several runs can use it, one after another.
pub(crate) struct Prepared {
    schedule: Schedule,
    /// The ranks with which this rank exchanges messages, in ascending order.
    peers: Vec<usize>,
    /// A message that is sent, or data of a long piece that was received.
    scratch: Vec<u8>,
    lengths: Lengths,
}

impl Prepared {
    pub(crate) fn new(schedule: Schedule) -> Self {
        let mut peers: Vec<_> = schedule.iter().flatten().map(|it| it.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        Self { schedule, peers, scratch: Vec::new(), lengths: LENGTHS }
    }
}

/// A collective in progress.
///
/// The transfers of a round proceed in pieces. Each piece is sent to all peers before the pieces of the peers are
/// received.
pub(crate) struct Run<'a, T> {
    call: Call,
    prepared: &'a mut Prepared,
    buffer: Elements<'a, T>,
    combine: Option<&'a Combine<'a, T>>,
    round: usize,
    piece: usize,
    /// The number of transfers of the piece that were considered: first all for sends, then all for receives.
    done: usize,
}

impl<'a, T: Pod> Run<'a, T> {
    /// Creates a run. `combine` is for the reductions of the schedule.
    ///
    /// # Panics
    /// The run panics if the schedule has ranges outside the buffer.
    pub(crate) fn new(
        call: Call,
        prepared: &'a mut Prepared,
        buffer: Elements<'a, T>,
        combine: Option<&'a Combine<'a, T>>,
    ) -> Self {
        // Elements are numbers or bytes. Otherwise, a long one would need a landing, but its block could be short.
        const { assert!(size_of::<T>() <= size_of::<u64>()) };
        Self { call, prepared, buffer, combine, round: 0, piece: 0, done: 0 }
    }

    /// Returns the part of the transfer's range in the current piece.
    fn part(&self, transfer: &Transfer) -> Option<Range<usize>> {
        self.prepared.lengths.part_of::<T>(transfer, self.piece)
    }

    /// Returns the next step, and takes it as done if it is a send.
    pub(crate) fn next(&mut self) -> Next {
        while let Some(round) = self.prepared.schedule.get(self.round) {
            let transfers = round.len();
            if self.done == 2 * transfers {
                self.done = 0;
                self.piece += 1;
                if round.iter().all(|transfer| self.part(transfer).is_none()) {
                    (self.round, self.piece) = (self.round + 1, 0);
                }
                continue;
            }
            let sends = self.done < transfers;
            let transfer = &round[self.done % transfers];
            match self.part(transfer) {
                Some(part) if (transfer.action == Action::Send) == sends => {
                    let peer = transfer.peer;
                    if !sends {
                        return Next::Receive(peer);
                    }
                    self.done += 1;
                    return Next::Send(peer, part);
                }
                _ => self.done += 1,
            }
        }
        Next::Done
    }

    /// Returns the bytes of a part of the buffer.
    pub(crate) fn bytes(&self, part: &Range<usize>) -> &[u8] {
        bytemuck::cast_slice(&self.buffer.as_slice()[part.clone()])
    }

    /// Returns true if a part is too long for a message, so that it is written to the peer.
    pub(crate) fn is_written(&self, part: &Range<usize>) -> bool {
        self.bytes(part).len() > self.prepared.lengths.data
    }

    /// Returns true if the rank reads the clock after it has sent a part: after each long one, and in every 32nd round.
    pub(crate) fn checks_limit(&self, part: &Range<usize>) -> bool {
        const ROUNDS: usize = 32;
        self.is_written(part) || self.round % ROUNDS == ROUNDS - 1
    }

    /// Returns the header of a message for the block that this rank sends.
    fn header(&self, form: Form) -> [u8; HEADER_BYTES] {
        let round = self.prepared.schedule.get(self.round);
        let transfer = round.and_then(|round| round.get(self.done.checked_sub(1)?));
        let block = transfer.map_or(0, |transfer| block_bytes::<T>(transfer) as u64);
        let mut header = [0; HEADER_BYTES];
        let (call, length) = header.split_at_mut(Call::BYTES);
        call.copy_from_slice(&self.call.to_bytes());
        call[Call::FORM_BYTE] = form as u8;
        length.copy_from_slice(&block.to_le_bytes());
        header
    }

    /// Returns the message for a part. If the part is too long for a message, the message announces that the part was
    /// written to the peer.
    pub(crate) fn message(&mut self, part: &Range<usize>) -> &[u8] {
        let is_written = self.is_written(part);
        let header = self.header(if is_written { Form::Long } else { Form::Short });
        let Prepared { scratch, .. } = &mut *self.prepared;
        scratch.clear();
        scratch.extend_from_slice(&header);
        if !is_written {
            let data = &self.buffer.as_slice()[part.clone()];
            scratch.extend_from_slice(bytemuck::cast_slice(data));
        }
        scratch
    }

    /// Returns the message that is sent before a peer has a landing for long pieces.
    pub(crate) fn question(&self) -> [u8; HEADER_BYTES] {
        self.header(Form::Asked)
    }

    /// Returns the message that states the call to a peer, which may have made another one.
    pub(crate) fn statement(&self) -> [u8; HEADER_BYTES] {
        self.header(Form::Stated)
    }

    /// Checks the call that a peer [states](Self::statement). A call with another number is valid: this rank may be ahead,
    /// or the message may be old.
    pub(crate) fn check_statement(&self, message: &[u8]) -> Result<(), Mismatch> {
        let Call { group, generation, .. } = self.call;
        let differs = |call: &Call| {
            (call.group, call.generation) == (group, generation) && *call != self.call
        };
        let stated = Call::split(message).filter(|_| Form::of(message) == Form::Stated);
        match stated {
            Some((call, _)) if differs(&call) => Err(Mismatch::Call(call)),
            _ => Ok(()),
        }
    }

    /// Checks a message of a peer that is received before its turn, and after that many other messages with data.
    pub(crate) fn check_early(
        &self,
        peer: usize,
        earlier: usize,
        message: &[u8],
    ) -> Result<(), Mismatch> {
        let found = self.check_call(message)?.0;
        match self.blocks_from(peer).nth(earlier) {
            Some(expected) if found != expected => Err(Mismatch::Length { found, expected }),
            _ => Ok(()),
        }
    }

    /// Like [`check_early`](Self::check_early), for the next message of a peer. A message of a later call is valid.
    pub(crate) fn check_next(&self, peer: usize, message: &[u8]) -> Result<(), Mismatch> {
        let Call { group, generation, .. } = self.call;
        match Call::split(message) {
            Some((call, _)) if call.group != group || call.generation > generation => Ok(()),
            _ => self.check_early(peer, 0, message),
        }
    }

    /// Returns the length of the block that a message states, and the data of the message, if it is of this call.
    fn check_call<'m>(&self, message: &'m [u8]) -> Result<(usize, &'m [u8]), Mismatch> {
        let short = || Mismatch::Length { found: message.len(), expected: HEADER_BYTES };
        let (call, rest) = Call::split(message).ok_or_else(short)?;
        if call != self.call {
            return Err(Mismatch::Call(call));
        }
        let (block, data) = rest.split_first_chunk().ok_or_else(short)?;
        Ok((usize::try_from(u64::from_le_bytes(*block)).unwrap_or(usize::MAX), data))
    }

    /// Returns the length of the block of each piece that this rank still receives from a peer, in bytes.
    fn blocks_from(&self, peer: usize) -> impl Iterator<Item = usize> {
        let Prepared { schedule, lengths, .. } = &*self.prepared;
        let rounds = schedule.iter().enumerate().skip(self.round);
        rounds.flat_map(move |(at, round)| {
            let is_current = at == self.round;
            let first = if is_current { self.piece } else { 0 };
            let passed = if is_current { self.done.saturating_sub(round.len()) } else { 0 };
            let has =
                move |transfer: &Transfer, piece| lengths.part_of::<T>(transfer, piece).is_some();
            let pieces = (first..).take_while(move |piece| round.iter().any(|it| has(it, *piece)));
            pieces.flat_map(move |piece| {
                let rest = round.iter().skip(if piece == first { passed } else { 0 });
                let awaited = move |transfer: &&Transfer| {
                    let is_received = transfer.action != Action::Send && transfer.peer == peer;
                    is_received && has(transfer, piece)
                };
                rest.filter(awaited).map(block_bytes::<T>)
            })
        })
    }

    /// Lends the memory of a part if it is registered in this domain, with the range of the part in bytes.
    pub(crate) fn lend(
        &mut self,
        part: &Range<usize>,
        pd: &ProtectionDomain,
    ) -> Option<(Buffer, Range<usize>)> {
        self.buffer.lend(part, pd)
    }

    /// Restores the memory that was lent.
    pub(crate) fn restore(&mut self, memory: Buffer) {
        self.buffer.restore(memory);
    }

    /// Processes the message that [`next`](Self::next) has requested. If it has no data yet, the run requests another one.
    /// `written` copies bytes that the peer has written, from an offset of the piece.
    pub(crate) fn received(
        &mut self,
        message: &[u8],
        written: impl Fn(usize, &mut [u8]),
    ) -> Result<(), Mismatch> {
        let Some(round) = self.prepared.schedule.get(self.round) else { return Ok(()) };
        let transfer = &round[self.done % round.len()];
        let Some(part) = self.part(transfer) else { return Ok(()) };
        let (found, data) = self.check_call(message)?;
        let expected = block_bytes::<T>(transfer);
        if found != expected {
            return Err(Mismatch::Length { found, expected });
        }
        let form = Form::of(message);
        if form == Form::Asked {
            // The message with the data follows.
            return Ok(());
        }
        let is_written = form == Form::Long;
        let expected = if self.is_written(&part) { 0 } else { part.len() * size_of::<T>() };
        if data.len() != expected || is_written != self.is_written(&part) {
            return Err(Mismatch::Length { found: data.len(), expected });
        }
        let side = match transfer.action {
            Action::ReduceFromLower => Some(Side::Lower),
            Action::ReduceFromHigher => Some(Side::Higher),
            Action::Receive | Action::Send => None,
        };
        let own = &mut self.buffer.as_mut_slice()[part];
        match (side, self.combine) {
            (Some(side), Some(combine)) if is_written => {
                let Prepared { scratch, .. } = &mut *self.prepared;
                let elements = (COMBINED_BYTES / size_of::<T>().max(1)).max(1);
                let mut start = 0;
                for own in own.chunks_mut(elements) {
                    scratch.resize(size_of_val(own), 0);
                    written(start, scratch);
                    start += scratch.len();
                    combine(own, scratch, side);
                }
            }
            (Some(side), Some(combine)) => combine(own, data, side),
            _ if is_written => written(0, bytemuck::cast_slice_mut(own)),
            _ => bytemuck::cast_slice_mut(own).copy_from_slice(data),
        }
        self.done += 1;
        Ok(())
    }

    /// Returns the ranks that write long pieces to this rank. A rank may be returned several times.
    pub(crate) fn writers(&self) -> impl Iterator<Item = usize> {
        let Prepared { schedule, lengths, .. } = &*self.prepared;
        let transfers = schedule.iter().flatten();
        let writes = |transfer: &&Transfer| {
            transfer.action != Action::Send && lengths.is_long::<T>(transfer)
        };
        transfers.filter(writes).map(|transfer| transfer.peer)
    }

    pub(crate) const fn call(&self) -> &Call {
        &self.call
    }

    /// Returns the ranks with which this rank exchanges messages, in ascending order.
    pub(crate) fn peers(&self) -> &[usize] {
        &self.prepared.peers
    }
}

/// Returns the length of the block of a transfer in bytes.
const fn block_bytes<T>(transfer: &Transfer) -> usize {
    (transfer.range.end - transfer.range.start) * size_of::<T>()
}

#[cfg(test)]
mod tests;

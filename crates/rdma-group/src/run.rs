//! A collective in progress: executes a schedule over a buffer, without channels.

use std::ops::Range;

use bytemuck::Pod;
use rdma_mem::{Buffer, ProtectionDomain};

use crate::call::Call;
use crate::group::buffer::Elements;
use crate::reduction::{Combine, Side};
use crate::schedule::{Action, Schedule, Transfer};
use crate::world::lane::{Form, PIECE_BYTES};

/// The maximum number of data bytes of a message, and of its bytes with the header. Longer pieces are
/// [written](crate::world::lane) to the peer.
const DATA_BYTES: usize = 32 << 10;
pub(crate) const MESSAGE_BYTES: usize = Call::BYTES + DATA_BYTES;

/// Transfers of at most this length in bytes are sent in messages, and longer ones in long pieces.
pub(crate) const SHORT_BYTES: usize = 2 * DATA_BYTES;

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
    /// The message has that many bytes of data; these are too few or too many.
    Length { found: usize, expected: usize },
    /// The peer writes that many bytes, but this call receives only short blocks from it.
    Long { found: usize },
}

/// A collective in progress.
///
/// The transfers of a round proceed in pieces. Each piece is sent to all peers before the pieces of the peers are
/// received.
pub(crate) struct Run<'a, T> {
    call: Call,
    schedule: Schedule,
    buffer: Elements<'a, T>,
    combine: Option<&'a Combine<'a, T>>,
    round: usize,
    piece: usize,
    /// The number of transfers of the piece that were considered: first all for sends, then all for receives.
    done: usize,
    /// A message that is sent, or data of a long piece that was received.
    scratch: Vec<u8>,
}

impl<'a, T: Pod> Run<'a, T> {
    /// Creates a run. `combine` is for the reductions of the schedule.
    ///
    /// # Panics
    /// The run panics if the schedule has ranges outside the buffer.
    pub(crate) fn new(
        call: Call,
        schedule: Schedule,
        buffer: Elements<'a, T>,
        combine: Option<&'a Combine<'a, T>>,
    ) -> Self {
        Self { call, schedule, buffer, combine, round: 0, piece: 0, done: 0, scratch: Vec::new() }
    }

    /// Returns the part of the transfer's range in the current piece. A transfer has at least one piece.
    fn part(&self, transfer: &Transfer) -> Option<Range<usize>> {
        let bytes = if is_long::<T>(transfer) { PIECE_BYTES } else { DATA_BYTES };
        let elements = (bytes / size_of::<T>().max(1)).max(1);
        let range = &transfer.range;
        let start = range.start + self.piece * elements;
        let is_part = self.piece == 0 || start < range.end;
        is_part.then(|| start..(start + elements).min(range.end))
    }

    /// Returns the next step, and takes it as done if it is a send.
    pub(crate) fn next(&mut self) -> Next {
        while let Some(round) = self.schedule.get(self.round) {
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
        self.bytes(part).len() > DATA_BYTES
    }

    /// Returns the message for a part. If the part is too long for a message, the message announces that the part was
    /// written to the peer.
    pub(crate) fn message(&mut self, part: &Range<usize>) -> &[u8] {
        let mut header = self.call.to_bytes();
        let data: &[u8] = bytemuck::cast_slice(&self.buffer.as_slice()[part.clone()]);
        self.scratch.clear();
        if data.len() > DATA_BYTES {
            header[Call::FORM_BYTE] = Form::Long as u8;
            self.scratch.extend_from_slice(&header);
            self.scratch.extend_from_slice(&(data.len() as u64).to_le_bytes());
        } else {
            self.scratch.extend_from_slice(&header);
            self.scratch.extend_from_slice(data);
        }
        &self.scratch
    }

    /// Returns the message that is sent before a peer has a landing for long pieces, with the length of the first one.
    pub(crate) fn question(&self, length: usize) -> Vec<u8> {
        let mut header = self.call.to_bytes();
        header[Call::FORM_BYTE] = Form::Asked as u8;
        [&header[..], &(length as u64).to_le_bytes()].concat()
    }

    /// Fails if the peer waits for a landing that this call does not open. `is_open` states whether one is open.
    pub(crate) fn check_question(message: &[u8], is_open: bool) -> Result<(), Mismatch> {
        match Call::split(message) {
            Some((_, length)) if Form::of(message) == Form::Asked && !is_open => {
                Err(Mismatch::Long { found: length_in(length) })
            }
            _ => Ok(()),
        }
    }

    /// Checks the call of a message that is received later.
    pub(crate) fn check_call(&self, message: &[u8]) -> Result<(), Mismatch> {
        let short = Mismatch::Length { found: message.len(), expected: Call::BYTES };
        let (call, _) = Call::split(message).ok_or(short)?;
        if call == self.call { Ok(()) } else { Err(Mismatch::Call(call)) }
    }

    /// Fails if the sender of this message makes another call in place of this one. A message of a later call is valid.
    pub(crate) fn check_place(&self, message: &[u8]) -> Result<(), Mismatch> {
        let Call { group, generation, .. } = self.call;
        match Call::split(message) {
            Some((call, _))
                if call != self.call && call.group == group && call.generation <= generation =>
            {
                Err(Mismatch::Call(call))
            }
            _ => Ok(()),
        }
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
        let Some(round) = self.schedule.get(self.round) else { return Ok(()) };
        let transfer = &round[self.done % round.len()];
        let Some(part) = self.part(transfer) else { return Ok(()) };
        let expected = part.len() * size_of::<T>();
        let (call, data) = Call::split(message)
            .ok_or(Mismatch::Length { found: message.len(), expected: expected + Call::BYTES })?;
        if call != self.call {
            return Err(Mismatch::Call(call));
        }
        if Form::of(message) == Form::Asked {
            // The message with the data follows.
            return Ok(());
        }
        let is_written = Form::of(message) == Form::Long;
        let found = if is_written { length_in(data) } else { data.len() };
        if found != expected || is_written != (expected > DATA_BYTES) {
            return Err(Mismatch::Length { found, expected });
        }
        let side = match transfer.action {
            Action::ReduceFromLower => Some(Side::Lower),
            Action::ReduceFromHigher => Some(Side::Higher),
            Action::Receive | Action::Send => None,
        };
        let own = &mut self.buffer.as_mut_slice()[part];
        match (side, self.combine) {
            (Some(side), Some(combine)) if is_written => {
                let elements = (DATA_BYTES / size_of::<T>().max(1)).max(1);
                let mut start = 0;
                for own in own.chunks_mut(elements) {
                    self.scratch.resize(size_of_val(own), 0);
                    written(start, &mut self.scratch);
                    start += self.scratch.len();
                    combine(own, &self.scratch, side);
                }
            }
            (Some(side), Some(combine)) => combine(own, data, side),
            _ if is_written => written(0, bytemuck::cast_slice_mut(own)),
            _ => bytemuck::cast_slice_mut(own).copy_from_slice(data),
        }
        self.done += 1;
        Ok(())
    }

    /// Returns the ranks that write long pieces to this rank.
    pub(crate) fn writers(&self) -> impl Iterator<Item = usize> {
        let transfers = self.schedule.iter().flatten();
        let writes =
            |transfer: &&Transfer| transfer.action != Action::Send && is_long::<T>(transfer);
        transfers.filter(writes).map(|transfer| transfer.peer)
    }

    pub(crate) const fn call(&self) -> &Call {
        &self.call
    }

    /// Returns the ranks with which this rank exchanges messages.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> {
        self.schedule.iter().flatten().map(|transfer| transfer.peer)
    }
}

/// Returns the length that the data of a message states.
fn length_in(data: &[u8]) -> usize {
    let length = data.first_chunk().map(|length| usize::try_from(u64::from_le_bytes(*length)));
    length.and_then(Result::ok).unwrap_or(usize::MAX)
}

/// Returns true if a transfer is sent in long pieces.
pub(crate) const fn is_long<T>(transfer: &Transfer) -> bool {
    (transfer.range.end - transfer.range.start) * size_of::<T>() > SHORT_BYTES
}

#[cfg(test)]
mod tests;

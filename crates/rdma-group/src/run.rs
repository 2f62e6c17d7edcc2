//! A collective in progress: executes a schedule over a buffer, without channels.

use std::ops::Range;

use bytemuck::Pod;

use crate::call::Call;
use crate::reduction::{Combine, Side};
use crate::schedule::{Action, Schedule, Transfer};

/// The maximum number of data bytes of a message, and of its bytes with the header.
const DATA_BYTES: usize = 32 << 10;
pub(crate) const MESSAGE_BYTES: usize = Call::BYTES + DATA_BYTES;

/// The next step of a collective.
#[derive(Debug)]
pub(crate) enum Next<'r> {
    /// Send this message to this rank.
    Send(usize, &'r mut [u8]),
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
}

/// A collective in progress.
///
/// The transfers of a round proceed in pieces. Each piece is sent to all peers before the pieces of the peers are
/// received.
pub(crate) struct Run<'a, T> {
    call: Call,
    schedule: Schedule,
    buffer: &'a mut [T],
    combine: Option<&'a Combine<'a, T>>,
    round: usize,
    piece: usize,
    /// The number of transfers of the piece that were considered: first all for sends, then all for receives.
    done: usize,
    message: Vec<u8>,
}

impl<'a, T: Pod> Run<'a, T> {
    /// Creates a run. `combine` is for the reductions of the schedule.
    ///
    /// # Panics
    /// The run panics if the schedule has ranges outside the buffer.
    pub(crate) fn new(
        call: Call,
        schedule: Schedule,
        buffer: &'a mut [T],
        combine: Option<&'a Combine<'a, T>>,
    ) -> Self {
        Self { call, schedule, buffer, combine, round: 0, piece: 0, done: 0, message: Vec::new() }
    }

    /// Returns the part of the transfer's range in the current piece. A transfer has at least one piece.
    fn part(&self, Transfer { range, .. }: &Transfer) -> Option<Range<usize>> {
        let elements = (DATA_BYTES / size_of::<T>().max(1)).max(1);
        let start = range.start + self.piece * elements;
        let is_part = self.piece == 0 || start < range.end;
        is_part.then(|| start..(start + elements).min(range.end))
    }

    /// Returns the next step, and takes it as done if it is a send.
    pub(crate) fn next(&mut self) -> Next<'_> {
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
                    self.message.clear();
                    self.message.extend_from_slice(&self.call.to_bytes());
                    self.message.extend_from_slice(bytemuck::cast_slice(&self.buffer[part]));
                    return Next::Send(peer, &mut self.message);
                }
                _ => self.done += 1,
            }
        }
        Next::Done
    }

    /// Processes the message that [`next`](Self::next) has requested.
    pub(crate) fn received(&mut self, message: &[u8]) -> Result<(), Mismatch> {
        let Some(round) = self.schedule.get(self.round) else { return Ok(()) };
        let transfer = &round[self.done % round.len()];
        let Some(part) = self.part(transfer) else { return Ok(()) };
        let expected = part.len() * size_of::<T>();
        let (call, data) = Call::split(message)
            .ok_or(Mismatch::Length { found: message.len(), expected: expected + Call::BYTES })?;
        if call != self.call {
            return Err(Mismatch::Call(call));
        }
        if data.len() != expected {
            return Err(Mismatch::Length { found: data.len(), expected });
        }
        let side = match transfer.action {
            Action::ReduceFromLower => Some(Side::Lower),
            Action::ReduceFromHigher => Some(Side::Higher),
            Action::Receive | Action::Send => None,
        };
        let own = &mut self.buffer[part];
        match (side, self.combine) {
            (Some(side), Some(combine)) => combine(own, data, side),
            _ => bytemuck::cast_slice_mut(own).copy_from_slice(data),
        }
        self.done += 1;
        Ok(())
    }

    pub(crate) const fn call(&self) -> &Call {
        &self.call
    }

    /// Returns the ranks with which this rank exchanges messages.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> {
        self.schedule.iter().flatten().map(|transfer| transfer.peer)
    }
}

#[cfg(test)]
mod tests;

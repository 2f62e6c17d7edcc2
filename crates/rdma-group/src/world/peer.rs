//! The connections of a rank, and the steps of a collective that do not wait. Blocking and asynchronous ranks share both.

use std::collections::VecDeque;
use std::ops::Deref;

use bytemuck::Pod;
use rdma_mem::Buffer;

use super::lane::{Form, Grant, Lane};
use super::ranks::{Failure, Probes, Ranks};
use crate::run::Run;

/// The maximum number of messages of a peer that are received before the run needs them. A rank whose program is correct
/// sends a few.
pub(crate) const MOST_EARLY: usize = 64;

/// The connections of a rank, whose listener is `L`.
pub(crate) struct Connections<L, M, R> {
    /// `None` if the group has a single rank.
    pub(crate) listener: Option<L>,
    pub(crate) peers: Vec<Option<Peer<M, R>>>,
    /// Registered memory for long pieces of ordinary memory.
    pub(crate) staged: Option<Buffer>,
}

impl<L, M, R> Connections<L, M, R> {
    /// Creates the state of a rank that is connected to none of these ranks.
    pub(crate) fn new(listener: Option<L>, ranks: usize) -> Self {
        Self { listener, peers: (0..ranks).map(|_| None).collect(), staged: None }
    }
}

/// A connection `M` to a rank, which receives messages `R`.
pub(crate) struct Peer<M, R> {
    pub(crate) messages: M,
    pub(crate) lane: Lane,
    /// Messages that were received before the run needs them.
    early: VecDeque<R>,
}

impl<M, R: Deref<Target = [u8]>> Peer<M, R> {
    pub(crate) fn new(messages: M) -> Self {
        Self { messages, lane: Lane::default(), early: VecDeque::new() }
    }

    /// Returns the next message that was [kept](Self::keep).
    pub(crate) fn next_early(&mut self) -> Option<R> {
        self.early.pop_front()
    }

    /// Returns true if a message was received before the run needs it.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.early.is_empty()
    }

    /// Processes a message about landings, or a statement. Returns false for a message of a run. Fails if the peer states
    /// another call, or has closed the group.
    pub(crate) fn process<T: Pod>(
        &mut self,
        rank: usize,
        message: &[u8],
        run: &Run<'_, T>,
        ranks: &Ranks,
    ) -> Result<bool, Failure> {
        run.check_statement(message).map_err(|it| ranks.mismatch(rank, run, it))?;
        self.process_outside(message, ranks)
    }

    /// Like [`process`](Self::process), outside a run, which is needed to compare calls.
    pub(crate) fn process_outside(
        &mut self,
        message: &[u8],
        ranks: &Ranks,
    ) -> Result<bool, Failure> {
        match ranks.noticed(message) {
            Some(notice) => Err(Failure::Closed(notice)),
            None => Ok(self.lane.process(message)),
        }
    }

    /// Checks the next message of this peer, which has arrived while the run waits for another one. `message` is a new one.
    /// Fails if it is of another call or has another length, because the peer may wait for the run.
    pub(crate) fn look_ahead<T: Pod>(
        &mut self,
        rank: usize,
        message: Option<R>,
        run: &Run<'_, T>,
        ranks: &Ranks,
    ) -> Result<(), Failure> {
        if let Some(message) = message
            && !self.process(rank, &message, run, ranks)?
        {
            self.early.push_back(message);
        }
        let checked = self.early.front().map_or(Ok(()), |first| run.check_next(rank, first));
        checked.map_err(|it| ranks.mismatch(rank, run, it))
    }

    /// Processes a message of this rank that has arrived while the run waits for a free slot of its landing. A message
    /// with a call is kept for later.
    pub(crate) fn keep<T: Pod>(
        &mut self,
        rank: usize,
        message: R,
        run: &Run<'_, T>,
        ranks: &Ranks,
    ) -> Result<(), Failure> {
        if self.process(rank, &message, run, ranks)? {
            return Ok(());
        }
        let has_data = |message: &&R| Form::of(message) != Form::Asked;
        let earlier = self.early.iter().filter(has_data).count();
        let checked = run.check_early(rank, earlier, &message);
        checked.map_err(|it| ranks.mismatch(rank, run, it))?;
        if self.early.len() >= MOST_EARLY {
            return Err(Failure::Lost(rank));
        }
        self.early.push_back(message);
        Ok(())
    }

    /// Passes a message of this rank to the run. Returns the message to send if a slot of the landing is free again.
    pub(crate) fn pass<T: Pod>(
        &mut self,
        rank: usize,
        message: &[u8],
        run: &mut Run<'_, T>,
        ranks: &Ranks,
    ) -> Result<Option<Grant>, Failure> {
        let read = |offset, bytes: &mut [u8]| self.lane.read(offset, bytes);
        let received = run.received(message, read);
        received.map_err(|it| ranks.mismatch(rank, run, it))?;
        Ok(self.lane.received(message))
    }
}

/// The looks of a rank at its peers while it waits for one of them.
#[derive(Default)]
pub(crate) struct Looks {
    /// `None` before the first wait.
    times: Option<Probes>,
    /// The ranks to look at, from the last one to the next one.
    peers: Vec<usize>,
}

impl Looks {
    /// Returns the peer to look at, if it is time for that. Only one at a time, so that the awaited one stays first. Its
    /// own turn is the time to report that this rank waits.
    pub(crate) fn next(&mut self, all: &[usize]) -> Option<usize> {
        if self.peers.is_empty() && self.times.get_or_insert_with(Probes::new).are_due() {
            self.peers.extend(all.iter().rev());
        }
        self.peers.pop()
    }
}

/// Returns the connection to a rank.
pub(crate) fn at<P>(peers: &mut [Option<P>], rank: usize) -> Result<&mut P, Failure> {
    peers.get_mut(rank).and_then(Option::as_mut).ok_or(Failure::Lost(rank))
}

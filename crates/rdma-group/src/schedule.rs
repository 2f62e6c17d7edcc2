//! Schedules: what a rank of a group sends and receives in a collective, without channels or memory.
//!
//! A schedule is a list of rounds. A transfer that one rank sends in a round is received by its peer in the same round.
//! Two ranks list their common transfers in the same order. The sends of a round read the buffer before its receives
//! change it. So a driver may execute the sends of a round before its receives. It then needs room for one message in
//! each direction of each pair.

mod barrier;
mod doubling;
mod ring;
mod tree;

use std::ops::Range;

pub use self::barrier::BarrierAlgorithm;

/// A transfer between this rank and a peer, of a range of the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs)] // hidden
pub struct Transfer {
    /// The other rank.
    pub peer: usize,
    /// The elements.
    pub range: Range<usize>,
    /// The part of this rank.
    pub action: Action,
}

/// The part of this rank in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)] // hidden
pub enum Action {
    /// Sends the elements of the range.
    Send,
    /// Replaces the elements of the range.
    Receive,
    /// Combines the received elements, which come from lower ranks, with those of the range.
    ReduceFromLower,
    /// Combines the elements of the range with the received ones, which come from higher ranks.
    ReduceFromHigher,
}

/// The transfers of a rank, by round.
pub type Schedule = Vec<Vec<Transfer>>;

/// The ranges of a buffer that belong to the ranks of a group, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The start of each block, and the end of the last one.
    starts: Vec<usize>,
}

impl Blocks {
    /// Divides a buffer into `ranks` blocks, whose lengths differ by at most one element.
    ///
    /// # Panics
    /// Panics if there are no ranks.
    #[must_use]
    pub fn even(len: usize, ranks: usize) -> Self {
        let (each, rest) = (len / ranks, len % ranks);
        Self { starts: (0..=ranks).map(|rank| rank * each + rank.min(rest)).collect() }
    }

    /// Returns consecutive blocks of these lengths, or `None` if their sum overflows.
    #[must_use]
    pub fn of(counts: &[usize]) -> Option<Self> {
        let mut starts = vec![0];
        let mut end = 0_usize;
        for count in counts {
            end = end.checked_add(*count)?;
            starts.push(end);
        }
        Some(Self { starts })
    }

    /// Returns the length of the buffer.
    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the length of the longest block.
    pub(crate) fn longest(&self) -> usize {
        self.starts.windows(2).map(|block| block[1] - block[0]).max().unwrap_or(0)
    }

    /// Returns the block of a rank.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    pub fn block(&self, rank: usize) -> Range<usize> {
        self.blocks(rank..rank + 1)
    }

    /// Returns the range of the blocks of consecutive ranks.
    pub(crate) fn blocks(&self, ranks: Range<usize>) -> Range<usize> {
        self.starts[ranks.start]..self.starts[ranks.end]
    }
}

/// A rank in a group of a certain size. Its methods return schedules.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs)] // hidden
pub struct Member {
    /// The rank.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
}

impl Member {
    /// Exchanges blocks with all ranks: the block `rank` of `sent` goes to that rank, and the block `rank` of `received`
    /// comes from it. `received` begins at `offset`. If both are the same blocks at offset 0, the exchange is in place.
    /// In each round, the ranks exchange in pairs.
    pub(crate) fn all_to_all(self, sent: &Blocks, received: &Blocks, offset: usize) -> Schedule {
        let round = |round: usize| {
            let peer = (round + self.size - self.rank) % self.size;
            if peer == self.rank {
                return Vec::new();
            }
            let Range { start, end } = received.block(peer);
            let into = start + offset..end + offset;
            vec![
                Transfer { peer, range: sent.block(peer), action: Action::Send },
                Transfer { peer, range: into, action: Action::Receive },
            ]
        };
        (0..self.size).map(round).collect()
    }
}

/// Returns the number of rounds of a tree: the logarithm of `size`, rounded up.
pub(crate) const fn depth(size: usize) -> u32 {
    size.next_power_of_two().trailing_zeros()
}

//! Rings: each rank sends to the next one and receives from the one before. For long buffers, because each rank sends
//! each element only once or twice.

use super::{Action, Blocks, Member, Schedule, Transfer};

impl Member {
    /// Returns the transfers around the ring. In each round, a rank sends the block that it received in the round
    /// before. In the first one, that is the block of the rank that is `lead` higher.
    fn ring(self, blocks: &Blocks, lead: usize, received: Action) -> Schedule {
        let Self { rank, size } = self;
        let round = |round: usize| {
            let first = rank + lead + size - round;
            let transfer = |peer: usize, block: usize, action| {
                let range = blocks.block(block % size);
                Transfer { peer: peer % size, range, action }
            };
            vec![
                transfer(rank + 1, first, Action::Send),
                transfer(rank + size - 1, first - 1, received),
            ]
        };
        (0..size - 1).map(round).collect()
    }

    /// Combines the blocks of all ranks: each rank gets its own block. The order begins with the next rank, so the
    /// reduction must be commutative.
    pub(crate) fn reduce_scatter(self, blocks: &Blocks) -> Schedule {
        self.ring(blocks, self.size - 1, Action::ReduceFromLower)
    }

    /// Copies the block of each rank to all ranks.
    pub(crate) fn all_gather(self, blocks: &Blocks) -> Schedule {
        self.ring(blocks, 0, Action::Receive)
    }

    /// Combines the buffers of all ranks on all ranks. The reduction must be commutative.
    pub(crate) fn all_reduce_by_ring(self, len: usize) -> Schedule {
        let blocks = Blocks::even(len, self.size);
        let mut schedule = self.reduce_scatter(&blocks);
        schedule.extend(self.all_gather(&blocks));
        schedule
    }
}

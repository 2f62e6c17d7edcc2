//! The collectives, and the schedules that each of them uses.

use crate::call::Kind;
use crate::schedule::{BarrierAlgorithm, Blocks, Member, Schedule, depth};

/// The algorithms of `all_gather`, `all_reduce` and `reduce_scatter`. Other collectives, and reductions with a function,
/// have only the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums)] // hidden
pub enum Algorithm {
    /// A tree or recursive doubling.
    FewRounds,
    /// A ring. Each rank sends less data, but in larger groups, a ring has more rounds.
    Ring,
}

/// The estimated time of an algorithm, in units of the time in which a rank combines a byte with a received one. Sending
/// a byte takes four units.
#[derive(PartialEq, PartialOrd)]
struct Cost(u128);

impl Cost {
    /// The number of bytes that a rank sends in the time that a round takes without data. In the simulator, these are
    /// 31,250 bytes.
    const ROUND_BYTES: u128 = 32 << 10;

    /// Returns the cost of consecutive rounds. `sent` and `combined` are the bytes of their longest transfers.
    const fn new(rounds: u128, sent: u128, combined: u128) -> Self {
        Self(4 * (rounds * Self::ROUND_BYTES + sent) + combined)
    }
}

/// A collective. Its blocks divide the buffer between the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, missing_docs)] // hidden; the variants are the methods of a group
pub enum Collective {
    Barrier(BarrierAlgorithm),
    Broadcast { root: usize },
    Gather { root: usize, blocks: Blocks },
    Scatter { root: usize, blocks: Blocks },
    AllGather { blocks: Blocks },
    AllToAll { sent: Blocks, received: Blocks, offset: usize },
    Reduce { root: usize },
    AllReduce { is_commutative: bool },
    ReduceScatter { is_commutative: bool, blocks: Blocks },
}

impl Collective {
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Barrier(_) => Kind::Barrier,
            Self::Broadcast { .. } => Kind::Broadcast,
            Self::Gather { .. } => Kind::Gather,
            Self::Scatter { .. } => Kind::Scatter,
            Self::AllGather { .. } => Kind::AllGather,
            Self::AllToAll { .. } => Kind::AllToAll,
            Self::Reduce { .. } => Kind::Reduce,
            Self::AllReduce { .. } => Kind::AllReduce,
            Self::ReduceScatter { .. } => Kind::ReduceScatter,
        }
    }

    pub(crate) const fn root(&self) -> usize {
        match self {
            Self::Broadcast { root }
            | Self::Gather { root, .. }
            | Self::Scatter { root, .. }
            | Self::Reduce { root } => *root,
            _ => 0,
        }
    }

    /// Returns the algorithm for a buffer of `len` elements on `size` ranks.
    ///
    /// All ranks must choose the same algorithm, so the choice depends only on values that are equal on all of them. Each
    /// message contains the lengths in its [call](crate::call::Call), and a checksum of the lengths of uneven blocks. The
    /// order in which floating-point numbers are added depends on the choice.
    #[must_use]
    pub fn algorithm(&self, size: usize, len: usize, element_bytes: usize) -> Algorithm {
        let bytes = |elements: usize| elements as u128 * element_bytes as u128;
        let (whole, block) = (bytes(len), bytes(len.div_ceil(size)));
        let (log2, steps) = (u128::from(size.ilog2()), size as u128 - 1);
        // Measured for two ranks on a software device: combining a byte takes as long as sending it.
        let combining = if size == 2 { 4 } else { 1 };
        let doubling = || {
            let (power, depth) = (1 << size.ilog2(), u128::from(depth(size)));
            let paired = size - power;
            // The pairs double one round later than the other ranks. If they are few, they do not delay the last rank.
            let rounds = depth + u128::from(2 * paired > power);
            let sends = depth + u128::from(paired > 0);
            Cost::new(rounds, sends * whole, combining * depth * whole)
        };
        let (few, ring) = match self {
            Self::AllGather { blocks } => {
                let gathered = bytes(Member::gathered(size, blocks));
                let longest = bytes(blocks.longest());
                // No rank is more than `log2` edges away from rank 0, which sends the whole buffer in each round down.
                let sent = gathered + u128::from(depth(size)) * whole;
                let tree = Cost::new(2 * log2, sent, 0);
                (tree, Cost::new(steps, steps * longest, 0))
            }
            Self::AllReduce { is_commutative: true } => {
                (doubling(), Cost::new(2 * steps, 2 * steps * block, combining * steps * block))
            }
            Self::ReduceScatter { is_commutative: true, .. } => {
                (doubling(), Cost::new(steps, steps * block, combining * steps * block))
            }
            _ => return Algorithm::FewRounds,
        };
        if few <= ring { Algorithm::FewRounds } else { Algorithm::Ring }
    }

    /// Returns the schedule for a buffer of `len` elements.
    #[must_use]
    pub fn schedule(&self, member: Member, len: usize, element_bytes: usize) -> Schedule {
        self.schedule_by(self.algorithm(member.size, len, element_bytes), member, len)
    }

    /// Returns the schedule of an algorithm. If the collective does not have this one, returns that of its only one.
    #[must_use]
    pub fn schedule_by(&self, algorithm: Algorithm, member: Member, len: usize) -> Schedule {
        let is_ring = algorithm == Algorithm::Ring;
        match self {
            Self::Barrier(algorithm) => member.barrier(*algorithm),
            Self::Broadcast { root } => member.broadcast(*root, len),
            Self::Gather { root, blocks } => member.gather(*root, blocks),
            Self::Scatter { root, blocks } => member.scatter(*root, blocks),
            Self::AllGather { blocks } if is_ring => member.all_gather(blocks),
            Self::AllGather { blocks } => member.all_gather_by_tree(blocks),
            Self::AllToAll { sent, received, offset } => member.all_to_all(sent, received, *offset),
            Self::Reduce { root } => member.reduce(*root, len),
            Self::AllReduce { is_commutative: true } if is_ring => member.all_reduce_by_ring(len),
            Self::ReduceScatter { is_commutative: true, blocks } if is_ring => {
                member.reduce_scatter(blocks)
            }
            Self::AllReduce { .. } | Self::ReduceScatter { .. } => {
                member.all_reduce_by_doubling(len)
            }
        }
    }
}

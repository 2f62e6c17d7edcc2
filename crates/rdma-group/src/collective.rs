//! The collectives, and the schedules that each of them uses.

use crate::call::Kind;
use crate::schedule::{BarrierAlgorithm, Blocks, Member, Schedule};

/// Buffers of at most this length in bytes are exchanged in few rounds, longer ones around a ring. The ring has more
/// rounds, but each rank sends less data.
const SHORT_BYTES: usize = 64 << 10;

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

    /// Returns the schedule for a buffer of `len` elements. All ranks choose the same algorithm.
    #[must_use]
    pub fn schedule(&self, member: Member, len: usize, element_bytes: usize) -> Schedule {
        let is_short = len.saturating_mul(element_bytes) <= SHORT_BYTES;
        match self {
            Self::Barrier(algorithm) => member.barrier(*algorithm),
            Self::Broadcast { root } => member.broadcast(*root, len),
            Self::Gather { root, blocks } => member.gather(*root, blocks),
            Self::Scatter { root, blocks } => member.scatter(*root, blocks),
            Self::AllGather { blocks } if is_short => member.all_gather_by_tree(blocks),
            Self::AllGather { blocks } => member.all_gather(blocks),
            Self::AllToAll { sent, received, offset } => member.all_to_all(sent, received, *offset),
            Self::Reduce { root } => member.reduce(*root, len),
            Self::AllReduce { is_commutative: true } if !is_short => member.all_reduce_by_ring(len),
            Self::ReduceScatter { is_commutative: true, blocks } => member.reduce_scatter(blocks),
            Self::AllReduce { .. } | Self::ReduceScatter { .. } => {
                member.all_reduce_by_doubling(len)
            }
        }
    }
}

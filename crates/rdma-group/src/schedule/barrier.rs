//! Barriers: transfers of nothing, after which every rank knows that all have entered.

use super::{Action, Member, Schedule, Transfer, depth};

/// The algorithm of a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BarrierAlgorithm {
    /// All ranks notify rank 0, which then notifies all. This takes two rounds, but connects rank 0 to all ranks.
    Centralized,
    /// Notices pass up a binary tree to rank 0, and then down. Each rank is connected to at most three others.
    BinaryTree,
    /// In round `k`, each rank notifies the one that is 2^k higher. The number of rounds is the logarithm of the size.
    #[default]
    Dissemination,
}

impl BarrierAlgorithm {
    /// All algorithms, at the places of their codes.
    pub(crate) const ALL: [Self; 3] = [Self::Centralized, Self::BinaryTree, Self::Dissemination];
}

impl Member {
    pub(crate) fn barrier(self, algorithm: BarrierAlgorithm) -> Schedule {
        if self.size == 1 {
            return Schedule::new();
        }
        match algorithm {
            BarrierAlgorithm::Centralized => self.centralized(),
            BarrierAlgorithm::BinaryTree => self.binary_tree(),
            BarrierAlgorithm::Dissemination => self.dissemination(),
        }
    }

    fn centralized(self) -> Schedule {
        let all = |action| {
            let peers = if self.rank == 0 { 1..self.size } else { 0..1 };
            peers.map(|peer| notice(peer, action)).collect()
        };
        match self.rank {
            0 => vec![all(Action::Receive), all(Action::Send)],
            _ => vec![all(Action::Send), all(Action::Receive)],
        }
    }

    /// The children of rank `r` are the ranks `2 r + 1` and `2 r + 2`.
    fn binary_tree(self) -> Schedule {
        let level = |rank: usize| (rank + 1).ilog2();
        let (own, lowest) = (level(self.rank), level(self.size - 1));
        let edges = |level: u32, [to_parent, to_child]: [Action; 2]| {
            let first = 2 * self.rank + 1;
            if own == level {
                vec![notice((self.rank - 1) / 2, to_parent)]
            } else if own + 1 == level {
                let children = (first..first + 2).filter(|child| *child < self.size);
                children.map(|child| notice(child, to_child)).collect()
            } else {
                Vec::new()
            }
        };
        let up = (1..=lowest).rev().map(|level| edges(level, [Action::Send, Action::Receive]));
        let down = (1..=lowest).map(|level| edges(level, [Action::Receive, Action::Send]));
        up.chain(down).collect()
    }

    fn dissemination(self) -> Schedule {
        let round = |round: u32| {
            let distance = 1 << round;
            let to = (self.rank + distance) % self.size;
            let from = (self.rank + self.size - distance) % self.size;
            vec![notice(to, Action::Send), notice(from, Action::Receive)]
        };
        (0..depth(self.size)).map(round).collect()
    }
}

const fn notice(peer: usize, action: Action) -> Transfer {
    Transfer { peer, range: 0..0, action }
}

//! Collectives with a root: a binomial tree, which needs as many rounds as the logarithm of the size.
//!
//! Ranks are counted from the root in these trees. In round `k` upwards, the ranks that are odd multiples of 2^k send to
//! the rank that is 2^k lower. They send the data of their subtrees, which are consecutive ranks.

use std::ops::Range;

use super::{Action, Blocks, Member, Schedule, Transfer, depth};

/// An edge of the tree from this rank, used in a certain round.
struct Edge {
    peer: usize,
    is_to_parent: bool,
    /// The ranks of the subtree at the lower end, counted from the root.
    subtree: Range<usize>,
}

impl Member {
    /// Returns the edge of this rank in each round upwards.
    fn edges(self, root: usize) -> impl DoubleEndedIterator<Item = Option<Edge>> {
        let Self { rank, size } = self;
        let place = (rank + size - root) % size;
        let edge = move |child: usize, parent: usize, distance: usize| {
            let is_to_parent = child == place;
            let peer = (if is_to_parent { parent } else { child } + root) % size;
            Edge { peer, is_to_parent, subtree: child..(child + distance).min(size) }
        };
        (0..depth(size)).map(move |round| {
            let distance = 1 << round;
            match place % (2 * distance) {
                0 if place + distance < size => Some(edge(place + distance, place, distance)),
                rest if rest == distance => Some(edge(place, place - distance, distance)),
                _ => None,
            }
        })
    }

    /// Sends data up the tree. `received` is what a parent does with the data of a subtree, which is in `ranges`.
    fn up<R: IntoIterator<Item = Range<usize>>>(
        self,
        root: usize,
        received: Action,
        ranges: impl Fn(Range<usize>) -> R,
    ) -> Schedule {
        let round = |edge: Option<Edge>| {
            let Some(Edge { peer, is_to_parent, subtree }) = edge else { return Vec::new() };
            let action = if is_to_parent { Action::Send } else { received };
            let transfer = |range| Transfer { peer, range, action };
            ranges(subtree).into_iter().map(transfer).collect()
        };
        self.edges(root).map(round).collect()
    }

    /// Sends data down the tree: the same transfers as up, in the opposite direction and order.
    fn down<R: IntoIterator<Item = Range<usize>>>(
        self,
        root: usize,
        ranges: impl Fn(Range<usize>) -> R,
    ) -> Schedule {
        let mut schedule = self.up(root, Action::Receive, ranges);
        schedule.reverse();
        for transfer in schedule.iter_mut().flatten() {
            transfer.action = match transfer.action {
                Action::Send => Action::Receive,
                _ => Action::Send,
            };
        }
        schedule
    }

    /// Returns the parts of a subtree's blocks that are contiguous: the ranks begin again after the highest one.
    fn parts(self, root: usize, blocks: &Blocks) -> impl Fn(Range<usize>) -> Vec<Range<usize>> {
        let size = self.size;
        move |subtree| {
            let (start, end) = (subtree.start + root, subtree.end + root);
            let high = start.min(size)..end.min(size);
            let low = start.max(size) - size..end.max(size) - size;
            let parts = [high, low].into_iter().filter(|ranks| !ranks.is_empty());
            parts.map(|ranks| blocks.blocks(ranks)).collect()
        }
    }

    /// Copies the buffer of the root to all ranks.
    pub(crate) fn broadcast(self, root: usize, len: usize) -> Schedule {
        self.down(root, |_| Some(0..len))
    }

    /// Combines the buffers of all ranks, in rank order, in the buffer of the root. If that is not rank 0, rank 0
    /// combines them and sends the result in one more round.
    pub(crate) fn reduce(self, root: usize, len: usize) -> Schedule {
        let mut schedule = self.up(0, Action::ReduceFromHigher, |_| Some(0..len));
        if root != 0 {
            let last = |peer, action| vec![Transfer { peer, range: 0..len, action }];
            schedule.push(match self.rank {
                0 => last(root, Action::Send),
                rank if rank == root => last(0, Action::Receive),
                _ => Vec::new(),
            });
        }
        schedule
    }

    /// Copies the block of each rank to the root.
    pub(crate) fn gather(self, root: usize, blocks: &Blocks) -> Schedule {
        self.up(root, Action::Receive, self.parts(root, blocks))
    }

    /// Returns the sum of the longest transfer of each round of a [`gather`](Self::gather) by rank 0.
    pub(crate) fn gathered(size: usize, blocks: &Blocks) -> usize {
        let longest = |round: u32| {
            let distance = 1 << round;
            let children = (distance..size).step_by(2 * distance);
            let subtree = |child: usize| blocks.blocks(child..(child + distance).min(size));
            children.map(|child| subtree(child).len()).max().unwrap_or(0)
        };
        (0..depth(size)).map(longest).sum()
    }

    /// Copies the blocks of the root to their ranks.
    pub(crate) fn scatter(self, root: usize, blocks: &Blocks) -> Schedule {
        self.down(root, self.parts(root, blocks))
    }

    /// Copies the block of each rank to all ranks, by way of rank 0. For short blocks.
    pub(crate) fn all_gather_by_tree(self, blocks: &Blocks) -> Schedule {
        let mut schedule = self.gather(0, blocks);
        schedule.extend(self.broadcast(0, blocks.len()));
        schedule
    }
}

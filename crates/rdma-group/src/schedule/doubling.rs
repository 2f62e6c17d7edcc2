//! Recursive doubling: a reduction in as many rounds as the logarithm of the size, in rank order.

use super::{Action, Member, Schedule, Transfer};

impl Member {
    /// Combines the buffers of all ranks, in rank order, on all ranks. If the size is not a power of two, pairs of
    /// neighbours are combined before, and one of them gets the result afterwards.
    pub(crate) fn all_reduce_by_doubling(self, len: usize) -> Schedule {
        let Self { rank, size } = self;
        let power = 1 << size.ilog2();
        // The ranks below `paired` work in pairs, whose even rank takes part in the doubling.
        let paired = 2 * (size - power);
        let all = |peer, action| Transfer { peer, range: 0..len, action };
        let pair = |even, odd| match rank % 2 {
            _ if rank >= paired => Vec::new(),
            0 => vec![all(rank + 1, even)],
            _ => vec![all(rank - 1, odd)],
        };
        let taken = |place: usize| {
            if 2 * place < paired { 2 * place } else { place + paired / 2 }
        };
        let place = match rank {
            _ if rank >= paired => Some(rank - paired / 2),
            _ if rank % 2 == 0 => Some(rank / 2),
            _ => None,
        };
        let double = |round: u32| {
            let Some(place) = place else { return Vec::new() };
            let peer = place ^ (1 << round);
            let action =
                if peer < place { Action::ReduceFromLower } else { Action::ReduceFromHigher };
            vec![all(taken(peer), Action::Send), all(taken(peer), action)]
        };
        let mut schedule = Schedule::new();
        if paired > 0 {
            schedule.push(pair(Action::ReduceFromHigher, Action::Send));
        }
        schedule.extend((0..power.ilog2()).map(double));
        if paired > 0 {
            schedule.push(pair(Action::Send, Action::Receive));
        }
        schedule
    }
}

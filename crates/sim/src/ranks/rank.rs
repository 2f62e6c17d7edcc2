//! A rank that executes the schedules of several collectives, one after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rdma_group::simulation::{Action, Schedule, Transfer};

use super::network::Time;

/// The step of a rank that follows.
pub(super) enum Step {
    Send(Transfer),
    Receive(Transfer),
    /// A collective has ended.
    Ended,
    Done,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// Waits for a message from this rank.
    Waiting(usize),
    /// Has reported that it has lost a rank, and waits for the decision of rank 0.
    Reported,
    Done,
    Dead,
    /// Ended because of this rank.
    Failed(usize),
}

pub(super) struct Rank {
    /// The remaining steps, in order.
    steps: VecDeque<Step>,
    pub(super) peers: BTreeSet<usize>,
    pub(super) buffer: Vec<u64>,
    combine: Combine,
    /// The messages that have arrived, by sender.
    pub(super) inbox: BTreeMap<usize, VecDeque<Vec<u64>>>,
    /// The peers whose connections have ended.
    pub(super) ended: BTreeSet<usize>,
    pub(super) state: State,
    pub(super) now: Time,
    /// The times at which collectives began and ended.
    pub(super) times: Vec<Time>,
    /// The number of steps before this rank dies.
    pub(super) dies_after: Option<usize>,
}

impl Rank {
    pub(super) fn new(
        schedules: [Schedule; 2],
        buffer: Vec<u64>,
        combine: Combine,
        begin: Time,
        dies_after: Option<usize>,
    ) -> Self {
        let mut steps = VecDeque::new();
        let mut peers = BTreeSet::new();
        for schedule in schedules {
            peers.extend(schedule.iter().flatten().map(|transfer| transfer.peer));
            for round in schedule {
                let is_send = |transfer: &Transfer| transfer.action == Action::Send;
                let (sends, receives): (Vec<_>, Vec<_>) = round.into_iter().partition(is_send);
                steps.extend(sends.into_iter().map(Step::Send));
                steps.extend(receives.into_iter().map(Step::Receive));
            }
            steps.push_back(Step::Ended);
        }
        Self {
            steps,
            peers,
            buffer,
            combine,
            inbox: BTreeMap::new(),
            ended: BTreeSet::new(),
            state: State::Running,
            now: begin,
            times: vec![begin],
            dies_after,
        }
    }

    /// Returns the next step. A receive stays the next step until its message has arrived.
    pub(super) fn next(&mut self) -> Step {
        if let Some(Step::Receive(transfer)) = self.steps.front() {
            let transfer = transfer.clone();
            if self.inbox.get(&transfer.peer).is_none_or(VecDeque::is_empty) {
                return Step::Receive(transfer);
            }
        }
        self.steps.pop_front().unwrap_or(Step::Done)
    }

    /// Counts a step.
    pub(super) fn count_step(&mut self) {
        if let Some(left) = &mut self.dies_after {
            *left -= 1;
        }
    }

    /// Processes the message of a receive.
    pub(super) fn receive(&mut self, transfer: &Transfer, message: &[u64]) {
        let own = &mut self.buffer[transfer.range.clone()];
        assert_eq!(own.len(), message.len(), "a message has another length");
        for (own, received) in own.iter_mut().zip(message) {
            *own = match transfer.action {
                Action::ReduceFromLower => (self.combine)(*received, *own),
                Action::ReduceFromHigher => (self.combine)(*own, *received),
                Action::Receive | Action::Send => *received,
            };
        }
    }
}

/// Combines the elements of a lower and a higher rank.
pub(super) type Combine = fn(u64, u64) -> u64;

//! Executes the schedules of all ranks, in the order of their events.
//!
//! Failures spread as in `rdma-group`. The connections of a rank that ends are closed. A rank that waits for such a
//! connection reports it to rank 0, which decides which rank is the cause and notifies all. Notices between other ranks
//! are not modelled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::mem;

use rdma_group::simulation::{Transfer, cause};

use super::network::{Network, OVERHEAD, Time};
use super::rank::{Rank, State, Step};

enum Event {
    Arrived {
        from: usize,
        message: Vec<u64>,
    },
    /// The connection to a peer has ended.
    Closed {
        from: usize,
    },
    /// Rank 0 receives a report of a rank, or the end of its connection (a report that names the rank itself).
    Reported {
        by: usize,
        lost: usize,
    },
    /// Rank 0 checks for reports.
    Check,
    /// Rank 0 has decided, or has ended.
    Noticed {
        cause: usize,
    },
}

/// All ranks, and the events that follow.
pub(super) struct Run {
    pub(super) ranks: Vec<Rank>,
    element_bytes: usize,
    network: Network,
    /// The times and numbers of events, the earliest first.
    queue: BinaryHeap<Reverse<(Time, usize)>>,
    /// The events by their numbers, with the ranks where they happen.
    events: HashMap<usize, (usize, Event)>,
    count: usize,
    /// The reports that have arrived at rank 0 before its next check.
    reports: Vec<(usize, usize)>,
    decided: bool,
}

impl Run {
    pub(super) fn new(ranks: Vec<Rank>, element_bytes: usize, network: Network) -> Self {
        Self {
            ranks,
            element_bytes,
            network,
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            count: 0,
            reports: Vec::new(),
            decided: false,
        }
    }

    /// Runs until nothing happens any longer. Returns the number of events.
    pub(super) fn finish(&mut self) -> usize {
        for rank in 0..self.ranks.len() {
            self.proceed(rank);
        }
        while let Some(Reverse((time, number))) = self.queue.pop() {
            let Some((to, event)) = self.events.remove(&number) else { continue };
            if !matches!(self.ranks[to].state, State::Dead | State::Failed(_)) {
                self.process(to, time, event);
            }
        }
        self.count
    }

    fn process(&mut self, to: usize, time: Time, event: Event) {
        let rank = &mut self.ranks[to];
        match event {
            Event::Arrived { from, message } => {
                rank.inbox.entry(from).or_default().push_back(message);
                self.wake(to, from, time);
            }
            Event::Closed { from } => {
                rank.ended.insert(from);
                self.wake(to, from, time);
            }
            Event::Reported { by, lost } => {
                if self.reports.is_empty() {
                    let check = time + self.network.until_check();
                    self.push(check, 0, Event::Check);
                }
                self.reports.push((by, lost));
            }
            Event::Check => self.decide(time),
            Event::Noticed { cause } => self.fail(to, time, cause),
        }
    }

    /// Continues a rank that waits for this peer.
    fn wake(&mut self, to: usize, from: usize, time: Time) {
        let rank = &mut self.ranks[to];
        if rank.state == State::Waiting(from) {
            rank.state = State::Running;
            rank.now = rank.now.max(time);
            self.proceed(to);
        }
    }

    /// Takes steps until the rank waits or ends.
    fn proceed(&mut self, own: usize) {
        loop {
            let rank = &mut self.ranks[own];
            let step = rank.next();
            if matches!(step, Step::Send(_) | Step::Receive(_)) && rank.dies_after == Some(0) {
                return self.end(own, State::Dead, own);
            }
            match step {
                Step::Send(Transfer { peer, range, .. }) => {
                    rank.count_step();
                    let message = rank.buffer[range].to_vec();
                    rank.now += Network::sending(message.len() * self.element_bytes);
                    let arrival = self.network.arrival(rank.now, own, peer);
                    self.push(arrival, peer, Event::Arrived { from: own, message });
                }
                Step::Receive(transfer) => {
                    let peer = transfer.peer;
                    let Some(message) = rank.inbox.entry(peer).or_default().pop_front() else {
                        if rank.ended.contains(&peer) {
                            return self.lose(own, peer);
                        }
                        rank.state = State::Waiting(peer);
                        return;
                    };
                    rank.count_step();
                    rank.receive(&transfer, &message);
                    rank.now += OVERHEAD;
                }
                Step::Ended => rank.times.push(rank.now),
                Step::Done => {
                    rank.state = State::Done;
                    return;
                }
            }
        }
    }

    /// A rank has noticed that a connection has ended.
    fn lose(&mut self, own: usize, lost: usize) {
        let now = self.ranks[own].now;
        self.ranks[own].state = State::Reported;
        if own == 0 {
            self.reports.push((0, lost));
            return self.decide(now);
        }
        let arrival = self.network.arrival(now, own, STAR);
        self.push(arrival, 0, Event::Reported { by: own, lost });
    }

    /// Rank 0 decides on the reports that have arrived.
    fn decide(&mut self, time: Time) {
        if mem::replace(&mut self.decided, true) {
            return;
        }
        let cause = cause(&self.reports);
        for rank in 1..self.ranks.len() {
            let arrival = self.network.arrival(time, STAR, rank);
            self.push(arrival, rank, Event::Noticed { cause });
        }
        self.fail(0, time, cause);
    }

    fn fail(&mut self, own: usize, time: Time, cause: usize) {
        self.ranks[own].now = self.ranks[own].now.max(time);
        self.end(own, State::Failed(cause), cause);
    }

    /// Ends a rank, and with it its connections.
    fn end(&mut self, own: usize, state: State, cause: usize) {
        let rank = &mut self.ranks[own];
        rank.state = state;
        let (now, peers) = (rank.now, rank.peers.clone());
        for peer in peers {
            let arrival = self.network.arrival(now, own, peer);
            self.push(arrival, peer, Event::Closed { from: own });
        }
        if state != State::Dead {
            return;
        }
        if own == 0 {
            for rank in 1..self.ranks.len() {
                let arrival = self.network.arrival(now, STAR, rank);
                self.push(arrival, rank, Event::Noticed { cause });
            }
        } else {
            let arrival = self.network.arrival(now, own, STAR);
            self.push(arrival, 0, Event::Reported { by: own, lost: own });
        }
    }

    fn push(&mut self, time: Time, to: usize, event: Event) {
        self.count += 1;
        self.queue.push(Reverse((time, self.count)));
        self.events.insert(self.count, (to, event));
    }
}

/// Stands for rank 0 in connections on which failures are reported.
const STAR: usize = usize::MAX;

//! The checks after the last operation of a script.

use std::time::Duration;

use test_support::rig::Qp;

use crate::memory::{self, DATA, WORDS};
use crate::run::{Outcome, World, ensure};
use crate::script::Service;

/// The number of events that are simulated between two polls.
const STEPS: u32 = 64;

impl World<'_> {
    /// Lets all requests complete, and checks that they complete in the allowed time.
    pub(crate) fn end(&mut self) -> Outcome {
        self.come_to_rest()?;
        if self.give_up_waiting()? {
            self.come_to_rest()?;
        }
        for end in 0..self.ends.len() {
            self.settle(end)?;
        }
        for end in 0..self.ends.len() {
            self.check_end(end).map_err(|why| format!("at the end, q{end}: {why}"))?;
        }
        Ok(())
    }

    /// Moves queue pairs that wait indefinitely to the error state. A program would have to do the
    /// same, because nothing reports that no answer will arrive. Checks that these queue pairs have
    /// a reason to wait. Returns true if there were any.
    fn give_up_waiting(&mut self) -> Outcome<bool> {
        let mut any = false;
        for (n, c) in self.script.settings.connections.iter().enumerate() {
            let pair = [2 * n, 2 * n + 1];
            let waits = |end: &usize| {
                let (own, hosts) = (&self.ends[*end], &self.hosts);
                let in_flight = |qp: &Qp| hosts[own.device].soft.in_flight(qp.qpn());
                own.qp.as_ref().map_or(0, in_flight) > 0
            };
            if !c.waits_for_ever() || !pair.iter().any(waits) {
                continue;
            }
            let excused = |end: &usize| {
                let own = &self.ends[*end];
                own.failed || own.excuses.silence || own.excuses.flushed
            };
            let reason = !self.calm || pair.iter().any(excused);
            ensure!(reason, "c{n} waits without a limit, and nothing was lost: {}", self.left());
            for end in pair {
                self.set_error(end);
            }
            any = true;
        }
        Ok(any)
    }

    /// Simulates events until none are left.
    fn come_to_rest(&mut self) -> Outcome {
        let until = self.network.now() + self.patience();
        loop {
            self.receive_the_rest();
            let before = self.message_count();
            let busy = (0..STEPS).all(|_| self.network.step());
            self.complete()?;
            if !busy && !self.network.step() && before == self.message_count() {
                break;
            }
            ensure!(self.network.now() < until, "it does not end: {}", self.left());
        }
        self.complete()?;
        ensure!(!self.network.step(), "an event is left after the end");
        Ok(())
    }

    /// Returns the time limit for the end of the run: 20 seconds, and enough time for all attempts
    /// of all pending requests.
    fn patience(&self) -> Duration {
        let mut patience = Duration::from_secs(20);
        for (end, own) in self.ends.iter().enumerate() {
            let Some(c) = self.script.settings.connections.get(end / 2) else { continue };
            let timeout = Duration::from_nanos(4096 << c.timeout) + 2 * self.longest;
            patience += (own.pending.len() as u32 + 1) * 16 * timeout;
        }
        patience
    }

    /// Posts receives on connections whose senders wait for them.
    fn receive_the_rest(&mut self) {
        for end in 0..self.ends.len() {
            let own = &self.ends[end];
            let takes = own.service == Service::Reliable && !own.failed && !own.flushed_early;
            let waits = takes && !own.expected.is_empty();
            if waits && self.pool(end).posted.len() < 4 {
                self.receive(end, 4, 1);
            }
        }
    }

    /// Returns the number of outstanding requests and the number of posted receives.
    fn message_count(&self) -> (usize, usize) {
        let pending = self.ends.iter().map(|own| own.pending.len()).sum();
        let posted = self.ends.iter().map(|own| own.pool.posted.len());
        let shared = self.hosts.iter().map(|host| host.shared.posted.len());
        (pending, posted.chain(shared).sum())
    }

    fn left(&self) -> String {
        let left = |(end, own): (usize, &crate::host::SimQueuePair)| {
            let sent = own.pending.front()?;
            Some(format!("q{end} has {} requests, first {}", own.pending.len(), sent.request))
        };
        self.ends.iter().enumerate().filter_map(left).collect::<Vec<_>>().join("; ")
    }

    fn check_end(&self, end: usize) -> Outcome {
        let own = &self.ends[end];
        if let Some(qp) = &own.qp {
            let in_flight = self.hosts[own.device].soft.in_flight(qp.qpn());
            ensure!(in_flight == 0, "{in_flight} requests are in flight, but no event is left");
        }
        let all_came = match own.service {
            Service::Reliable => !own.failed && !own.excuses.flushed && !self.ends[own.peer].failed,
            _ => self.calm && !own.starved,
        };
        let peer_is_there = own.qp.is_some() && self.ends[own.peer].qp.is_some();
        let missing = own.expected.iter().filter(|it| it.came == 0 && it.certain).count();
        let flushed = self.ends[own.peer].excuses.flushed;
        let lost = all_came && peer_is_there && !flushed && missing > 0;
        ensure!(!lost, "{missing} messages did not arrive");
        self.check_memory(end)
    }

    pub(crate) fn check_memory(&self, end: usize) -> Outcome {
        let own = &self.ends[end];
        if let Some((memory, then)) = &own.frozen {
            ensure!(memory == then, "memory was written after its deregistration");
        }
        let actual = own.target_bytes(0, own.known.known.len());
        own.known.check_words(&actual, &[])?;
        own.known.check(8 * WORDS, &actual[8 * WORDS..], [].iter())?;
        // Without faults, all unreliable WRITEs must have arrived.
        if own.service == Service::Unreliable && self.calm && !own.starved {
            let mut known = own.known.known.clone();
            for placed in &own.known.uncertain {
                memory::fill(placed.message, 0, &mut known[DATA + placed.at..][..placed.length]);
            }
            ensure!(known[8 * WORDS..] == actual[8 * WORDS..], "a WRITE is missing");
        }
        Ok(())
    }
}

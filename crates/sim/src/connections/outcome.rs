//! The checks after the last operation.

use super::end::{Attempt, Phase};
use super::host::NO_PORT;
use super::run::Run;

impl Run {
    /// Lets everything come to an end, and checks the result.
    pub(super) fn check_outcome(&mut self) -> Result<(), String> {
        for host in 0..self.hosts.len() {
            if !self.hosts[host].is_alive() {
                self.die_or_return(host);
            }
        }
        self.settle()?;
        self.check_agreement()?;
        // A late copy of a REQ may begin another connection.
        while let Some(end) = self.first(Phase::Established) {
            self.disconnect(end)?;
            if self.rng.bool() {
                self.settle()?;
            }
        }
        self.settle()?;
        if let Some(end) = self.ends.iter().find(|end| !end.phase.is_past()) {
            return Err(format!(
                "attempt {} at host {} is {:?} at the end",
                end.attempt, end.host, end.phase
            ));
        }
        self.check_nothing_is_left()
    }

    fn first(&self, phase: Phase) -> Option<usize> {
        self.ends.iter().position(|end| end.phase == phase)
    }

    /// Decides everything, until nothing happens any longer.
    fn settle(&mut self) -> Result<(), String> {
        loop {
            self.rest()?;
            let phases = [Phase::Asked, Phase::Replied, Phase::Queried];
            let Some(end) = phases.into_iter().find_map(|phase| self.first(phase)) else {
                return Ok(());
            };
            self.go_on(end)?;
        }
    }

    /// Checks that each attempt was established at both ends, or at none.
    fn check_agreement(&self) -> Result<(), String> {
        for (number, attempt) in self.attempts.iter().enumerate() {
            let of = |end: &usize| &self.ends[*end];
            let (active, passive) = (of(&attempt.ends[0]), attempt.ends[1..].iter().map(of));
            let established: Vec<_> =
                passive.clone().filter(|end| end.phase == Phase::Established).collect();
            let is_established = active.phase == Phase::Established;
            let agrees = match &established[..] {
                [] => !is_established,
                [one] => is_established && active.peer_qpn == one.qpn && one.peer_qpn == active.qpn,
                _ => false,
            };
            // An end that its peer has forgotten notices this only when it disconnects.
            let may_differ = self.is_disturbed(number)
                || attempt.ends.iter().map(of).any(|end| end.has_acted || end.is_unanswered)
                || attempt.reuses;
            if !agrees && !may_differ {
                let phases: Vec<_> = attempt.ends.iter().map(|end| of(end).phase).collect();
                return Err(format!("the ends of attempt {number} differ: {phases:?}"));
            }
        }
        Ok(())
    }

    /// Checks that no manager has a connection. Each queue pair can be used again, for a request to each of its peers.
    fn check_nothing_is_left(&mut self) -> Result<(), String> {
        let mut probes = Vec::new();
        for Attempt { from, to, ends, .. } in &self.attempts {
            for end in ends.iter().map(|end| &self.ends[*end]).filter(|end| end.qpn != 0) {
                let to = if end.is_active { *to } else { *from };
                probes.push((end.host, to, end.qpn));
            }
        }
        probes.sort_unstable();
        probes.dedup();
        for (from, to, qpn) in probes {
            let port = NO_PORT;
            // The model knows that this host has no listener at the port.
            self.hosts[to].closed_at = Some(self.network.now());
            if !self.connect_with(from, to, port, (qpn, false))? {
                return Err(format!("QPN {qpn:#x} of host {from} is in use at the end"));
            }
            self.rest()?;
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let counters =
                host.channel.as_ref().map(|channel| channel.counters()).unwrap_or_default();
            let wrong = [
                counters.malformed,
                counters.unsupported_version,
                counters.unsupported,
                counters.wrong_source,
                counters.half_open_full,
                counters.table_full,
            ];
            if wrong.iter().any(|count| *count > 0) {
                return Err(format!("host {number} has received invalid messages: {counters:?}"));
            }
        }
        for end in 0..self.ends.len() {
            self.leave(end);
        }
        self.rest()
    }
}

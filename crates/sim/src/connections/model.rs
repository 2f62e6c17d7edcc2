//! Which events are allowed, and by which time.

use std::time::Duration;

use rdma_cm::unmanaged::{Answered, Event, Id, Parameters, Route, SidrStatus};
use rdma_cm::{End as Cause, IdToken, Reason};

use super::end::{End, Phase};
use super::rest::Rest;
use super::run::Run;

/// The number of times that a message is sent: once, and 15 repetitions.
const TRIES: u32 = 16;
/// The time for an answer that a REQ states.
const RESPONSE: Duration = Duration::from_nanos(4096 << 20);
/// The time for a packet of a query's answer: the shortest timeout.
const QUERY_ACK: Duration = Duration::from_nanos(4096);
/// The time that an MRA adds to a try.
const SERVICE: Duration = Duration::from_nanos(4096 << 24);

impl Run {
    /// Processes all events, and checks that no end waits too long.
    pub(super) fn drain(&mut self) -> Result<(), String> {
        loop {
            let mut is_idle = true;
            for host in 0..self.hosts.len() {
                while let Some((token, event)) = self.hosts[host].next() {
                    is_idle = false;
                    let what = name(&event);
                    self.note((host, what, self.network.now()));
                    self.handle(host, token, event).map_err(|why| {
                        format!("{what} at host {host}, {:?}: {why}", self.network.now())
                    })?;
                }
            }
            if is_idle {
                return self.check_limits();
            }
        }
    }

    fn handle(&mut self, host: usize, token: IdToken, event: Event) -> Result<(), String> {
        if self.hosts[host].is_listener(token) {
            return match event {
                Event::Requested { id, parameters, route, private_data } => {
                    self.requested(host, id, &parameters, &route, &private_data)
                }
                Event::Queried { id, private_data, .. } => {
                    let attempt = self.attempt_of(host, &private_data)?;
                    self.add_passive(host, id, attempt, 0, Phase::Queried);
                    Ok(())
                }
                _ => Err("a listener receives no such event".to_owned()),
            };
        }
        let &number = self.tokens.get(&token).ok_or("the ID is unknown")?;
        let phase = self.ends[number].phase;
        if phase.is_past() {
            return Err(format!("the end is {phase:?} already"));
        }
        match event {
            Event::Replied { parameters, .. } => self.replied(number, &parameters),
            Event::Established { .. } => self.established(number),
            Event::Answered(answered) => self.answered(number, &answered),
            Event::Ended(cause) => self.ended(number, &cause),
            _ => Err("no such event may arrive".to_owned()),
        }
    }

    /// Returns the attempt whose number is in a request's private data.
    fn attempt_of(&self, host: usize, private_data: &[u8]) -> Result<usize, String> {
        let number = private_data.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let number = number.ok_or("the private data is too short")?;
        let attempt = self.attempts.get(number).ok_or("the private data names no attempt")?;
        if attempt.to != host {
            return Err(format!("attempt {number} is for host {}", attempt.to));
        }
        Ok(number)
    }

    fn requested(
        &mut self,
        host: usize,
        id: Id,
        parameters: &Parameters,
        route: &Route,
        private_data: &[u8],
    ) -> Result<(), String> {
        let number = self.attempt_of(host, private_data)?;
        let attempt = &self.attempts[number];
        let (active, qpn) = (&self.ends[attempt.ends[0]], parameters.qpn.get());
        if active.qpn != qpn {
            return Err(format!("the REQ contains QPN {qpn:#x}, not {:#x}", active.qpn));
        }
        let from = self.hosts[attempt.from].address(0).ip();
        if route.destination.ip() != from {
            return Err(format!("the REQ came from {from}, not from {}", route.destination));
        }
        let mut earlier = attempt.ends[1..].iter().map(|&end| &self.ends[end]);
        if let Some(other) = earlier.find(|end| !end.phase.is_past()) {
            return Err(format!("the REQ arrived before, and its end is {:?}", other.phase));
        }
        self.add_passive(host, id, number, qpn, Phase::Asked);
        Ok(())
    }

    fn add_passive(&mut self, host: usize, id: Id, attempt: usize, peer_qpn: u32, phase: Phase) {
        self.add_end(End {
            attempt,
            host,
            is_active: false,
            id: Some(id),
            qpn: 0,
            peer_qpn,
            phase,
            since: self.network.now(),
            has_acted: false,
            is_unanswered: false,
            is_forced: false,
        });
    }

    fn replied(&mut self, number: usize, parameters: &Parameters) -> Result<(), String> {
        let (end, qpn) = (&self.ends[number], parameters.qpn.get());
        if end.phase != Phase::Connecting {
            return Err(format!("the end is {:?}", end.phase));
        }
        if !self.peers(number).any(|peer| peer.qpn == qpn) {
            return Err("no end has sent the REP".to_owned());
        }
        self.ends[number].peer_qpn = qpn;
        self.enter(number, Phase::Replied);
        Ok(())
    }

    fn established(&mut self, number: usize) -> Result<(), String> {
        let end = &self.ends[number];
        if end.is_active || end.phase != Phase::Accepted {
            return Err(format!("the end is {:?}", end.phase));
        }
        let forced = self.forced.take();
        let has_confirmed = |peer: &End| {
            peer.peer_qpn == end.qpn && !matches!(peer.phase, Phase::Connecting | Phase::Replied)
        };
        if forced != Some(number) && !self.peers(number).any(has_confirmed) {
            return Err("the peer has not confirmed the REP".to_owned());
        }
        self.totals.established += 1;
        self.enter(number, Phase::Established);
        Ok(())
    }

    fn answered(&mut self, number: usize, answered: &Answered) -> Result<(), String> {
        let end = &self.ends[number];
        if end.phase != Phase::Querying {
            return Err(format!("the end is {:?}", end.phase));
        }
        let qpn = answered.qpn.get();
        let is_right = match answered.status {
            SidrStatus::VALID => self.peers(number).any(|peer| peer.qpn == qpn),
            SidrStatus::REJECTED => self.peers(number).any(|peer| peer.has_acted),
            SidrStatus::UNSUPPORTED => self.was_closed(number),
            _ => false,
        };
        if !is_right {
            return Err(format!("no program has answered with {answered:?}"));
        }
        self.totals.answered += u64::from(answered.status == SidrStatus::VALID);
        self.enter(number, Phase::Over);
        Ok(())
    }

    fn ended(&mut self, number: usize, cause: &Cause) -> Result<(), String> {
        let end = &self.ends[number];
        if !self.may_end(number, cause) {
            return Err(format!("{:?} must not end: {cause:?}", end.phase));
        }
        let now = self.network.now();
        let is_unanswered = matches!(cause, Cause::Unanswered { .. });
        let least = match end.phase {
            Phase::Querying => TRIES * (RESPONSE + QUERY_ACK),
            _ => TRIES * (RESPONSE + self.ack),
        };
        if is_unanswered && now < end.since + least {
            return Err(format!("{:?} was given up after {:?}", end.phase, now - end.since));
        }
        if end.qpn != 0 {
            self.rests.insert((end.host, end.qpn), Rest::after(end, cause, now));
        }
        self.ends[number].is_unanswered = is_unanswered;
        self.enter(number, Phase::Over);
        Ok(())
    }

    /// Returns true if an end has a reason to end in this way.
    fn may_end(&self, number: usize, cause: &Cause) -> bool {
        let end = &self.ends[number];
        let attempt = &self.attempts[end.attempt];
        let any = |test: fn(&End) -> bool| self.peers(number).any(test);
        let is_stale = attempt.reuses || self.is_disturbed(end.attempt);
        let is_lost =
            is_stale || any(|peer| peer.phase.is_past() || peer.has_acted || peer.is_unanswered);
        match (end.phase, cause) {
            (Phase::Connecting, Cause::Rejected { reason, .. }) => match *reason {
                Reason::CONSUMER_DEFINED => any(|peer| peer.has_acted),
                Reason::INVALID_SERVICE_ID => self.was_closed(number),
                Reason::TIMEOUT => any(|peer| peer.is_unanswered),
                Reason::STALE_CONNECTION => is_lost,
                _ => false,
            },
            (Phase::Connecting, Cause::Refused { .. }) => is_stale,
            (Phase::Connecting, Cause::Unanswered { .. }) => {
                is_stale || !self.has_peer(number, &[Phase::Accepted, Phase::Established])
            }
            (Phase::Accepted, Cause::Unanswered { .. }) => {
                is_stale || !self.has_peer(number, &[Phase::Established])
            }
            (Phase::Querying, Cause::Unanswered { .. }) => true,
            (Phase::Disconnecting, Cause::Disconnected { .. } | Cause::Rejected { .. }) => true,
            (Phase::Asked, Cause::PeerGone)
            | (
                Phase::Replied | Phase::Accepted | Phase::Established,
                Cause::Rejected { .. } | Cause::Disconnected { .. },
            ) => is_lost,
            _ => false,
        }
    }

    /// Returns the other ends of an attempt.
    fn peers(&self, number: usize) -> impl Iterator<Item = &End> {
        let end = &self.ends[number];
        let others = self.attempts[end.attempt].ends.iter().map(|&other| &self.ends[other]);
        others.filter(move |other| other.is_active != end.is_active)
    }

    /// Returns true if the peer of an end has been in one of these phases for a long time. Its message must then have
    /// arrived: the peer has sent it ten times, and the links lose few messages. An active end confirms one passive end
    /// only, although late copies of its REQ may begin others.
    fn has_peer(&self, number: usize, phases: &[Phase]) -> bool {
        const TEN_TRIES: Duration = Duration::from_secs(90);
        let now = self.network.now();
        let has_sent = |peer: &End| {
            let answers = peer.peer_qpn == self.ends[number].qpn && !peer.is_forced;
            answers && phases.contains(&peer.phase) && now > peer.since + TEN_TRIES
        };
        self.loses_few && self.peers(number).any(has_sent)
    }

    /// Returns true if a host of an attempt has died since it began.
    pub(super) fn is_disturbed(&self, attempt: usize) -> bool {
        let attempt = &self.attempts[attempt];
        [attempt.from, attempt.to].map(|host| self.hosts[host].deaths) != attempt.deaths
    }

    /// Returns true if the host of an attempt had no listener at some time since it began.
    fn was_closed(&self, number: usize) -> bool {
        let attempt = &self.attempts[self.ends[number].attempt];
        let host = &self.hosts[attempt.to];
        host.listeners.is_none() || host.closed_at.is_some_and(|at| at >= attempt.begun)
    }

    /// Checks that no end waits longer than all tries take, each prolonged by at most one MRA.
    fn check_limits(&self) -> Result<(), String> {
        let now = self.network.now();
        for end in &self.ends {
            let limit = match end.phase {
                Phase::Connecting | Phase::Accepted => TRIES * (RESPONSE + SERVICE + 2 * self.ack),
                Phase::Disconnecting => TRIES * (RESPONSE + self.ack),
                Phase::Querying => TRIES * (RESPONSE + QUERY_ACK),
                _ => continue,
            };
            if now > end.since + limit {
                let End { attempt, host, phase, since, .. } = end;
                return Err(format!(
                    "attempt {attempt} at host {host} is {phase:?} since {since:?}, and it is {now:?}"
                ));
            }
        }
        Ok(())
    }
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Requested { .. } => "request",
        Event::Replied { .. } => "reply",
        Event::Established { .. } => "confirmation",
        Event::Queried { .. } => "query",
        Event::Answered(_) => "answer",
        Event::Ended(_) => "end",
        _ => "other event",
    }
}

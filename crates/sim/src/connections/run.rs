//! A random workload: programs that connect, decide, disconnect and die.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rdma_cm::unmanaged::{self, Parameters, PortSpace};
use rdma_cm::{Error, IdToken, Reason};
use rdma_soft::{LinkModel, Network};
use rdma_types::{AckTimeout, Psn, Qpn};

use super::Connections;
use super::end::{Attempt, End, Phase};
use super::host::{Host, PORT};
use super::rest::Rest;
use super::tally::Tally;

/// The maximum number of events until everything rests.
const EVENTS: u32 = 200_000;

pub(super) struct Run {
    pub(super) rng: Rng,
    model: LinkModel,
    /// Whether the links lose so few messages that none is lost ten times in a row.
    pub(super) loses_few: bool,
    tally: Arc<Tally>,
    pub(super) hosts: Vec<Host>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) ends: Vec<End>,
    pub(super) tokens: BTreeMap<IdToken, usize>,
    /// The state of each QPN that a host has used.
    pub(super) rests: BTreeMap<(usize, u32), Rest>,
    /// The end whose program has established it without the peer's confirmation.
    pub(super) forced: Option<usize>,
    /// The time for an acknowledgement in each REQ, which is the length of TimeWait.
    pub(super) ack: Duration,
    ack_code: u8,
    /// Whether hosts die.
    deaths: bool,
    pub(super) totals: Connections,
    trace: DefaultHasher,
    /// Dropped last, because connections use it.
    pub(super) network: Network,
}

impl Run {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let network = Network::simulated(seed);
        let latency =
            Duration::from_micros(*rng.choice([10, 5_000, 300_000, 1_500_000].iter()).unwrap());
        let mut part = |most: f64| if rng.u8(..4) == 0 { 0.0 } else { rng.f64() * most };
        let [loss, duplication, reordering, corruption] = [0.15, 0.2, 0.3, 0.02].map(&mut part);
        let model = LinkModel::new()
            .latency(latency)
            .loss(loss)
            .duplication(duplication)
            .reordering(reordering)
            .corruption(corruption);
        network.set_all_links(model);
        let tally = Tally::of(&network, latency);
        let hosts = (0..rng.usize(2..=4)).map(|n| Host::new(&network, &format!("cm{n}")));
        let hosts = hosts.collect();
        let ack_code = *rng.choice([14, 18, 20].iter()).unwrap();
        Self {
            deaths: rng.bool(),
            rng,
            model,
            loses_few: loss + corruption < 0.05,
            tally,
            hosts,
            attempts: Vec::new(),
            ends: Vec::new(),
            tokens: BTreeMap::new(),
            rests: BTreeMap::new(),
            forced: None,
            ack: Duration::from_nanos(4096 << ack_code),
            ack_code,
            totals: Connections::default(),
            trace: DefaultHasher::new(),
            network,
        }
    }

    /// Runs the workload, and returns its figures.
    pub(super) fn finish(mut self) -> Result<Connections, String> {
        for _ in 0..self.rng.u32(10..60) {
            self.act()?;
            let most = *self.rng.choice([0, 10, 2_000, 20_000].iter()).unwrap();
            let time = Duration::from_millis(self.rng.u64(0..=most));
            self.pass(time)?;
        }
        self.check_outcome()?;
        self.totals.fates = self.tally.fates();
        self.totals.time = self.network.now();
        self.network.trace().hash(&mut self.trace);
        self.totals.trace = self.trace.clone().finish();
        Ok(self.totals)
    }

    pub(super) fn note(&mut self, what: impl Hash) {
        what.hash(&mut self.trace);
    }

    /// Lets some time pass. Each event of the network is followed by those of the programs.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.network.now() + time;
        self.drain()?;
        while self.network.next_event().is_some_and(|at| at <= end) {
            self.network.step();
            self.drain()?;
        }
        self.network.run_for(end.saturating_sub(self.network.now()));
        self.drain()
    }

    /// Lets time pass until nothing happens any longer.
    pub(super) fn rest(&mut self) -> Result<(), String> {
        self.drain()?;
        for _ in 0..EVENTS {
            if !self.network.step() {
                return Ok(());
            }
            self.drain()?;
        }
        Err(format!("something happens even after {EVENTS} events"))
    }

    /// Lets a program do something.
    fn act(&mut self) -> Result<(), String> {
        let host = self.rng.usize(..self.hosts.len());
        match self.rng.u8(..32) {
            0..6 => self.connect_to_other(host)?,
            6..8 => {
                // The requests of both ends cross.
                let other = self.other(host);
                self.connect(host, other, PORT)?;
                self.connect(other, host, PORT)?;
            }
            8..10 => self.query(host),
            10 => {
                let (now, host) = (self.network.now(), &mut self.hosts[host]);
                if host.listeners.take().is_some() {
                    host.closed_at = Some(now);
                } else if host.is_alive() {
                    host.closed_at = Some(now);
                    host.listen();
                }
            }
            11 if self.deaths => self.die_or_return(host),
            _ => {
                for _ in 0..self.rng.u8(1..6) {
                    let is_able = |end: &usize| !self.ends[*end].phase.is_past();
                    let able: Vec<_> = (0..self.ends.len()).filter(is_able).collect();
                    if let Some(&end) = self.rng.choice(able.iter()) {
                        self.decide(end)?;
                        self.drain()?;
                    }
                }
            }
        }
        self.drain()
    }

    fn other(&mut self, host: usize) -> usize {
        (host + self.rng.usize(1..self.hosts.len())) % self.hosts.len()
    }

    fn connect_to_other(&mut self, host: usize) -> Result<(), String> {
        let other = self.other(host);
        self.connect(host, other, PORT)
    }

    /// Chooses a queue pair: a new one, or one that an earlier connection had. Returns whether a connection with it must
    /// be refused, if that is known.
    fn choose_qpn(&mut self, host: usize) -> (u32, Option<bool>, bool) {
        let used = self.hosts[host].qpns;
        let number = |n: u32| ((host as u32 + 1) << 16) + n;
        if used == 0 || self.rng.u8(..6) > 0 {
            self.hosts[host].qpns += 1;
            return (number(used + 1), Some(false), false);
        }
        let qpn = number(self.rng.u32(1..=used));
        let rest = self.rests.get(&(host, qpn)).copied().unwrap_or(Rest::Free);
        (qpn, rest.is_refused(self.network.now(), self.ack), true)
    }

    /// Requests a connection with some queue pair.
    fn connect(&mut self, from: usize, to: usize, port: u16) -> Result<(), String> {
        if !self.hosts[from].is_alive() {
            return Ok(());
        }
        let (qpn, is_refused, reuses) = self.choose_qpn(from);
        let before = self.rests.get(&(from, qpn)).copied();
        let is_requested = self.connect_with(from, to, port, (qpn, reuses))?;
        if is_refused == Some(is_requested) {
            return Err(format!(
                "QPN {qpn:#x} of host {from} was {before:?} at {:?}, and was {}",
                self.network.now(),
                if is_requested { "accepted" } else { "refused" }
            ));
        }
        Ok(())
    }

    /// Requests a connection. Returns false if its queue pair is in use.
    pub(super) fn connect_with(
        &mut self,
        from: usize,
        to: usize,
        port: u16,
        (qpn, reuses): (u32, bool),
    ) -> Result<bool, String> {
        let number = self.attempts.len();
        let host = &self.hosts[from];
        let mut route = host.route_to(self.hosts[to].address(port));
        route.ack_timeout = AckTimeout::from_code(self.ack_code).unwrap();
        let own = Parameters::new(Qpn::masked(qpn), Psn::masked(qpn));
        let channel = host.channel.as_ref().unwrap();
        let data = (number as u32).to_le_bytes();
        let id = match unmanaged::connect(channel, PortSpace::Tcp, &route, &own, &data) {
            Ok(id) => id,
            Err(Error::QueuePairInUse { .. }) => return Ok(false),
            Err(error) => return Err(format!("a connection was refused: {error}")),
        };
        self.totals.requested += u64::from(port == PORT);
        self.rests.insert((from, qpn), Rest::InUse);
        self.add_active(from, to, id, (qpn, reuses), Phase::Connecting);
        Ok(true)
    }

    fn query(&mut self, from: usize) {
        let to = self.other(from);
        if !self.hosts[from].is_alive() {
            return;
        }
        let route = self.hosts[from].route_to(self.hosts[to].address(PORT));
        let channel = self.hosts[from].channel.as_ref().unwrap();
        let data = (self.attempts.len() as u32).to_le_bytes();
        let id = unmanaged::query(channel, PortSpace::Udp, &route, &data).unwrap();
        self.totals.queries += 1;
        self.add_active(from, to, id, (0, false), Phase::Querying);
    }

    fn add_active(
        &mut self,
        from: usize,
        to: usize,
        id: unmanaged::Id,
        (qpn, reuses): (u32, bool),
        phase: Phase,
    ) {
        let now = self.network.now();
        let deaths = [from, to].map(|host| self.hosts[host].deaths);
        self.attempts.push(Attempt { from, to, deaths, begun: now, reuses, ends: Vec::new() });
        self.add_end(End {
            attempt: self.attempts.len() - 1,
            host: from,
            is_active: true,
            id: Some(id),
            qpn,
            peer_qpn: 0,
            phase,
            since: now,
            has_acted: false,
            is_unanswered: false,
            is_forced: false,
        });
    }

    pub(super) fn add_end(&mut self, end: End) {
        let number = self.ends.len();
        self.attempts[end.attempt].ends.push(number);
        self.tokens.extend(end.id.as_ref().map(|id| (id.token(), number)));
        self.ends.push(end);
    }

    pub(super) fn enter(&mut self, end: usize, phase: Phase) {
        let end = &mut self.ends[end];
        (end.phase, end.since) = (phase, self.network.now());
    }

    /// Lets the program of an end decide, or change its mind.
    fn decide(&mut self, end: usize) -> Result<(), String> {
        let choice = self.rng.u8(..16);
        match (self.ends[end].phase, choice) {
            (Phase::Asked, 0) | (Phase::Replied, 0) => self.reject(end),
            (Phase::Queried, 0) => {
                self.ends[end].has_acted = true;
                self.with_id(end, |id| id.refuse(b""))?;
                self.enter(end, Phase::Over);
                Ok(())
            }
            (Phase::Accepted, 0..2) => {
                self.forced = Some(end);
                self.ends[end].is_forced = true;
                self.with_id(end, |id| id.communication_established())
            }
            (Phase::Established, 0..4) => self.disconnect(end),
            (Phase::Established, 4..6) => {
                // Both ends disconnect at once.
                let all = self.attempts[self.ends[end].attempt].ends.clone();
                all.into_iter().try_for_each(|end| match self.ends[end].phase {
                    Phase::Established => self.disconnect(end),
                    _ => Ok(()),
                })
            }
            (_, 15) => {
                self.leave(end);
                Ok(())
            }
            (Phase::Asked | Phase::Replied | Phase::Queried, _) => self.go_on(end),
            _ => Ok(()),
        }
    }

    /// Accepts, confirms or answers what an end has received.
    pub(super) fn go_on(&mut self, number: usize) -> Result<(), String> {
        let (host, phase) = (self.ends[number].host, self.ends[number].phase);
        if phase == Phase::Replied {
            self.with_id(number, |id| id.establish())?;
            self.enter(number, Phase::Established);
            return Ok(());
        }
        let (qpn, is_refused, reuses) = self.choose_qpn(host);
        if phase == Phase::Queried {
            self.ends[number].qpn = qpn;
            self.with_id(number, |id| id.answer(Qpn::masked(qpn), 7, b""))?;
            self.enter(number, Phase::Over);
            return Ok(());
        }
        let own = Parameters::new(Qpn::masked(qpn), Psn::masked(qpn));
        let id = self.ends[number].id.as_ref().unwrap();
        let is_accepted = match id.accept(&own, b"") {
            Ok(()) => true,
            Err(Error::QueuePairInUse { .. }) => false,
            Err(error) => return Err(format!("{phase:?} was not accepted: {error}")),
        };
        if is_refused == Some(is_accepted) {
            return Err(format!("QPN {qpn:#x} of host {host}: is accepted: {is_accepted}"));
        }
        if is_accepted {
            self.rests.insert((host, qpn), Rest::InUse);
            self.ends[number].qpn = qpn;
            self.attempts[self.ends[number].attempt].reuses |= reuses;
            self.enter(number, Phase::Accepted);
        }
        Ok(())
    }

    fn with_id(
        &self,
        end: usize,
        call: impl FnOnce(&unmanaged::Id) -> Result<(), Error>,
    ) -> Result<(), String> {
        let End { phase, ref id, .. } = self.ends[end];
        let called = id.as_ref().map(call).transpose();
        called.map(drop).map_err(|error| format!("a call of {phase:?} fails: {error}"))
    }

    fn reject(&mut self, end: usize) -> Result<(), String> {
        self.ends[end].has_acted = true;
        self.with_id(end, |id| id.reject(Reason::CONSUMER_DEFINED, b""))?;
        self.rest_after_leaving(end);
        self.enter(end, Phase::Over);
        Ok(())
    }

    pub(super) fn disconnect(&mut self, end: usize) -> Result<(), String> {
        self.ends[end].has_acted = true;
        self.with_id(end, |id| id.disconnect())?;
        self.enter(end, Phase::Disconnecting);
        Ok(())
    }

    /// Drops an end.
    pub(super) fn leave(&mut self, end: usize) {
        self.ends[end].id = None;
        if !self.ends[end].phase.is_past() {
            self.ends[end].has_acted = true;
            self.rest_after_leaving(end);
            self.enter(end, Phase::Left);
        }
    }

    /// Updates the state of a queue pair whose program rejects or drops the connection.
    fn rest_after_leaving(&mut self, end: usize) {
        let End { host, qpn, phase, .. } = self.ends[end];
        let rest = match phase {
            Phase::Connecting | Phase::Asked => Rest::Free,
            Phase::Replied | Phase::Accepted => Rest::Since(self.network.now()),
            _ => Rest::Unknown,
        };
        if qpn != 0 && !matches!(phase, Phase::Queried | Phase::Querying) {
            self.rests.insert((host, qpn), rest);
        }
    }

    /// Lets a host die without a message, or return.
    pub(super) fn die_or_return(&mut self, host: usize) {
        let is_alive = self.hosts[host].is_alive();
        let model = if is_alive { LinkModel::cut() } else { self.model };
        let own = self.hosts[host].device;
        for other in self.hosts.iter().map(|host| host.device).filter(|it| it.name() != own.name())
        {
            self.network.set_link(&own, &other, model).unwrap();
            self.network.set_link(&other, &own, model).unwrap();
        }
        if !is_alive {
            return self.hosts[host].begin();
        }
        self.tally.pause(true);
        for end in 0..self.ends.len() {
            if self.ends[end].host == host && self.ends[end].phase != Phase::Dead {
                self.ends[end].id = None;
                self.ends[end].has_acted = true;
                self.enter(end, Phase::Dead);
            }
        }
        self.hosts[host].die();
        self.tally.pause(false);
        self.hosts[host].closed_at = Some(self.network.now());
        self.rests.retain(|(of, _), _| *of != host);
        self.totals.deaths += 1;
    }
}

//! Two ends and the network between them, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdma_proto::Time;
use rdma_proto::cm::wire::{Answer, MAD_LEN, Mad, Message, Offer, Path, Rejection, Timeout};
use rdma_proto::cm::{
    Address, Cause, CommId, Event, Manager, Output, PortSpace, ServiceId, Settings, Transmit,
};
use rdma_types::{Gid, Guid, Mtu, Qpn};

pub(crate) use crate::pair::network::Fate;

/// The one-way latency of a MAD.
pub(crate) const LATENCY: u64 = 1_000;

/// The number of repetitions of each message.
pub(crate) const RETRIES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Chooses the fate of a MAD by its sender and its number there, counted from 0.
pub(crate) type Network = Box<dyn FnMut(Side, u64) -> Fate>;

/// The code of the longest time that a manager waits for an answer.
pub(crate) const LONGEST: u8 = 7;

pub(crate) fn timeout(code: u8) -> Timeout {
    Timeout::from_code(code).unwrap()
}

/// The time after which an end of a [`Pair`] repeats a message.
pub(crate) fn response() -> Duration {
    timeout(4).duration() + round_trip()
}

/// The length of TimeWait.
pub(crate) fn round_trip() -> Duration {
    timeout(3).duration()
}

pub(crate) fn service() -> ServiceId {
    PortSpace::Tcp.service_id(7471)
}

/// A service that answers queries.
pub(crate) fn datagram_service() -> ServiceId {
    PortSpace::Udp.service_id(7471)
}

/// The last known state of a connection, as its program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The program requested it, accepted it, or has to decide about it.
    Begun,
    Established,
    /// The program disconnected it.
    Ending,
    TimeWait,
}

/// One end: a manager and its program.
pub(crate) struct End {
    pub(crate) manager: Manager,
    pub(crate) address: Address,
    pub(crate) gid: Gid,
    /// Whether the program accepts requests and replies at once.
    pub(crate) decides: bool,
    pub(crate) phases: BTreeMap<CommId, Phase>,
    /// The queue pairs of each connection: this end's, and the peer's.
    pub(crate) links: BTreeMap<CommId, (Qpn, Qpn)>,
    /// The queue pairs of connections that have ended.
    pub(crate) ended: BTreeSet<Qpn>,
    /// The times since which the manager waits for a peer, or keeps TimeWait.
    waiting: BTreeMap<CommId, Time>,
    /// The connection of the last event or call.
    pub(crate) last: CommId,
    next_qpn: u32,
    /// The queue pairs that have been released. They are used again if `reuses` is true.
    unused: Vec<Qpn>,
    pub(crate) reuses: bool,
}

impl End {
    fn new(n: u8, secret: u32) -> Self {
        let gid = Gid::from_ipv4([10, 0, 0, n].into());
        let mut settings = Settings::new(Guid::from_u64(n.into()), n.into(), secret);
        settings.service_timeout = timeout(6);
        settings.longest_timeout = timeout(LONGEST);
        let mut manager = Manager::new(&settings);
        manager.listen(service()).unwrap();
        manager.listen(datagram_service()).unwrap();
        Self {
            manager,
            address: Address::Gid(gid),
            gid,
            decides: true,
            phases: BTreeMap::new(),
            links: BTreeMap::new(),
            ended: BTreeSet::new(),
            waiting: BTreeMap::new(),
            last: CommId::NONE,
            next_qpn: u32::from(n) << 16,
            unused: Vec::new(),
            reuses: false,
        }
    }

    pub(crate) fn qpn(&mut self) -> Qpn {
        if let Some(qpn) = self.unused.pop_if(|_| self.reuses) {
            return qpn;
        }
        self.next_qpn += 1;
        Qpn::masked(self.next_qpn)
    }

    fn enter(&mut self, id: CommId, phase: Phase) {
        self.phases.insert(id, phase);
        self.last = id;
    }

    pub(crate) fn begin(&mut self, now: Time, id: CommId) {
        self.enter(id, Phase::Begun);
        self.waiting.insert(id, now);
    }

    /// Returns true if the manager waits for the peer, or keeps TimeWait.
    pub(crate) fn is_waiting(&self, id: CommId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Checks that the manager has not waited longer than its documentation promises.
    fn waited(&mut self, now: Time, id: CommId) {
        if let Some(start) = self.waiting.remove(&id) {
            let most = timeout(LONGEST).duration() * 2 * (1 + u32::from(RETRIES));
            assert!(now <= start.after(most), "{id}: from {start:?} to {now:?}");
        }
    }

    /// Updates the phase of a connection, and returns the event as a line.
    fn record(&mut self, now: Time, event: &Event<'_>) -> String {
        match *event {
            Event::Requested { id, offer, .. } => {
                self.enter(id, Phase::Begun);
                self.links.insert(id, (Qpn::default(), offer.qpn));
                "requested".to_owned()
            }
            Event::Replied { id, answer, .. } => {
                assert_eq!(self.phases[&id], Phase::Begun);
                self.waited(now, id);
                self.last = id;
                self.links.get_mut(&id).unwrap().1 = answer.qpn;
                "replied".to_owned()
            }
            Event::Established { id, .. } => {
                assert_eq!(self.phases[&id], Phase::Begun);
                self.waited(now, id);
                self.enter(id, Phase::Established);
                "established".to_owned()
            }
            Event::Ended { id, cause, time_wait } => {
                self.waited(now, id);
                self.ended.extend(self.links.get(&id).map(|&(local, _)| local));
                let before = self.phases.remove(&id);
                assert!(before.is_some_and(|phase| phase != Phase::TimeWait), "{before:?}");
                if time_wait {
                    self.enter(id, Phase::TimeWait);
                    self.waiting.insert(id, now);
                }
                let waits = if time_wait { ", TimeWait" } else { "" };
                let cause = match cause {
                    Cause::Rejected(rejection) => format!("rejected {}", rejection.reason.get()),
                    Cause::Refused(reason) => format!("refused {}", reason.get()),
                    Cause::Unanswered => "unanswered".to_owned(),
                    Cause::Disconnected(_) => "disconnected".to_owned(),
                    _ => panic!("{cause:?}"),
                };
                format!("ended: {cause}{waits}")
            }
            Event::Released { id, qpn } => {
                self.waited(now, id);
                self.unused.push(qpn);
                assert_eq!(self.phases.remove(&id), Some(Phase::TimeWait));
                "released".to_owned()
            }
            Event::Queried { id, .. } => {
                self.enter(id, Phase::Begun);
                "queried".to_owned()
            }
            Event::Resolved { id, resolution } => {
                self.waited(now, id);
                self.phases.remove(&id);
                format!("resolved: status {}", resolution.status.get())
            }
            _ => panic!("{event:?}"),
        }
    }
}

pub(crate) struct Pair {
    pub(crate) left: End,
    pub(crate) right: End,
    pub(crate) now: Time,
    network: Network,
    /// The MADs in flight, by the time of arrival and the order of departure.
    under_way: BTreeMap<(u64, u64), (Side, [u8; MAD_LEN])>,
    departed: u64,
    sent: BTreeMap<Side, u64>,
    trace: Vec<String>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self {
            left: End::new(1, 0x5_4321),
            right: End::new(2, 0x5_4321),
            now: Time::from_nanos(0),
            network: Box::new(|_, _| Fate::Arrives),
            under_way: BTreeMap::new(),
            departed: 0,
            sent: BTreeMap::new(),
            trace: Vec::new(),
        }
    }

    /// A network that gives these MADs a specific fate.
    pub(crate) fn fates<const N: usize>(mut self, fates: [(Side, u64, Fate); N]) -> Self {
        self.network = Fate::listed(fates);
        self
    }

    pub(crate) fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    pub(crate) fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    /// Forgets all connections of an end, as if its host had started again.
    pub(crate) fn restart(&mut self, side: Side) {
        *self.end(side) = End::new(side as u8 + 1, 0xa_9876);
    }

    /// The parameters with which an end requests a connection.
    pub(crate) fn offer(&mut self, side: Side) -> Offer<'static> {
        let (local_gid, remote_gid) = match side {
            Side::Left => (self.left.gid, self.right.gid),
            Side::Right => (self.right.gid, self.left.gid),
        };
        let primary = Path { local_gid, remote_gid, ack_timeout: timeout(3), ..Path::default() };
        Offer {
            service_id: service(),
            qpn: self.end(side).qpn(),
            remote_response_timeout: timeout(4),
            local_response_timeout: timeout(4),
            max_cm_retries: RETRIES,
            mtu_code: Mtu::MTU1024.code(),
            primary,
            private_data: b"request",
            ..Offer::default()
        }
    }

    pub(crate) fn connect(&mut self, side: Side) -> CommId {
        let offer = self.offer(side);
        self.connect_with(side, &offer)
    }

    pub(crate) fn connect_with(&mut self, side: Side, offer: &Offer<'_>) -> CommId {
        let to = self.end(side.other()).address;
        let now = self.now;
        let (id, transmit) = self.end(side).manager.connect(now, to, offer).unwrap();
        self.end(side).begin(now, id);
        self.end(side).ended.remove(&offer.qpn);
        self.end(side).links.insert(id, (offer.qpn, Qpn::default()));
        self.depart(side, &transmit);
        id
    }

    /// Accepts the last request or reply of this end.
    pub(crate) fn decide(&mut self, side: Side) {
        let (now, id) = (self.now, self.end(side).last);
        let end = self.end(side);
        let qpn = end.qpn();
        let answer = Answer { qpn, private_data: b"reply", ..Answer::default() };
        let transmit = if let Ok(rep) = end.manager.accept(now, id, &answer) {
            end.begin(now, id);
            end.ended.remove(&qpn);
            end.links.get_mut(&id).unwrap().0 = qpn;
            rep
        } else {
            end.enter(id, Phase::Established);
            end.manager.ready(id, b"ready").unwrap()
        };
        self.depart(side, &transmit);
    }

    /// Rejects or cancels the last connection of this end.
    pub(crate) fn reject(&mut self, side: Side, rejection: &Rejection<'_>) {
        let (now, id) = (self.now, self.end(side).last);
        let end = self.end(side);
        let transmit = end.manager.reject(now, id, rejection).unwrap();
        let waits = end
            .manager
            .reject(now, id, rejection)
            .is_err_and(|error| error == rdma_proto::cm::Error::State(id));
        end.phases.remove(&id);
        end.waiting.remove(&id);
        end.ended.extend(end.links.get(&id).map(|&(local, _)| local));
        if waits {
            end.enter(id, Phase::TimeWait);
        }
        self.depart(side, &transmit);
    }

    pub(crate) fn disconnect(&mut self, side: Side, id: CommId) {
        let now = self.now;
        // A manager that ends a stale connection refuses the call.
        let Ok(transmit) = self.end(side).manager.disconnect(now, id, b"bye") else { return };
        self.end(side).enter(id, Phase::Ending);
        self.end(side).waiting.insert(id, now);
        self.depart(side, &transmit);
    }

    /// Establishes a connection from left to right without traces, and returns both IDs.
    pub(crate) fn establish(&mut self) -> (CommId, CommId) {
        let left = self.connect(Side::Left);
        self.run();
        (left, self.right.last)
    }

    /// Runs until nothing is in flight and no deadline is set, or until `duration` has passed. Returns the MADs and
    /// events of that time as lines.
    pub(crate) fn run_for(&mut self, duration: Duration) -> Vec<String> {
        let end = self.now.after(duration);
        loop {
            let arrival =
                self.under_way.first_key_value().map(|(&(at, _), _)| Time::from_nanos(at));
            let deadlines = [self.left.manager.deadline(), self.right.manager.deadline()];
            let next = [arrival, deadlines[0], deadlines[1]].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = if next.is_some() { end } else { self.now };
                break;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (from, mad)) = self.under_way.pop_first().unwrap();
                self.arrive(from, &mad);
            } else {
                let side = if deadlines[0] == Some(next) { Side::Left } else { Side::Right };
                let now = self.now;
                let output = self.end(side).manager.expire(now).unwrap();
                self.handle(side, output);
            }
        }
        core::mem::take(&mut self.trace)
    }

    pub(crate) fn run(&mut self) -> Vec<String> {
        self.run_for(Duration::from_secs(1_000))
    }

    fn arrive(&mut self, from: Side, mad: &[u8]) {
        let (address, now) = (self.end(from).address, self.now);
        let to = from.other();
        let output = self.end(to).manager.receive(now, address, mad);
        self.handle(to, output);
    }

    /// Delivers a MAD from any sender, and returns the answer and the event as lines.
    pub(crate) fn deliver(&mut self, to: Side, from: Address, message: Message<'_>) -> Vec<String> {
        let mad = Mad { tid: 7, message }.emit().unwrap();
        self.deliver_bytes(to, from, &mad)
    }

    /// Like [`deliver`](Self::deliver), for any bytes.
    pub(crate) fn deliver_bytes(&mut self, to: Side, from: Address, mad: &[u8]) -> Vec<String> {
        let now = self.now;
        let end = self.end(to);
        let output = end.manager.receive(now, from, mad);
        let answer = output.transmit.map(|transmit| {
            assert_eq!(transmit.to, from);
            describe(&transmit.mad)
        });
        let event = output.event.map(|event| end.record(now, &event));
        answer.into_iter().chain(event).collect()
    }

    fn handle(&mut self, side: Side, output: Output<'_>) {
        if let Some(transmit) = output.transmit {
            self.depart(side, &transmit);
        }
        let (Some(event), now) = (output.event, self.now) else { return };
        let line = self.end(side).record(now, &event);
        let name = if side == Side::Left { "left" } else { "right" };
        self.trace.push(format!("   {name} {line}"));
        let decides = matches!(event, Event::Requested { .. } | Event::Replied { .. });
        if decides && self.end(side).decides {
            self.decide(side);
        }
    }

    pub(crate) fn depart(&mut self, side: Side, transmit: &Transmit) {
        if transmit.to != self.end(side.other()).address {
            self.trace.push(format!("{} to {:?}", describe(&transmit.mad), transmit.to));
            return;
        }
        let sent = self.sent.entry(side).or_default();
        let fate = (self.network)(side, *sent);
        *sent += 1;
        let (shown, copies, late) = match fate {
            Fate::Arrives => ("", 1, 0),
            Fate::Lost => (", lost", 0, 0),
            Fate::Twice => (", twice", 2, 0),
            Fate::Late(late) => (", late", 1, late * LATENCY),
        };
        let arrow = if side == Side::Left { "->" } else { "<-" };
        self.trace.push(format!("{arrow} {}{shown}", describe(&transmit.mad)));
        for _ in 0..copies {
            let at = self.now.as_nanos() + LATENCY + late;
            self.under_way.insert((at, self.departed), (side, transmit.mad));
            self.departed += 1;
        }
    }
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// Formats a MAD as a line.
pub(crate) fn describe(mad: &[u8]) -> String {
    match Mad::parse(mad).unwrap().message {
        Message::Req(_) => "REQ".to_owned(),
        Message::Mra(mra) => format!("MRA of {:?}", mra.subject),
        Message::Rej(rej) => format!("REJ {} of {:?}", rej.rejection.reason.get(), rej.subject),
        Message::Rep(_) => "REP".to_owned(),
        Message::Rtu(_) => "RTU".to_owned(),
        Message::Dreq(_) => "DREQ".to_owned(),
        Message::Drep(_) => "DREP".to_owned(),
        Message::SidrReq(_) => "SIDR_REQ".to_owned(),
        Message::SidrRep(reply) => format!("SIDR_REP {}", reply.resolution.status.get()),
        other => panic!("{other:?}"),
    }
}

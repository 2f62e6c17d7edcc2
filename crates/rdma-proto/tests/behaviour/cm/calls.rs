//! Random calls and messages, also wrong ones, with times that jump: nothing panics, an error changes nothing, and the
//! program can account for every connection.

use std::collections::{BTreeMap, BTreeSet};

use rdma_proto::Time;
use rdma_proto::cm::wire::{Answer, Offer, Path, Query, Reason, Rejection, Resolution, Timeout};
use rdma_proto::cm::{Address, CommId, Error, Event, Manager, Output, Settings, Transmit};
use rdma_types::{Gid, Guid, Qpn};

use crate::cm::network::{datagram_service, service, timeout};
use crate::cm::random::message;
use crate::pair::random::Random;

/// The greatest number of connections.
const MOST: u32 = 8;

/// One manager, and the connections and queries that its program knows.
struct Program {
    manager: Manager,
    random: Random,
    now: Time,
    ids: BTreeSet<CommId>,
    /// The peers of connections, and their IDs.
    peers: BTreeMap<CommId, (Gid, [u8; 4])>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (slot, secret) = (random.below(1 << 16) as u16, random.below(1 << 32) as u32);
        let mut settings = Settings::new(Guid::from_u64(1), slot, secret);
        settings.max_connections = MOST;
        settings.longest_timeout = timeout(random.below(32) as u8);
        settings.service_timeout = timeout(random.below(32) as u8);
        let mut manager = Manager::new(&settings);
        manager.listen(service()).unwrap();
        manager.listen(datagram_service()).unwrap();
        Self { manager, random, now: Time::default(), ids: BTreeSet::new(), peers: BTreeMap::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// A known ID or a wrong one.
    fn id(&mut self) -> CommId {
        let at = self.below(self.ids.len() as u64 + 1) as usize;
        self.ids.iter().nth(at).copied().unwrap_or(CommId::new(self.random.below(1 << 32) as u32))
    }

    /// One of few queue pairs, so that they are often in use.
    fn qpn(&mut self) -> Qpn {
        Qpn::masked(self.below(12) as u32)
    }

    fn code(&mut self) -> Timeout {
        timeout(self.below(32) as u8)
    }

    fn peer(&mut self) -> Gid {
        Gid::from_bytes([self.below(2) as u8; 16])
    }

    /// Forwards, seldom backwards, and seldom to the last time.
    fn pass_time(&mut self) {
        self.now = match self.below(64) {
            0 => Time::from_nanos(u64::MAX),
            1 => Time::from_nanos(self.now.as_nanos() / 2),
            n => self.now.after(Timeout::from_code(n as u8 % 32).unwrap().duration()),
        };
        let mut left = self.ids.len() * 18;
        while let Some(output) = self.manager.expire(self.now) {
            self.record(&output);
            left = left.checked_sub(1).expect("each timer expires a limited number of times");
        }
        assert!(self.manager.deadline().is_none_or(|deadline| deadline > self.now));
    }

    fn record(&mut self, output: &Output<'_>) {
        let is_known = match output.event {
            None => return,
            Some(Event::Requested { id, .. } | Event::Queried { id, .. }) => !self.ids.insert(id),
            Some(
                Event::Ended { id, time_wait: false, .. }
                | Event::Released { id, .. }
                | Event::Resolved { id, .. },
            ) => !self.ids.remove(&id),
            Some(
                Event::Ended { id, time_wait: true, .. }
                | Event::Replied { id, .. }
                | Event::Established { id, .. },
            ) => !self.ids.contains(&id),
            Some(event) => panic!("{event:?}"),
        };
        assert!(!is_known, "{output:?}, known: {:?}", self.ids);
    }

    fn receive(&mut self) {
        let ids: Vec<_> = self.ids.iter().copied().chain([CommId::new(1), CommId::NONE]).collect();
        let qpns: Vec<_> = (0..12).map(Qpn::masked).collect();
        let mut mad = [0; 256];
        message(&mut self.random, &ids, &qpns, &mut mad);
        let mut from = self.peer();
        let id = self.id();
        if let Some(&(peer, peer_id)) = self.peers.get(&id) {
            from = peer;
            mad[24..28].copy_from_slice(&peer_id);
            mad[28..32].copy_from_slice(&id.get().to_be_bytes());
        }
        if mad[17] == 0x10 {
            mad[74] = 0x30;
            mad[67] &= !4;
            mad[32..40].copy_from_slice(&service().get().to_be_bytes());
            mad[80..96].copy_from_slice(from.as_bytes());
        } else if self.below(2) == 0 {
            mad[32..40].copy_from_slice(&datagram_service().get().to_be_bytes());
        }
        let output = self.manager.receive(self.now, Address::Gid(from), &mad);
        if let Some(Event::Requested { id, .. } | Event::Replied { id, .. }) = output.event {
            self.peers.insert(id, (from, *mad[24..].first_chunk().unwrap()));
        }
        self.record(&output);
    }

    fn call(&mut self) {
        let (now, id, qpn) = (self.now, self.id(), self.qpn());
        let before = (self.manager.len(), self.manager.deadline(), *self.manager.counters());
        let data = [7; 230];
        let len = self.below(230) as usize;
        let private_data = data.split_at(if self.below(3) == 0 { len } else { 0 }).0;
        let result = match self.below(8) {
            0 => self.connect(qpn, private_data),
            1 => self.query(private_data),
            2 => {
                let answer = Answer { qpn, private_data, ..Answer::default() };
                self.manager.accept(now, id, &answer)
            }
            3 => self.manager.ready(id, private_data),
            4 => self.reject(id, private_data),
            5 => self.manager.disconnect(now, id, private_data),
            6 => {
                let resolution = Resolution { private_data, ..Resolution::default() };
                let result = self.manager.answer(id, &resolution);
                assert!(result.is_err() || self.ids.remove(&id));
                result
            }
            _ => {
                let _ = self.manager.communication_established(id);
                return;
            }
        };
        if result.is_err() {
            let after = (self.manager.len(), self.manager.deadline(), *self.manager.counters());
            assert_eq!(after, before, "{result:?}");
        }
    }

    fn connect(&mut self, qpn: Qpn, private_data: &[u8]) -> Result<Transmit, Error> {
        let to = Address::Gid(self.peer());
        let primary = Path { ack_timeout: self.code(), ..Path::default() };
        let offer = Offer {
            service_id: service(),
            qpn,
            remote_response_timeout: self.code(),
            max_cm_retries: self.below(256) as u8,
            primary,
            private_data,
            ..Offer::default()
        };
        let (id, transmit) = self.manager.connect(self.now, to, &offer)?;
        assert!(self.ids.insert(id));
        Ok(transmit)
    }

    fn query(&mut self, private_data: &[u8]) -> Result<Transmit, Error> {
        let to = Address::Gid(self.peer());
        let query = Query { service_id: datagram_service(), private_data, ..Query::default() };
        let (timeout, retries) = (self.code(), self.below(256) as u8);
        let (id, transmit) = self.manager.query(self.now, to, &query, timeout, retries)?;
        assert!(self.ids.insert(id));
        Ok(transmit)
    }

    fn reject(&mut self, id: CommId, private_data: &[u8]) -> Result<Transmit, Error> {
        let rejection = Rejection { private_data, ..Rejection::new(Reason::CONSUMER_DEFINED) };
        let transmit = self.manager.reject(self.now, id, &rejection)?;
        // In TimeWait, the connection is still known.
        if self.manager.disconnect(self.now, id, &[]).unwrap_err() == Error::Unknown(id) {
            assert!(self.ids.remove(&id));
        }
        Ok(transmit)
    }

    /// Ends all connections and queries.
    fn end(&mut self) {
        while !self.ids.is_empty() {
            for id in self.ids.clone() {
                let is_rejected = self.reject(id, &[]).is_ok();
                if !is_rejected && self.manager.answer(id, &Resolution::default()).is_ok() {
                    self.ids.remove(&id);
                } else {
                    let _ = self.manager.disconnect(self.now, id, &[]);
                }
            }
            self.now = self.manager.deadline().map_or(self.now, |deadline| deadline.max(self.now));
            self.pass_time();
        }
        assert!(self.manager.is_empty() && self.manager.deadline().is_none());
    }
}

#[test]
fn any_calls_in_any_order_are_errors_or_harmless() {
    for seed in 0..2_000 {
        let mut program = Program::new(seed);
        for _ in 0..200 {
            match program.below(8) {
                0..=3 => program.call(),
                4..=6 => program.receive(),
                _ => program.pass_time(),
            }
            assert_eq!(program.manager.len(), program.ids.len(), "seed {seed}");
            assert!(program.ids.len() <= MOST as usize);
        }
        program.end();
    }
}

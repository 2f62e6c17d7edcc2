//! A stream of requests, into a responder. A reliable connection has two responders: one gets each run of packets
//! unchanged, the other packet by packet. Both must behave alike.

use arbitrary::Unstructured;
use rdma_proto::responder::{self, Responder};
use rdma_proto::wire::{Headers, Packet, Service};
use rdma_proto::{Burst, Connection, Nak, Stop};
use rdma_types::{MinRnrTimer, Mtu, Psn};

use super::connected::Connected;
use super::input::{Ask, Poll, Setting, Tag, number, raw};
use super::peer::{self, PEER};
use super::watched::Plain;
use super::{datagrams, unreliable};

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let setting = Setting::read(&mut input);
    match setting.service() {
        Service::Uc => unreliable::respond(&setting, &mut input),
        Service::Ud => datagrams::run(&setting, &mut input),
        _ => Twins::new(&setting).run(&mut input),
    }
}

impl Setting {
    pub(crate) fn service(&self) -> Service {
        match self.service % 4 {
            2 => Service::Uc,
            3 => Service::Ud,
            _ => Service::Rc,
        }
    }

    pub(crate) fn mtu(&self) -> Mtu {
        Mtu::from_bytes(256 << (self.mtu % 5)).expect("an MTU")
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection::new(PEER, self.mtu())
    }

    pub(crate) fn psn(&self) -> Psn {
        Psn::masked(self.psn)
    }
}

/// Returns the request of a step of [`Tag::Packet`] or [`Tag::Raw`].
pub(crate) fn request(
    tag: Tag,
    service: Service,
    mtu: u32,
    expected: Psn,
    input: &mut Unstructured<'_>,
) -> Option<(Burst, Vec<u8>)> {
    if !matches!(tag, Tag::Raw) {
        return Some(peer::ask(&Ask::read(input), service, mtu, expected));
    }
    let Packet { headers, payload, .. } = Packet::parse(raw(input)).ok()?;
    Some((Burst::single(headers, payload.len()), payload.to_vec()))
}

/// The possible errors of a host.
pub(crate) fn stop(number: u8) -> Stop {
    match number % 5 {
        0 | 1 => Stop::NotReady,
        2 => Stop::Drop,
        3 => Stop::Nak(Nak::RemoteAccess),
        _ => Stop::Nak(Nak::RemoteOperational),
    }
}

/// The twin that gets whole runs.
struct ByRuns {
    responder: Responder,
    host: Plain,
}

impl ByRuns {
    fn transmit(&mut self, room: &mut [u8]) -> Vec<(Headers, Vec<u8>)> {
        let burst = self.responder.poll_transmit(&mut self.host, room);
        burst.map_or_else(Vec::new, |burst| peer::packets(&burst, room))
    }
}

struct Twins {
    by_runs: ByRuns,
    by_packets: Connected,
    mtu: u32,
}

impl Twins {
    fn new(setting: &Setting) -> Self {
        let settings = responder::Settings {
            connection: setting.connection(),
            psn: setting.psn(),
            min_rnr_timer: MinRnrTimer::limited(setting.rnr_retries % 32).unwrap_or_default(),
            max_dest_rd_atomic: setting.resources % 20,
        };
        let by_runs = ByRuns { responder: Responder::new(&settings), host: Plain::new() };
        let by_packets = Connected::new(&settings);
        Self { by_runs, by_packets, mtu: setting.mtu().bytes() }
    }

    fn run(&mut self, input: &mut Unstructured<'_>) {
        while !input.is_empty() {
            self.step(input);
            assert_eq!(*self.by_runs.responder.counters(), self.by_packets.counters());
        }
        // Everything that is owed is sent, and that ends.
        let poll = Poll { times: u8::MAX, room: 15 };
        assert!((0..100).any(|_| !self.poll(&poll)), "the answers never end");
        self.by_packets.end();
        let (one, other) = (&self.by_runs.host.memory, &self.by_packets.host.plain.memory);
        assert!(one.bytes == other.bytes && one.received == other.received);
        assert_eq!((one.atomics, one.failed), (other.atomics, other.failed));
    }

    fn step(&mut self, input: &mut Unstructured<'_>) {
        match Tag::read(input) {
            tag @ (Tag::Packet | Tag::Raw) => {
                let expected = self.by_packets.expected;
                if let Some((burst, payload)) = request(tag, Service::Rc, self.mtu, expected, input)
                {
                    self.receive(&burst, &payload);
                }
            }
            Tag::Poll => _ = self.poll(&Poll::read(input)),
            Tag::Post => {
                let size = number::<u16>(input);
                self.each(|host| host.memory.receives.push_back(size.into()));
            }
            Tag::Switch => {
                let granted = number::<u8>(input) < 128;
                self.each(|host| host.memory.granted = granted);
            }
            Tag::Next => {
                let next = stop(number(input));
                self.each(|host| host.next = Some(next));
            }
        }
    }

    fn each(&mut self, does: impl Fn(&mut Plain)) {
        does(&mut self.by_runs.host);
        does(&mut self.by_packets.host.plain);
    }

    fn receive(&mut self, burst: &Burst, payload: &[u8]) {
        for (headers, payload) in burst.packets(payload) {
            self.by_packets.receive(&headers, payload);
        }
        let ByRuns { responder, host } = &mut self.by_runs;
        responder.receive(burst, payload, host);
    }

    /// Returns true if more packets may be owed.
    fn poll(&mut self, poll: &Poll) -> bool {
        let (mtu, more) = (self.mtu as usize, usize::from(poll.room));
        let (mut room, mut small) = (vec![0; mtu + more % 16 * mtu + more], vec![0; mtu]);
        for _ in 0..poll.times {
            let packets = self.by_runs.transmit(&mut room);
            let mut same = Vec::new();
            while same.len() < packets.len() {
                let next = self.by_packets.transmit(&mut small);
                assert_eq!(next.len(), 1, "room for one, and something to send");
                same.extend(next);
            }
            assert_eq!(packets, same);
            if packets.is_empty() {
                assert!(self.by_packets.transmit(&mut small).is_empty());
                return false;
            }
        }
        true
    }
}

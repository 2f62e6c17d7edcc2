//! A requester, a responder, and a separate link for each direction, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use rdma_proto::requester::{self, Fixed, Requester};
use rdma_proto::responder::{self, Responder};
use rdma_proto::wire::Headers;
use rdma_proto::{
    Burst, Connection, Delivered, Host, Kind, MessageEnd, MessageStart, Nak, Remote, Source, Stop,
    Time, Work, Wqe,
};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, Mtu, Psn, Qpn, WcStatus};

const MTU: Mtu = Mtu::MTU1024;
const MESSAGE: u32 = 1 << 16;
const MESSAGES: u32 = 200;
/// The one-way latency, in nanoseconds.
const LATENCY: u64 = 10_000;
/// The bytes that Ethernet (with preamble and gap), IPv4, UDP and the ICRC add to a packet.
const AROUND: u64 = 38 + 20 + 8 + 4;
/// The most packets of a run.
const RUN: usize = 16;

/// The measured configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) kind: Kind,
    /// The number of packets lost out of 1000.
    pub(crate) loss: u64,
    pub(crate) window: u32,
    /// The timeout, as a code.
    pub(crate) timeout: u8,
    /// The number of packets that a link buffers.
    pub(crate) room: usize,
}

/// The results of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// The goodput per second.
    pub(crate) megabytes: u64,
    pub(crate) timeouts: u64,
    pub(crate) probes: u64,
}

impl Scenario {
    /// A scenario without loss, with default values and timeout code 10. A link buffers 16 packets.
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, loss: 0, window: Fixed::default().0, timeout: 10, room: RUN }
    }

    /// Runs once with each seed.
    pub(crate) fn run(self, seeds: Range<u64>) -> Measured {
        let (mut bytes, mut nanos, mut measured) = (0, 0, Measured::default());
        for seed in seeds {
            let mut network = Network::new(self, seed);
            while network.ends.done < MESSAGES {
                assert_eq!(network.ends.failed, None, "{self:?}, seed {seed}");
                network.step();
            }
            bytes += u64::from(MESSAGES) * u64::from(MESSAGE);
            nanos += network.now.as_nanos();
            measured.timeouts += network.requester.counters().local_ack_timeout_err;
            measured.probes += network.requester.counters().roce_adp_retrans;
        }
        measured.megabytes = bytes * 1000 / nanos;
        measured
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % bound
    }
}

/// An endless queue, and memory that stores nothing.
struct Ends {
    kind: Kind,
    done: u32,
    failed: Option<WcStatus>,
}

impl Work for Ends {
    fn admitted(&self) -> u32 {
        MESSAGES
    }
    fn request(&self, _: u32) -> Wqe {
        let start = MessageStart::one_sided(self.kind, Remote::default(), MESSAGE);
        Wqe::Remote {
            start,
            end: MessageEnd { length: MESSAGE, ..MessageEnd::default() },
            fence: false,
        }
    }
    fn gather(&mut self, _: u32, _: u32, _: &mut [u8]) -> Result<(), WcStatus> {
        Ok(())
    }
    fn deliver(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), WcStatus> {
        Ok(())
    }
    fn execute_local(&mut self, _: u32) -> Result<(), WcStatus> {
        Ok(())
    }
    fn done(&mut self, _: u32) {
        self.done += 1;
    }
    fn failed(&mut self, _: u32, status: WcStatus) {
        self.failed = Some(status);
    }
}

impl Host for Ends {
    fn begin(&mut self, _: &MessageStart) -> Result<(), Stop> {
        Ok(())
    }
    fn place(&mut self, _: &MessageStart, _: u32, _: &[u8]) -> Result<(), Stop> {
        Ok(())
    }
    fn fetch(&mut self, _: &MessageStart, _: u32, _: &mut [u8]) -> Result<(), Stop> {
        Ok(())
    }
    fn atomic(&mut self, _: &MessageStart) -> Result<u64, Stop> {
        Ok(0)
    }
    fn take_receive(&mut self, _: &MessageStart) -> Result<(), Stop> {
        Ok(())
    }
    fn finish(&mut self, _: &MessageStart, _: &MessageEnd) -> Result<(), Stop> {
        Ok(())
    }
    fn abandon(&mut self) {}
    fn fail(&mut self, nak: Nak) {
        panic!("{nak:?}");
    }
    fn datagram(&mut self, _: &Source, _: &MessageEnd, _: &[u8]) -> Delivered {
        Delivered::Dropped
    }
}

/// A link that sends one byte per nanosecond.
#[derive(Default)]
struct Link {
    free: u64,
    /// The departure times of the packets in the buffer.
    leaving: VecDeque<u64>,
}

impl Link {
    fn room(&mut self, now: u64, of: usize) -> usize {
        while self.leaving.front().is_some_and(|&at| at <= now) {
            self.leaving.pop_front();
        }
        of.saturating_sub(self.leaving.len())
    }

    /// Returns the time when a packet arrives.
    fn take(&mut self, now: u64, bytes: u64) -> u64 {
        self.free = self.free.max(now) + bytes;
        self.leaving.push_back(self.free);
        self.free + LATENCY
    }
}

/// An arriving packet: the time, its number, and whether it is a request.
type Arrival = Reverse<(u64, usize, bool)>;

struct Network {
    scenario: Scenario,
    random: Random,
    now: Time,
    requester: Requester,
    responder: Responder,
    ends: Ends,
    requests: Link,
    responses: Link,
    arrivals: BinaryHeap<Arrival>,
    /// All packets that were sent, by number.
    packets: Vec<(Headers, usize)>,
    payload: Vec<u8>,
}

impl Network {
    fn new(scenario: Scenario, seed: u64) -> Self {
        let connection = Connection::new(Qpn::masked(0x11), MTU);
        let psn = Psn::masked(0);
        let requester = requester::Settings {
            connection,
            psn,
            timeout: AckTimeout::limited(scenario.timeout).unwrap(),
            retries: MaxAckRetries::default(),
            rnr_retries: MaxRnrRetries::default(),
            max_rd_atomic: 16,
        };
        let responder = responder::Settings {
            connection,
            psn,
            min_rnr_timer: MinRnrTimer::default(),
            max_dest_rd_atomic: 16,
        };
        Self {
            scenario,
            random: Random(seed),
            now: Time::default(),
            requester: Requester::with_window(&requester, Fixed(scenario.window)),
            responder: Responder::new(&responder),
            ends: Ends { kind: scenario.kind, done: 0, failed: None },
            requests: Link::default(),
            responses: Link::default(),
            arrivals: BinaryHeap::new(),
            packets: Vec::new(),
            payload: vec![0; RUN * MTU.bytes() as usize],
        }
    }

    /// Sends what can be sent, then advances to the next event.
    fn step(&mut self) {
        let free = [self.transmit(true), self.transmit(false)].into_iter().flatten().min();
        let arrival = self.arrivals.peek().map(|Reverse((at, ..))| *at);
        let deadline = self.requester.deadline().map(Time::as_nanos);
        let next = [free, arrival, deadline].into_iter().flatten().min().expect("all ends");
        self.now = Time::from_nanos(next.max(self.now.as_nanos()));
        if arrival == Some(next) {
            let Reverse((_, n, is_request)) = self.arrivals.pop().unwrap();
            let (headers, bytes) = self.packets[n];
            let (burst, payload) = (Burst::single(headers, bytes), &self.payload[..bytes]);
            if is_request {
                self.responder.receive(&burst, payload, &mut self.ends);
            } else {
                self.requester.receive(self.now, &burst, payload, &mut self.ends);
            }
        } else if deadline == Some(next) {
            self.requester.expire(self.now, &mut self.ends);
        }
    }

    /// Sends until nothing is left to send, or the link has no space. Returns the time when it has space again.
    fn transmit(&mut self, is_request: bool) -> Option<u64> {
        let now = self.now.as_nanos();
        loop {
            let link = if is_request { &mut self.requests } else { &mut self.responses };
            let packets = link.room(now, self.scenario.room).min(RUN);
            let room = &mut self.payload[..packets * MTU.bytes() as usize];
            let burst = match (packets, is_request) {
                (0, _) => return link.leaving.front().copied(),
                (_, true) => self.requester.poll_transmit(self.now, &mut self.ends, room)?,
                (_, false) => self.responder.poll_transmit(&mut self.ends, room)?,
            };
            for (headers, payload) in burst.packets(&self.payload[..burst.length as usize]) {
                let bytes = headers.wire_len() + payload.len();
                let at = link.take(now, AROUND + bytes as u64);
                if self.random.below(1000) >= self.scenario.loss {
                    self.arrivals.push(Reverse((at, self.packets.len(), is_request)));
                    self.packets.push((headers, payload.len()));
                }
            }
        }
    }
}

//! Random requests on a network that loses, duplicates and delays packets. Each is executed once and in order, its
//! bytes are right, and the run ends. `RDMA_PROTO_SEED` repeats a run; a failing run prints its seed.

use std::collections::BTreeMap;
use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use rdma_proto::wire::{Bth, Headers, Opcode, Operation, Service};
use rdma_proto::{Burst, MessageEnd, Wqe};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, Psn, Qpn, Rkey, WcStatus};

use crate::pair::ends::{RKEY, VA};
use crate::pair::network::{Fate, Pair, Way, bytes, settings};

/// A generator of random numbers: SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % bound
    }

    /// Returns a network that loses, repeats and delays fewer packets than these percentages. A delay is shorter than
    /// `latest`.
    pub(crate) fn network<W>(
        &mut self,
        percentages: [u64; 3],
        latest: u64,
    ) -> Box<dyn FnMut(W, u64) -> Fate> {
        let [loss, twice, late] = percentages.map(|most| self.below(most));
        let mut dice = Self(self.below(u64::MAX));
        Box::new(move |_, _| match dice.below(100) {
            die if die < loss => Fate::Lost,
            die if die < loss + twice => Fate::Twice,
            die if die < loss + twice + late => Fate::Late(dice.below(latest)),
            _ => Fate::Arrives,
        })
    }
}

/// Returns the seeds of this run: `RDMA_PROTO_RUNS` fresh ones, or the one in `RDMA_PROTO_SEED`.
pub(crate) fn seeds() -> Vec<u64> {
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let given = env::var("RDMA_PROTO_SEED").ok().map(|seed| seed.parse().unwrap());
    let runs: u64 = env::var("RDMA_PROTO_RUNS").map_or(300, |runs| runs.parse().unwrap());
    let (first, runs) = given.map_or_else(|| (fresh(), runs), |seed| (seed, 1));
    (0..runs).map(|n| first.wrapping_add(n)).collect()
}

/// The expected final state.
#[derive(Default)]
struct Model {
    memory: BTreeMap<usize, Vec<u8>>,
    received: Vec<(Vec<u8>, MessageEnd)>,
    read: BTreeMap<usize, Vec<u8>>,
    counter: u64,
    found: BTreeMap<usize, u64>,
}

/// The counter of the atomics is at the beginning; the memory of each request follows at a separate offset.
const PLACE: u64 = 2048;
const REQUESTS: u64 = 30;

fn post(pair: &mut Pair, random: &mut Random, model: &mut Model) {
    let length = match random.below(4) {
        0 => random.below(9),
        1 => 256 * random.below(8),
        _ => random.below(PLACE),
    } as u32;
    let n = pair.queue.posted.len();
    let place = PLACE * (1 + n as u64);
    let immediate = (random.below(2) == 0).then_some(n as u32);
    let solicited = random.below(2) == 0;
    match random.below(10) {
        0..3 => {
            let invalidate = (immediate.is_none() && solicited).then_some(Rkey::new(n as u32));
            let end = MessageEnd { length, immediate, invalidate, solicited };
            pair.send_with(end);
            model.received.push((bytes(n, length), end));
        }
        3..6 => {
            let end = MessageEnd { length, immediate, invalidate: None, solicited };
            pair.write_with(place, end);
            model.memory.insert(place as usize, bytes(n, length));
            if immediate.is_some() {
                model.received.push((Vec::new(), end));
            }
        }
        6..8 => {
            let content = bytes(n, length);
            pair.memory.bytes[place as usize..][..length as usize].copy_from_slice(&content);
            pair.read(place, length);
            model.read.insert(n, content);
        }
        8 => {
            let operand = random.below(1000);
            pair.add(0, operand);
            model.found.insert(n, model.counter);
            model.counter += operand;
        }
        _ => return pair.local(Ok(())),
    }
    if random.below(5) == 0 {
        pair.fence();
    }
}

/// Runs one script on one network. Returns the number of packets, or `None` if all the tries of a request were lost.
fn run(seed: u64) -> Option<u64> {
    let mut random = Random(seed);
    let (mut requester, responder) = settings();
    // On a network of this kind seven retries are too few in rare runs.
    requester.retries = MaxAckRetries::default();
    requester.rnr_retries = MaxRnrRetries::unlimited();
    requester.timeout = AckTimeout::limited(3 + random.below(8) as u8).unwrap();
    requester.max_rd_atomic = 1 + random.below(2) as u8;
    let network = random.network([12, 10, 20], 30);
    let mut pair = Pair::with(&requester, &responder).network(network);
    pair.room = [256, 300, 1024, 65_536][random.below(4) as usize];
    let mut model = Model::default();
    for _ in 0..REQUESTS {
        post(&mut pair, &mut random, &mut model);
        if random.below(2) == 0 {
            pair.memory.receives.push_back(PLACE as usize);
        }
        pair.run_for(std::time::Duration::from_micros(random.below(50)));
    }
    pair.memory.receives.extend([PLACE as usize; REQUESTS as usize]);
    let trace = pair.run();
    if pair.queue.completed.contains(&WcStatus::RETRY_EXC_ERR) {
        return None;
    }
    check(&pair, &model, &trace);
    Some(pair.requester.counters().sent_pkts + pair.responder.counters().sent_pkts)
}

fn check(pair: &Pair, model: &Model, trace: &[String]) {
    assert_eq!(pair.queue.completed, [WcStatus::SUCCESS; REQUESTS as usize], "{trace:#?}");
    assert_eq!(pair.memory.failed, None);
    assert!(pair.requester.idle() && pair.requester.deadline().is_none());
    let received: Vec<_> =
        pair.memory.received.iter().map(|it| (it.bytes.clone(), it.end)).collect();
    assert_eq!(received, model.received);
    for (&place, expected) in &model.memory {
        assert_eq!(pair.memory.bytes[place..][..expected.len()], expected[..]);
    }
    for (&n, expected) in &model.read {
        assert_eq!(pair.queue.posted[n].local, *expected);
    }
    for (&n, found) in &model.found {
        assert_eq!(pair.queue.posted[n].local, found.to_ne_bytes(), "atomic {n}");
    }
    assert_eq!(pair.memory.atomics, model.found.len());
    assert_eq!(pair.memory.bytes[..8], model.counter.to_ne_bytes());
    let fetched = |posted: &&crate::pair::ends::Posted| matches!(posted.request, Wqe::Remote { start, .. } if start.kind.fetches());
    let asked: usize = pair.queue.posted.iter().filter(fetched).map(|it| it.local.len()).sum();
    assert_eq!(pair.queue.delivered, asked, "each byte once");
}

/// A packet with the headers of its opcode and random content.
fn packet(random: &mut Random) -> (Burst, Vec<u8>) {
    let operation = Operation::ALL[random.below(Operation::ALL.len() as u64) as usize];
    let service = [Service::Rc, Service::Rc, Service::Rc, Service::Uc, Service::Ud];
    let service = service[random.below(5) as usize];
    let opcode = Opcode::new(service, operation).unwrap_or(Opcode::reliable(operation));
    let near = settings().0.psn.wrapping_add(random.below(12) as u32).wrapping_sub(3);
    let psn = if random.below(8) == 0 { Psn::masked(random.below(1 << 24) as u32) } else { near };
    let length = [0, 1, 8, 256, 256, 257, 300][random.below(7) as usize];
    let mut bytes = [0; 64];
    bytes.fill_with(|| random.below(256) as u8);
    let mut bth = Bth::new(opcode, Qpn::masked(0x12), psn);
    bth.ack_request = random.below(2) == 0;
    bth.emit(bytes.first_chunk_mut().unwrap());
    // The last byte of a syndrome's message number, and of a length, is small.
    (bytes[13], bytes[14], bytes[15]) = (0, 0, bytes[15] & 7);
    let (mut headers, _) = Headers::parse(&bytes).unwrap();
    if let Some(reth) = &mut headers.reth {
        (reth.va, reth.rkey) = (VA + random.below(300), RKEY);
        reth.length = [0, 1, 8, 256, 300, 1000, u32::MAX][random.below(7) as usize];
    }
    if let Some(atomic) = &mut headers.atomic {
        (atomic.va, atomic.rkey) = (VA + 8 * random.below(9), RKEY);
    }
    let segments = [1, 1, 1, 1, 0, 2, 9][random.below(7) as usize];
    let burst = Burst { segments, ..Burst::single(headers, length) };
    (burst, vec![7; length])
}

/// Returns the number of packets that arrived, and how many of them concerned a request or were counted by a reason.
fn explained(pair: &Pair) -> (u64, u64) {
    let ends = [pair.requester.counters(), pair.responder.counters()];
    let reasons = ends
        .iter()
        .flat_map(|counters| counters.iter())
        .filter(|(name, _)| !name.ends_with("_pkts"));
    let calls = pair.memory.calls + pair.queue.looks.get();
    let packets = ends.iter().map(|counters| counters.rcvd_pkts).sum();
    (packets, reasons.map(|(_, value)| value).sum::<u64>() + calls as u64)
}

/// With any packets in any order, nothing panics, nothing is dropped without being counted, and sent packets are well
/// formed. No request completes twice, and the run ends.
#[test]
fn any_packets_in_any_order_are_counted_and_harmless() {
    for seed in 0..2_000 {
        let mut random = Random(seed);
        let mut pair = Pair::new();
        pair.memory.receives.extend([300, 8]);
        for _ in 0..40 {
            match random.below(12) {
                0 => _ = pair.send(300),
                1 => _ = pair.read(0, 700),
                2 => _ = pair.add(0, 1),
                3 => _ = pair.write(0, 600),
                _ => {
                    let way = if random.below(2) == 0 { Way::Request } else { Way::Response };
                    let (burst, payload) = packet(&mut random);
                    let before = explained(&pair);
                    pair.deliver(way, &burst, &payload);
                    let (packets, explained) = explained(&pair);
                    let unexplained = (packets - before.0).saturating_sub(explained - before.1);
                    assert_eq!(unexplained, 0, "seed {seed}: {burst:?}");
                }
            }
            pair.run_for(std::time::Duration::from_micros(random.below(3)));
        }
        pair.run();
        let done = pair.queue.completed.len() == pair.queue.posted.len();
        assert!(done || pair.requester.stopped(), "seed {seed}: all ends");
        assert!(pair.memory.received.len() <= 2);
    }
}

#[test]
fn all_requests_are_executed_once_and_in_order() {
    let seeds = seeds();
    let runs = seeds.len();
    let (mut packets, mut given_up) = (0, 0);
    for seed in seeds {
        println!("RDMA_PROTO_SEED={seed}");
        match run(seed) {
            Some(count) => packets += count,
            None => given_up += 1,
        }
    }
    println!("{packets} packets, {given_up} runs were given up");
    // For most of these networks seven retries are enough.
    assert!(given_up <= 1, "{given_up} of {runs} runs");
}

//! Random conversations, compared with a model: order, bytes, exactly once, an end for each
//! operation, and no lost credit. `RDMA_MESSAGE_SEED` repeats one of them, and `RDMA_MESSAGE_RUNS`
//! sets their number.

use std::collections::{HashMap, HashSet, VecDeque};
use std::env;

use fastrand::Rng;
use rdma_message::frame::CallId;
use rdma_message::{Delivery, Messages, Operation, OperationError, Options, SendError, Stream};

use crate::messages::small;
use crate::pair::{Machine, Pair, bytes};

/// A message that an end has sent.
struct Sent {
    operation: Operation,
    is_request: bool,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Model {
    /// The messages and requests that the peer has not taken, in order.
    sent: VecDeque<Sent>,
    /// The operations that were cancelled.
    cancelled: HashSet<Operation>,
    /// The replies, each with the number of its request.
    replies: HashMap<Operation, u32>,
    /// The calls, each with the number of its request.
    calls: HashMap<Operation, u32>,
    /// The requests that this end has taken and not answered.
    open: Vec<(CallId, u32)>,
    /// The replies and refusals that were sent, by the number of the request.
    answers: HashMap<u32, Option<Vec<u8>>>,
    /// The number of operations that were started.
    pending: usize,
}

struct Run {
    random: Rng,
    pair: Pair<Messages>,
    models: [Model; 2],
    next: u32,
    steps: usize,
    delivered: usize,
}

fn options(random: &mut Rng) -> Options {
    let mut options = small();
    options.receives = random.u32(1..8);
    options.receive_bytes = random.u32(64..200);
    options.window_bytes = random.u32(2 * options.receive_bytes..3_000);
    options.sends = random.u32(4..10);
    options.send_bytes = random.u32(64..200);
    options.eager_bytes = random.u32(8..800);
    (options.reads, options.offers) = (random.u32(0..4), random.u32(0..4));
    options.calls = random.u32(1..6);
    options.operations = 20;
    options
}

/// Performs a random step of the devices or the drivers.
fn step<M: Machine>(pair: &mut Pair<M>, random: &mut Rng) {
    let at = random.usize(..2);
    match random.u8(..5) {
        0 | 1 => _ = pair.execute(at),
        2 | 3 => {
            let pending = pair.completions[at].len();
            _ = pending > 0 && pair.complete(at, random.usize(..pending));
        }
        _ => {
            let held = pair.ends[at].held.len();
            if held > 0 {
                pair.ends[at].release(random.usize(..held));
            }
        }
    }
    // A driver may see several events before it polls.
    if random.u8(..3) > 0 {
        pair.drive(at);
    }
    if random.u8(..3) > 0 {
        pair.drive(1 - at);
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut pair = Pair::new([options(&mut random), options(&mut random)]);
        for end in &mut pair.ends {
            (end.holds, end.cannot_lend) = (random.bool(), random.u8(..4) == 0);
        }
        pair.run();
        Self { random, pair, models: Default::default(), next: 1, steps: 0, delivered: 0 }
    }

    fn length(&mut self) -> usize {
        match self.random.u8(..4) {
            0 => 8,
            1 => self.random.usize(8..200),
            2 => self.random.usize(8..1_500),
            _ => self.random.usize(8..8_000),
        }
    }

    fn start(&mut self, at: usize, is_request: bool) {
        let length = if is_request || self.random.u8(..8) > 0 { self.length() } else { 0 };
        self.start_with(at, is_request, length);
    }

    fn start_with(&mut self, at: usize, is_request: bool, length: usize) {
        let bytes = bytes(self.next, length);
        let end = &mut self.pair.ends[at];
        let result = if is_request { end.call(bytes.clone()) } else { end.send(bytes.clone()) };
        let operation = match result {
            Ok(operation) => operation,
            Err(SendError::Full) => return,
            Err(error) => panic!("{error}"),
        };
        let model = &mut self.models[at];
        model.sent.push_back(Sent { operation, is_request, bytes });
        model.pending += 1;
        if is_request {
            model.calls.insert(operation, self.next);
        }
        self.next += 1;
    }

    fn take(&mut self, at: usize) {
        let Some(delivered) = self.pair.ends[at].take() else { return };
        self.delivered += 1;
        let sender = &mut self.models[1 - at];
        let is_request = matches!(delivered.delivery, Delivery::Request(_));
        loop {
            let sent = sender.sent.pop_front().expect("a message that was sent");
            let result = self.pair.ends[1 - at].completed.get(&sent.operation);
            let was_cancelled = result == Some(&Err(OperationError::Cancelled));
            // A call that was cancelled may have been sent, a message was not.
            if was_cancelled && !sent.is_request {
                continue;
            }
            if sent.bytes == delivered.bytes && sent.is_request == is_request {
                break;
            }
            assert!(was_cancelled, "a message is missing: {result:?}");
        }
        if let Delivery::Request(id) = delivered.delivery {
            let number = u32::from_be_bytes(*delivered.bytes[4..].first_chunk().unwrap());
            self.models[at].open.push((id, number));
        }
    }

    fn answer(&mut self, at: usize) {
        if self.models[at].open.is_empty() {
            return;
        }
        let index = self.random.usize(..self.models[at].open.len());
        let (id, number) = self.models[at].open[index];
        let length = self.length();
        let answer = (self.random.u8(..4) > 0).then(|| bytes(number ^ 1 << 31, length));
        match &answer {
            None => self.pair.ends[at].machine.refuse(id),
            Some(reply) => match self.pair.ends[at].reply(id, reply.clone()) {
                Ok(operation) => {
                    self.models[at].pending += 1;
                    self.models[at].replies.insert(operation, number);
                }
                Err(SendError::Full) => return,
                Err(SendError::NotOpenRequest) => {
                    self.pair.drive(at);
                    assert!(self.pair.ends[at].cancelled.contains(&id));
                }
                Err(error) => panic!("{error}"),
            },
        }
        self.models[at].open.swap_remove(index);
        self.models[at].answers.insert(number, answer);
    }

    fn cancel(&mut self, at: usize) {
        let end = &mut self.pair.ends[at];
        let mut pending: Vec<_> = end.sending.keys().copied().collect();
        pending.sort_by_key(|operation| operation.index());
        if !pending.is_empty() {
            let operation = pending[self.random.usize(..pending.len())];
            end.machine.cancel(operation);
            self.models[at].cancelled.insert(operation);
        }
    }

    fn check_replies(&mut self) {
        for at in 0..2 {
            for (call, reply) in std::mem::take(&mut self.pair.ends[at].replies) {
                let number = self.models[at].calls[&call];
                assert_eq!(self.models[1 - at].answers[&number].as_ref(), Some(&reply));
            }
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        let at = self.random.usize(..2);
        match self.random.u8(..20) {
            0..2 => self.start(at, false),
            2 => self.start(at, true),
            3..5 => self.take(at),
            5 => self.answer(at),
            6 if self.random.u8(..3) == 0 => self.cancel(at),
            _ => step(&mut self.pair, &mut self.random),
        }
        self.check_replies();
    }

    /// Runs until both ends are idle, while the programs take and answer everything.
    fn settle(&mut self) {
        for _ in 0..2_000 {
            for at in 0..2 {
                self.take(at);
                self.answer(at);
                while !self.pair.ends[at].held.is_empty() {
                    self.pair.ends[at].release(0);
                }
            }
            self.pair.run();
            self.check_replies();
            let idle = |end: &crate::pair::End<Messages>| {
                end.sending.is_empty() && end.inbox.is_empty() && end.held.is_empty()
            };
            if self.pair.ends.iter().all(idle) && self.models.iter().all(|it| it.open.is_empty()) {
                return;
            }
        }
        for end in &self.pair.ends {
            println!("{:?}", end.machine);
            println!("{:?} {:?}", end.sending.keys(), end.options);
        }
        for model in &self.models {
            println!("open {:?}", model.open);
        }
        panic!("an operation never ends");
    }

    /// Checks that each end may again send as much as at the start: no credit was lost.
    fn check_credit(&mut self) {
        for at in 0..2 {
            let peer = &mut self.pair.ends[1 - at];
            peer.holds = true;
            let receives = peer.options.receives as usize;
            for _ in 0..receives + 2 {
                self.start_with(at, false, 8);
            }
            self.pair.run();
            // The frames have 28 B. The first is free, because the program waits for it.
            let peer = &self.pair.ends[1 - at];
            let expected = receives.min(1 + peer.options.window_bytes as usize / 28);
            assert_eq!(peer.held.len(), expected, "of {receives} receives");
            self.settle();
            let peer = &self.pair.ends[1 - at];
            assert_eq!(peer.receives.len(), peer.options.receive_slots() as usize);
        }
    }

    fn finish(mut self, seed: u64) -> (usize, usize) {
        self.settle();
        self.check_credit();
        for end in &mut self.pair.ends {
            end.machine.finish();
        }
        self.pair.run();
        for at in 0..2 {
            let (end, model) = (&self.pair.ends[at], &self.models[at]);
            assert_eq!(end.completed.len(), model.pending, "seed {seed}: each ends once");
            assert!(end.arriving.is_empty() && end.disconnect == Some(None), "seed {seed}");
            for sent in &model.sent {
                assert!(model.cancelled.contains(&sent.operation), "a message is missing");
            }
            for (operation, result) in &end.completed {
                let was_cancelled = model.cancelled.contains(operation);
                match result {
                    Err(OperationError::Cancelled) => assert!(was_cancelled),
                    Err(OperationError::Refused) => {
                        let number = model.calls[operation];
                        let peer = &self.models[1 - at];
                        // A reply that was cancelled before it was sent is a refusal.
                        let was_cancelled = peer
                            .replies
                            .iter()
                            .any(|(it, of)| *of == number && peer.cancelled.contains(it));
                        assert!(was_cancelled || peer.answers[&number].is_none());
                    }
                    result => assert_eq!(*result, Ok(())),
                }
            }
        }
        self.pair.kill();
        assert!(self.pair.ends.iter().all(|end| end.ended == Some(None)), "seed {seed}");
        (self.steps, self.delivered)
    }

    /// Loses the connection at any time.
    fn cut(mut self) {
        if self.random.bool() {
            self.pair.ends[0].machine.abort();
            for _ in 0..self.random.u8(..20) {
                step(&mut self.pair, &mut self.random);
            }
        }
        self.pair.kill();
        for (end, model) in self.pair.ends.iter().zip(&self.models) {
            assert_eq!(end.completed.len(), model.pending, "each operation ends once");
            assert!(end.sending.is_empty() && end.arriving.is_empty());
            assert!(end.ended.is_some());
        }
        for at in 0..2 {
            while !self.pair.ends[at].inbox.is_empty() {
                self.take(at);
            }
        }
    }
}

/// Returns the first seed and the number of runs.
fn seeds(runs: u64) -> std::ops::Range<u64> {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("RDMA_MESSAGE_SEED").unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    let runs = match env::var("RDMA_MESSAGE_SEED") {
        Ok(_) => 1,
        Err(_) => number("RDMA_MESSAGE_RUNS").unwrap_or(runs),
    };
    first..first + runs
}

#[test]
fn messages_arrive_in_order_exactly_once_and_every_operation_ends() {
    let (mut steps, mut delivered) = (0, 0);
    for seed in seeds(150) {
        println!("RDMA_MESSAGE_SEED={seed}");
        let mut run = Run::new(seed);
        for _ in 0..1_000 {
            run.step();
        }
        let (more_steps, more_delivered) = run.finish(seed);
        (steps, delivered) = (steps + more_steps, delivered + more_delivered);
    }
    println!("{steps} steps, {delivered} messages");
}

#[test]
fn every_operation_ends_when_the_connection_is_lost_at_any_time() {
    for seed in seeds(300) {
        println!("RDMA_MESSAGE_SEED={seed}");
        let mut run = Run::new(seed);
        for _ in 0..run.random.usize(..400) {
            run.step();
        }
        run.cut();
    }
}

#[test]
fn stream_bytes_arrive_in_order_exactly_once() {
    for seed in seeds(100) {
        println!("RDMA_MESSAGE_SEED={seed}");
        let mut random = Rng::with_seed(seed);
        let mut pair = Pair::<Stream>::new([options(&mut random), options(&mut random)]);
        for end in &mut pair.ends {
            end.holds = random.bool();
        }
        pair.run();
        let data = bytes(1, random.usize(1..20_000));
        let mut written = [0; 2];
        for round in 0.. {
            assert!(round < 100_000, "the streams never end");
            let at = random.usize(..2);
            if written[at] < data.len() && random.bool() {
                let end = (written[at] + random.usize(1..300)).min(data.len());
                written[at] += pair.write(at, &data[written[at]..end]);
                if written[at] == data.len() {
                    pair.ends[at].machine.finish();
                    pair.drive(at);
                }
            }
            step(&mut pair, &mut random);
            if pair.ends.iter().all(|end| end.disconnect.is_some()) {
                break;
            }
        }
        for end in &pair.ends {
            assert!(end.read == data && end.is_flushed && end.peer_finished);
            assert_eq!(end.disconnect, Some(None));
        }
    }
}

//! Conversations of two ends, compared with a model. A random generator or a fuzzer chooses the steps.
//! The model checks order, bytes, exactly once, an end for each operation, and that no credit is lost.

use std::collections::{HashMap, HashSet, VecDeque};

use rdma_message::frame::CallId;
use rdma_message::{Delivery, Messages, Operation, OperationError, Options, SendError, Stream};

use super::{End, Machine, Pair, bytes, small};

/// Chooses the steps of a conversation.
pub(crate) trait Choices {
    /// Returns a number below `end`, which is at least 1.
    fn below(&mut self, end: usize) -> usize;

    /// Returns true if no further step follows.
    fn is_over(&self) -> bool;

    fn between(&mut self, first: usize, end: usize) -> usize {
        first + self.below(end - first)
    }

    fn is_one_of(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

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
    has_finished: bool,
    has_stopped: bool,
}

pub(crate) struct Conversation<C> {
    pub(crate) choices: C,
    pair: Pair<Messages>,
    models: [Model; 2],
    next: u32,
    pub(crate) delivered: usize,
}

/// Chooses limits, most of them small.
pub(crate) fn options(choices: &mut impl Choices) -> Options {
    let mut options = small();
    let mut number = |first, end| u32::try_from(choices.between(first, end)).unwrap();
    options.receives = number(1, 8);
    options.receive_bytes = number(64, 200);
    options.window_bytes = number(2 * options.receive_bytes as usize, 3_000);
    options.sends = number(4, 10);
    options.send_bytes = number(64, 200);
    options.eager_bytes = number(8, 800);
    (options.reads, options.offers) = (number(0, 4), number(0, 4));
    options.calls = number(1, 6);
    options.operations = number(9, 21);
    options
}

/// Performs a step of the devices or the drivers.
pub(crate) fn step<M: Machine>(pair: &mut Pair<M>, choices: &mut impl Choices) {
    let at = choices.below(2);
    match choices.below(5) {
        0 | 1 => _ = pair.execute(at),
        2 | 3 => {
            let pending = pair.completions[at].len();
            _ = pending > 0 && pair.complete(at, choices.below(pending));
        }
        _ => {
            let held = pair.ends[at].held.len();
            if held > 0 {
                pair.ends[at].release(choices.below(held));
            }
        }
    }
    // A driver may see several events before it polls.
    if !choices.is_one_of(3) {
        pair.drive(at);
    }
    if !choices.is_one_of(3) {
        pair.drive(1 - at);
    }
}

impl<C: Choices> Conversation<C> {
    pub(crate) fn new(mut choices: C) -> Self {
        let mut pair = Pair::new([options(&mut choices), options(&mut choices)]);
        for end in &mut pair.ends {
            (end.holds, end.cannot_lend) = (choices.is_one_of(2), choices.is_one_of(4));
        }
        pair.run();
        Self { choices, pair, models: Default::default(), next: 1, delivered: 0 }
    }

    fn length(&mut self) -> usize {
        match self.choices.below(4) {
            0 => 8,
            1 => self.choices.between(8, 200),
            2 => self.choices.between(8, 1_500),
            _ => self.choices.between(8, 8_000),
        }
    }

    fn start(&mut self, at: usize, is_request: bool) {
        let length = if is_request || !self.choices.is_one_of(8) { self.length() } else { 0 };
        self.start_with(at, is_request, length);
    }

    fn start_with(&mut self, at: usize, is_request: bool, length: usize) {
        let bytes = bytes(self.next, length);
        let end = &mut self.pair.ends[at];
        let result = if is_request { end.call(bytes.clone()) } else { end.send(bytes.clone()) };
        let operation = match result {
            Ok(operation) => operation,
            Err(SendError::Full) => return,
            Err(SendError::Finished) if self.models[at].has_finished => return,
            Err(SendError::PeerFinished) if is_request && self.models[1 - at].has_finished => {
                return;
            }
            Err(SendError::PeerFinished) if self.models[1 - at].has_stopped => return,
            Err(SendError::Ended) if self.models.iter().all(|it| it.has_finished) => return,
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
            let was_cancelled = matches!(
                result,
                Some(Err(OperationError::Cancelled | OperationError::PeerFinished))
            );
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
        let index = self.choices.below(self.models[at].open.len());
        let (id, number) = self.models[at].open[index];
        let length = self.length();
        let mut answer = (!self.choices.is_one_of(4)).then(|| bytes(number ^ 1 << 31, length));
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
                Err(SendError::PeerFinished) if self.models[1 - at].has_stopped => {
                    self.pair.ends[at].machine.refuse(id);
                    answer = None;
                }
                Err(SendError::Finished | SendError::Ended) if self.models[at].has_finished => {
                    self.pair.ends[at].machine.refuse(id);
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
            let operation = pending[self.choices.below(pending.len())];
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

    /// Ends the messages of an end, which may receive no further ones.
    fn finish_end(&mut self, at: usize) {
        if self.choices.is_one_of(2) {
            self.pair.ends[at].machine.stop();
            self.models[at].has_stopped = true;
        }
        self.pair.ends[at].machine.finish();
        self.models[at].has_finished = true;
    }

    pub(crate) fn step(&mut self) {
        let at = self.choices.below(2);
        match self.choices.below(20) {
            0..2 => self.start(at, false),
            2 => self.start(at, true),
            3..5 => self.take(at),
            5 => self.answer(at),
            6 if self.choices.is_one_of(3) => self.cancel(at),
            7 if self.choices.is_one_of(200) => self.finish_end(at),
            _ => step(&mut self.pair, &mut self.choices),
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
            let idle = |end: &End<Messages>| {
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

    /// Ends the conversation, and returns the number of messages that were delivered.
    pub(crate) fn finish(mut self) -> usize {
        if self.choices.is_one_of(2) {
            (0..2).for_each(|at| self.finish_end(at));
        }
        self.settle();
        if !self.models.iter().any(|model| model.has_finished) {
            self.check_credit();
        }
        (0..2).for_each(|at| self.finish_end(at));
        self.pair.run();
        for at in 0..2 {
            let (end, model) = (&self.pair.ends[at], &self.models[at]);
            assert_eq!(end.completed.len(), model.pending, "each ends once");
            assert!(end.arriving.is_empty() && end.disconnect == Some(None));
            for sent in &model.sent {
                let result = end.completed[&sent.operation];
                let was_cancelled = model.cancelled.contains(&sent.operation)
                    || result == Err(OperationError::PeerFinished);
                assert!(was_cancelled, "a message is missing");
            }
            for (operation, result) in &end.completed {
                let was_cancelled = model.cancelled.contains(operation);
                match result {
                    Err(OperationError::Cancelled) => assert!(was_cancelled),
                    Err(OperationError::PeerFinished) => {
                        assert!(self.models[1 - at].has_finished);
                        assert!(model.calls.contains_key(operation));
                    }
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
        assert!(self.pair.ends.iter().all(|end| end.ended == Some(None)));
        self.delivered
    }

    /// Loses the connection at any time.
    pub(crate) fn cut(mut self) {
        if self.choices.is_one_of(2) {
            self.pair.ends[0].machine.abort();
            for _ in 0..self.choices.below(20) {
                step(&mut self.pair, &mut self.choices);
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

/// Copies bytes in both directions of a connection, finishes, and checks them.
pub(crate) fn converse(choices: &mut impl Choices) {
    let mut pair = Pair::<Stream>::new([options(choices), options(choices)]);
    for end in &mut pair.ends {
        end.holds = choices.is_one_of(2);
    }
    pair.run();
    let data = bytes(1, choices.between(1, 20_000));
    let mut written = [0; 2];
    while !choices.is_over() && pair.ends.iter().any(|end| end.disconnect.is_none()) {
        let at = choices.below(2);
        if choices.is_one_of(2) {
            let length = choices.between(1, 300);
            write(&mut pair, &mut written, at, &data, length, |pair| {
                (0..choices.below(4)).for_each(|_| step(pair, choices));
            });
        }
        step(&mut pair, choices);
    }
    for _ in 0..10 + data.len() {
        for at in 0..2 {
            while !pair.ends[at].held.is_empty() {
                pair.ends[at].release(0);
            }
            write(&mut pair, &mut written, at, &data, data.len(), |_| ());
        }
        pair.run();
        if pair.ends.iter().all(|end| end.disconnect.is_some()) {
            break;
        }
    }
    for end in &pair.ends {
        assert!(end.read == data && end.is_flushed && end.peer_finished);
        assert_eq!(end.disconnect, Some(None));
    }
}

/// Writes up to `length` further bytes, with work before each frame is posted. Finishes after the last.
fn write(
    pair: &mut Pair<Stream>,
    written: &mut [usize; 2],
    at: usize,
    data: &[u8],
    length: usize,
    work: impl FnMut(&mut Pair<Stream>),
) {
    if written[at] < data.len() {
        let end = (written[at] + length).min(data.len());
        written[at] += pair.write_while(at, &data[written[at]..end], work);
        if written[at] == data.len() {
            pair.ends[at].machine.finish();
            pair.drive(at);
        }
    }
}

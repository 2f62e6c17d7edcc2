//! A peer that sends anything: nothing panics, nothing grows without a limit, and the error names the
//! reason.

use proptest::prelude::*;
use rdma_message::frame::{Body, CallId, CloseReason, Frame, FrameError, Hello, Limits, Mode};
use rdma_message::frame::{Remote, Role};
use rdma_message::{
    ConnectionError, Incoming, Messages, Operation, OperationError, Options, Output, Stream,
};
use rdma_types::Rkey;

use crate::pair::{Machine, small};

/// One end, and a peer that is not a machine.
struct Victim<M> {
    machine: M,
    posted: Vec<u32>,
    sends: Vec<u32>,
    reads: Vec<Incoming>,
    lends: Vec<Operation>,
    delivered: Vec<Incoming>,
    error: Option<ConnectionError>,
    close: Option<Body>,
    outputs: usize,
}

impl<M: Machine> Victim<M> {
    fn new(options: &Options) -> Self {
        let mut victim = Self {
            machine: M::new(options),
            posted: (0..options.receive_slots()).collect(),
            sends: Vec::new(),
            reads: Vec::new(),
            lends: Vec::new(),
            delivered: Vec::new(),
            error: None,
            close: None,
            outputs: 0,
        };
        victim.poll();
        victim
    }

    fn poll(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            self.outputs += 1;
            match output {
                Output::PostReceive(slot) => self.posted.push(slot),
                Output::Send(transmit) => {
                    let (frame, _) =
                        Frame::decode(transmit.header.as_bytes()).unwrap_or_else(|_| {
                            // A header whose payload is missing.
                            let padded = [transmit.header.as_bytes(), &[0]].concat();
                            Frame::decode(&padded).unwrap()
                        });
                    if let Body::Close(_) = frame.body {
                        self.close = Some(frame.body);
                    }
                    self.sends.push(transmit.slot);
                }
                Output::Fetch { message, .. } => self.reads.push(message),
                Output::Lend { operation, .. } => self.lends.push(operation),
                Output::Part { chunk, .. } | Output::Data(chunk) => self.machine.release(chunk),
                Output::Deliver { message, .. } => self.delivered.push(message),
                Output::Disconnect(error) => self.error = error,
                _ => {}
            }
        }
    }

    /// Receives a frame, if a receive is posted. Without one, the device refuses it.
    fn receive(&mut self, bytes: &[u8]) {
        if let Some(slot) = self.posted.pop() {
            self.machine.received(slot, bytes);
            self.poll();
        }
    }

    fn complete(&mut self) {
        for slot in std::mem::take(&mut self.sends) {
            self.machine.sent(slot);
        }
        self.poll();
    }

    /// Receives a valid hello.
    fn open(&mut self, mode: Mode) {
        self.receive(&encode(&Frame::new(limits(64, 1 << 16), hello(mode)), 0));
        self.complete();
    }

    fn refuses(mut self, frame: &Frame, payload: usize, error: ConnectionError) {
        self.receive(&encode(frame, payload));
        self.complete();
        assert_eq!(self.error, Some(error));
        assert_eq!(self.close, error.close_reason().map(Body::Close));
    }
}

fn hello(mode: Mode) -> Body {
    Body::Hello(Hello {
        version: 1,
        mode,
        fetches: true,
        receive_bytes: 128,
        max_message: 20_000,
        calls: 8,
    })
}

const fn limits(receives: u32, bytes: u32) -> Limits {
    Limits { receives, bytes, fetched: 0 }
}

fn encode(frame: &Frame, payload: usize) -> Vec<u8> {
    let mut bytes = frame.encode().as_bytes().to_vec();
    bytes.resize(bytes.len() + payload, 7);
    bytes
}

fn messages() -> Victim<Messages> {
    let mut victim = Victim::new(&small());
    victim.open(Mode::Messages);
    victim
}

fn frame(body: Body) -> Frame {
    Frame::new(limits(64, 1 << 16), body)
}

#[test]
fn frames_without_credit_close_the_connection() {
    let message = frame(Body::First { role: Role::Message, length: 40 });
    let mut options = small();
    let mut victim = Victim::<Messages>::new(&options);
    victim.open(Mode::Messages);
    // Four, and one more because of a credit frame, which the peer does not acknowledge.
    for _ in 0..5 {
        victim.receive(&encode(&message, 40));
    }
    assert_eq!(victim.delivered.len(), 5);
    victim.refuses(&message, 40, ConnectionError::Receives);

    options.receives = 64;
    let mut victim = Victim::<Messages>::new(&options);
    victim.open(Mode::Messages);
    // The first is free. Messages that the program has not taken hold 60 B each.
    for _ in 0..18 {
        victim.receive(&encode(&message, 40));
    }
    assert_eq!((victim.delivered.len(), victim.error), (18, None));
    victim.refuses(&message, 40, ConnectionError::Bytes { frame: 60, credit: 4 });
    let long = frame(Body::First { role: Role::Message, length: 1080 });
    messages().refuses(&long, 1080, ConnectionError::Bytes { frame: 1100, credit: 1024 });
}

#[test]
fn notices_beyond_credit_close_the_connection() {
    let mut fetched = frame(Body::Credit);
    fetched.limits.fetched = 1;
    messages().refuses(&fetched, 0, ConnectionError::Fetched { reported: 1, offered: 0 });
    let mut acknowledgement = frame(Body::Credit);
    acknowledgement.acknowledges = true;
    messages().refuses(&acknowledgement, 0, ConnectionError::Control);
    messages().refuses(&frame(Body::Acknowledge), 0, ConnectionError::Control);
    let back = Frame::new(limits(63, 1 << 16), Body::Credit);
    messages().refuses(&back, 0, ConnectionError::Limit { new: 63, old: 64 });
    // A second credit frame before the first is acknowledged: its end never gets a send slot.
    let mut victim = messages();
    for _ in 0..8 {
        victim.receive(&encode(&frame(Body::Credit), 0));
    }
    victim.complete();
    assert_eq!(victim.error, Some(ConnectionError::Control));
}

#[test]
fn each_violation_has_its_error() {
    let id = CallId::new(1, 0);
    let first = |role, length| frame(Body::First { role, length });
    let offer = |length| {
        let source = Remote { va: 0, rkey: Rkey::new(1) };
        frame(Body::Offer { role: Role::Message, length, source })
    };
    let too_long = ConnectionError::TooLong { length: 20_001, limit: 20_000 };
    messages().refuses(&first(Role::Message, 20_001), 9, too_long);
    messages().refuses(&offer(20_001), 0, too_long);
    messages().refuses(&frame(Body::Rest), 9, ConnectionError::Interrupted);
    messages().refuses(&first(Role::Reply(id), 9), 9, ConnectionError::Call(id));
    messages().refuses(&frame(Body::Refusal(id)), 0, ConnectionError::Call(id));
    messages().refuses(&frame(Body::Cancel(id)), 0, ConnectionError::Call(id));
    let high = CallId::new(1, 8);
    messages().refuses(&first(Role::Request(high), 9), 9, ConnectionError::Call(high));
    messages().refuses(&frame(Body::Data), 9, ConnectionError::Unexpected);
    messages().refuses(&frame(hello(Mode::Messages)), 0, ConnectionError::Hello);
    let closed = ConnectionError::PeerClosed(CloseReason(77));
    messages().refuses(&frame(Body::Close(CloseReason(77))), 0, closed);
    let early = ConnectionError::PeerClosed(CloseReason::FINISHED);
    let finished = frame(Body::Close(CloseReason::FINISHED));
    messages().refuses(&finished, 0, early);
    let mut victim = messages();
    victim.machine.finish();
    victim.poll();
    victim.refuses(&finished, 0, early);
    let mut victim = messages();
    victim.receive(&encode(&frame(Body::Finish), 0));
    victim.refuses(&finished, 0, early);

    let mut victim = messages();
    victim.receive(&encode(&first(Role::Message, 20), 9));
    victim.refuses(&frame(Body::Rest), 12, ConnectionError::Overrun { payload: 12, missing: 11 });
    let mut victim = messages();
    victim.receive(&encode(&first(Role::Message, 20), 9));
    victim.refuses(&first(Role::Message, 20), 9, ConnectionError::Interrupted);
    let mut victim = messages();
    victim.receive(&encode(&first(Role::Request(id), 9), 9));
    victim.refuses(&first(Role::Request(id), 9), 9, ConnectionError::Call(id));
    let mut victim = messages();
    victim.receive(&encode(&frame(Body::Finish), 0));
    victim.refuses(&first(Role::Message, 9), 9, ConnectionError::Finished);

    let mut options = small();
    options.reads = 0;
    let mut victim = Victim::<Messages>::new(&options);
    victim.open(Mode::Messages);
    victim.refuses(&offer(10), 0, ConnectionError::Unexpected);
}

#[test]
fn the_first_frame_is_judged() {
    let fresh = || Victim::<Stream>::new(&small());
    fresh().refuses(&frame(Body::Credit), 0, ConnectionError::Hello);
    let mode = ConnectionError::Mode(Mode::Messages);
    fresh().refuses(&frame(hello(Mode::Messages)), 0, mode);
    let Body::Hello(short) = hello(Mode::Stream) else { panic!("a hello") };
    let short = frame(Body::Hello(Hello { receive_bytes: 63, ..short }));
    fresh().refuses(&short, 0, ConnectionError::ReceiveBytes(63));
    let mut victim = fresh();
    victim.receive(&[0x7f; 16]);
    victim.complete();
    let reserved = FrameError::Reserved { flags: 0x7f, zero: 0x7f7f };
    assert_eq!(victim.error, Some(ConnectionError::Frame(reserved)));
}

#[test]
fn a_peer_that_claims_to_have_an_offered_message_proves_nothing() {
    let mut victim = messages();
    let operation = victim.machine.send(5_000).unwrap();
    victim.poll();
    victim.machine.lent(operation, Some(Remote { va: 0, rkey: Rkey::new(1) }));
    victim.machine.finish();
    victim.poll();
    victim.receive(&encode(&frame(Body::Finish), 0));
    victim.receive(&encode(&frame(Body::Close(CloseReason::FINISHED)), 0));
    victim.machine.lost();
    let mut ends = std::iter::from_fn(|| victim.machine.poll_output());
    let result = Err(OperationError::Unknown);
    assert!(ends.any(|output| output == Output::Completed { operation, result }));
    assert_eq!(ends.last(), Some(Output::Ended(Some(ConnectionError::Lost))));
}

#[test]
fn an_end_that_has_sent_nothing_ends_without_a_close_frame() {
    let mut machine = Stream::new(&small()).unwrap();
    machine.received(0, &[]);
    let error = ConnectionError::Frame(FrameError::Truncated);
    assert_eq!(machine.poll_output(), Some(Output::Disconnect(Some(error))));
    assert_eq!(machine.poll_output(), None);
}

#[test]
fn replies_to_a_call_that_is_not_complete_or_was_answered_are_refused() {
    let id = CallId::new(1, 0);
    let reply = frame(Body::First { role: Role::Reply(id), length: 1 });
    let mut victim = messages();
    victim.machine.call(490).unwrap();
    victim.poll();
    assert_eq!(victim.sends.len(), 3, "of five frames");
    victim.refuses(&reply, 1, ConnectionError::Call(id));
    let other = CallId::new(2, 0);
    let mut victim = messages();
    victim.machine.call(9).unwrap();
    victim.poll();
    let to_other = frame(Body::First { role: Role::Reply(other), length: 1 });
    victim.refuses(&to_other, 1, ConnectionError::Call(other));
    let mut victim = messages();
    victim.machine.call(9).unwrap();
    victim.poll();
    victim.receive(&encode(&reply, 1));
    assert_eq!(victim.delivered.len(), 1);
    victim.refuses(&reply, 1, ConnectionError::Call(id));
}

#[test]
fn a_request_is_open_until_its_answer_was_sent() {
    let mut victim = messages();
    let request = |serial| {
        let role = Role::Request(CallId::new(serial, 0));
        Frame::new(limits(0, 0), Body::First { role, length: 1 })
    };
    let mut victim_without_credit = Victim::<Messages>::new(&small());
    let opening = Frame::new(limits(0, 0), hello(Mode::Messages));
    victim_without_credit.receive(&encode(&opening, 0));
    victim_without_credit.complete();
    // A refusal is queued, since the peer grants no credit; the request still counts.
    victim_without_credit.receive(&encode(&request(1), 1));
    victim_without_credit.machine.refuse(CallId::new(1, 0));
    let error = ConnectionError::Call(CallId::new(2, 0));
    victim_without_credit.refuses(&request(2), 1, error);

    // The same if the peer cancels its request.
    let first = Frame { limits: limits(64, 1 << 16), ..request(1) };
    let second = Frame { limits: limits(64, 1 << 16), ..request(2) };
    victim.receive(&encode(&first, 1));
    victim.receive(&encode(&frame(Body::Cancel(CallId::new(1, 0))), 0));
    victim.refuses(&second, 1, error);
}

fn role() -> impl Strategy<Value = Role> {
    let id = || (0_u64..6, 0_u16..9).prop_map(|(serial, index)| CallId::new(serial, index));
    prop_oneof![Just(Role::Message), id().prop_map(Role::Request), id().prop_map(Role::Reply)]
}

/// Returns a frame that is valid on its own, with the length of its payload.
fn any_frame() -> impl Strategy<Value = (Frame, usize)> {
    let id = || (0_u64..6, 0_u16..9).prop_map(|(serial, index)| CallId::new(serial, index));
    let source = (any::<u64>(), any::<u32>());
    let body = prop_oneof![
        2 => Just((Body::Credit, 0)),
        1 => Just((Body::Acknowledge, 0)),
        1 => Just((Body::Finish, 0)),
        8 => (role(), 0_u32..300, 1_usize..100).prop_map(|(role, length, payload)| {
            (Body::First { role, length }, payload.min(length as usize))
        }),
        8 => (1_usize..100).prop_map(|payload| (Body::Rest, payload)),
        4 => (1_usize..100).prop_map(|payload| (Body::Data, payload)),
        4 => (role(), 1_u32..9_000, source).prop_map(|(role, length, (va, rkey))| {
            let source = Remote { va, rkey: Rkey::new(rkey) };
            (Body::Offer { role, length, source }, 0)
        }),
        2 => id().prop_map(|id| (Body::Cancel(id), 0)),
        2 => id().prop_map(|id| (Body::Refusal(id), 0)),
    ];
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.05));
    (flags, 0_u32..2, body).prop_map(|((acknowledges, stops), fetched, (body, payload))| {
        let limits = Limits { fetched, ..limits(64, 1 << 16) };
        (Frame { acknowledges, stops, limits, body }, payload)
    })
}

/// An input of a machine.
#[derive(Clone, Debug)]
enum Input {
    Frame(Vec<u8>),
    Complete,
    Fetched,
    Call(usize),
    Cancel,
    Take,
}

fn input() -> impl Strategy<Value = Input> {
    let mutated = (any_frame(), any::<(prop::sample::Index, u8)>()).prop_map(
        |((frame, payload), (at, byte))| {
            let mut bytes = encode(&frame, payload);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        },
    );
    prop_oneof![
        20 => any_frame().prop_map(|(frame, payload)| Input::Frame(encode(&frame, payload))),
        1 => mutated.prop_map(Input::Frame),
        1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Input::Frame),
        8 => Just(Input::Complete),
        4 => Just(Input::Fetched),
        4 => (0_usize..2_000).prop_map(Input::Call),
        2 => Just(Input::Cancel),
        4 => Just(Input::Take),
    ]
}

/// The most outputs that an input can cause: those of the frames that wait for it, which the slots
/// bound.
const MOST_OUTPUTS: usize = 200;

proptest! {
    #[test]
    fn messages_survive_any_frames(inputs in prop::collection::vec(input(), 0..60)) {
        let mut victim = messages();
        let mut calls = Vec::new();
        for input in inputs {
            let before = victim.outputs;
            match input {
                Input::Frame(bytes) => victim.receive(&bytes),
                Input::Complete => victim.complete(),
                Input::Fetched => {
                    if !victim.reads.is_empty() {
                        let message = victim.reads.remove(0);
                        victim.machine.fetched(message);
                    }
                }
                Input::Call(length) => calls.extend(victim.machine.call(length)),
                Input::Cancel => _ = calls.pop().map(|call| victim.machine.cancel(call)),
                Input::Take => {
                    if !victim.delivered.is_empty() {
                        victim.machine.taken(victim.delivered.remove(0));
                    }
                }
            }
            victim.poll();
            for operation in std::mem::take(&mut victim.lends) {
                victim.machine.lent(operation, Some(Remote { va: 0, rkey: Rkey::new(1) }));
            }
            victim.poll();
            prop_assert!(victim.outputs - before < MOST_OUTPUTS);
            prop_assert!(victim.sends.len() <= small().sends as usize);
            prop_assert!(victim.reads.len() <= small().reads as usize);
        }
        victim.machine.lost();
        victim.poll();
    }

    #[test]
    fn streams_survive_any_frames(inputs in prop::collection::vec(input(), 0..60)) {
        let mut victim = Victim::<Stream>::new(&small());
        victim.open(Mode::Stream);
        for input in inputs {
            match input {
                Input::Frame(bytes) => victim.receive(&bytes),
                Input::Call(length) => {
                    if let Ok(Some(transmit)) = victim.machine.write(length) {
                        victim.poll();
                        victim.machine.posted();
                        victim.sends.push(transmit.slot);
                    }
                }
                _ => victim.complete(),
            }
            victim.poll();
            prop_assert!(victim.sends.len() <= small().sends as usize);
        }
        victim.machine.lost();
        victim.poll();
    }
}

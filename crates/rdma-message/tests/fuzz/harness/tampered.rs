//! Connections whose frames are changed, lost, repeated or invented on the way. They may end at any
//! time with an error. But nothing panics, each operation ends once, no memory is used after it is
//! free, and the limits hold.

use rdma_message::frame::{Body, CallId, CloseReason, Frame, Remote, Role};
use rdma_message::{Delivery, Messages, Stream};
use rdma_types::Rkey;
use test_support::fuzz::trace;

use super::Input;
use super::pair::conversation::options;
use super::pair::{Choices, Completion, End, Machine, Pair, Posted, bytes};

/// A machine and the calls of its program.
pub(super) trait Program: Machine {
    /// Performs a call of the program. Returns the request that it posts.
    fn act(end: &mut End<Self>, input: &mut Input<'_>) -> Option<Posted>
    where
        Self: Sized;
}

impl Program for Messages {
    fn act(end: &mut End<Self>, input: &mut Input<'_>) -> Option<Posted> {
        let length = input.below(2_000);
        match input.below(13) {
            0..3 => _ = end.send(bytes(1, length)),
            3..5 => _ = end.call(bytes(2, length)),
            5..8 => {
                let Delivery::Request(id) = end.take()?.delivery else { return None };
                match input.below(3) {
                    0 => end.machine.refuse(id),
                    _ => _ = end.reply(id, bytes(3, length)),
                }
            }
            8 => {
                let mut pending: Vec<_> = end.sending.keys().copied().collect();
                pending.sort_by_key(|operation| operation.index());
                if !pending.is_empty() {
                    end.machine.cancel(pending[input.below(pending.len())]);
                }
            }
            9 => {
                let id = CallId::new(input.below(6) as u64, 0);
                end.machine.refuse(id);
            }
            10 if input.is_one_of(8) => end.machine.finish(),
            11 if input.is_one_of(16) => end.machine.abort(),
            12 if input.is_one_of(8) => end.machine.stop(),
            _ => {}
        }
        None
    }
}

impl Program for Stream {
    fn act(end: &mut End<Self>, input: &mut Input<'_>) -> Option<Posted> {
        match input.below(8) {
            0 if input.is_one_of(8) => end.machine.finish(),
            1 if input.is_one_of(8) => end.machine.stop(),
            2 if input.is_one_of(16) => end.machine.abort(),
            _ => {
                let (posted, _) = end.write(&bytes(1, input.below(300))).ok()??;
                end.machine.posted();
                return Some(posted);
            }
        }
        None
    }
}

pub(super) fn run<M: Program>(input: &mut Input<'_>) {
    let mut pair = Pair::<M>::new([options(input), options(input)]);
    for end in &mut pair.ends {
        (end.holds, end.cannot_lend) = (input.is_one_of(2), input.is_one_of(4));
    }
    if !input.is_one_of(8) {
        pair.run();
    }
    while !input.is_over() {
        step(&mut pair, input);
        pair.ends.iter().for_each(check);
        if pair.ends.iter().any(|end| end.ended.is_some()) {
            break;
        }
    }
    pair.kill();
    for end in &pair.ends {
        assert!(end.sending.is_empty() && end.arriving.is_empty() && end.ended.is_some());
    }
}

fn step<M: Program>(pair: &mut Pair<M>, input: &mut Input<'_>) {
    let at = input.below(2);
    match input.below(8) {
        0..3 => execute(pair, at, input),
        3 => {
            let pending = pair.completions[at].len();
            _ = pending > 0 && pair.complete(at, input.below(pending));
        }
        4 => {
            let held = pair.ends[at].held.len();
            if held > 0 {
                pair.ends[at].release(input.below(held));
            }
        }
        5 => {
            let frame = invented(input).encode().as_bytes().to_vec();
            let length = input.below(100);
            arrive(pair, 1 - at, &[frame, vec![7; length]].concat());
        }
        _ => {
            let posted = M::act(&mut pair.ends[at], input);
            pair.posted[at].extend(posted);
        }
    }
    if !input.is_one_of(4) {
        pair.drive(at);
        pair.drive(1 - at);
    }
}

/// Executes the oldest request of an end, perhaps with another frame.
fn execute<M: Machine>(pair: &mut Pair<M>, at: usize, input: &mut Input<'_>) {
    let Some(posted) = pair.posted[at].pop_front() else { return };
    trace(&posted);
    match posted {
        Posted::Send { slot, mut frame } => {
            match input.below(32) {
                0 => {
                    let place = input.below(frame.len());
                    frame[place] ^= 1 << input.below(8);
                }
                1 => frame.truncate(input.below(frame.len())),
                2 => frame.resize(frame.len() + input.below(20), 7),
                3 => arrive(pair, 1 - at, &frame),
                4 => frame.clear(),
                _ => {}
            }
            arrive(pair, 1 - at, &frame);
            pair.completions[at].push(Completion::Send(slot));
        }
        Posted::Read { message, length, .. } => {
            pair.completions[at].push(Completion::Read(message, vec![0; length as usize]));
        }
    }
}

/// Receives a frame. A frame without a receive breaks the connection.
fn arrive<M: Machine>(pair: &mut Pair<M>, at: usize, frame: &[u8]) {
    trace(&(at, Frame::decode(frame)));
    let end = &mut pair.ends[at];
    if end.receives.is_empty() || frame.len() > end.options.receive_bytes as usize {
        pair.kill();
    } else {
        end.arrive(frame);
    }
}

/// Returns a frame that states high limits.
fn invented(input: &mut Input<'_>) -> Frame {
    let id = CallId::new(input.below(8) as u64, u16::try_from(input.below(8)).unwrap());
    let role = [Role::Message, Role::Request(id), Role::Reply(id)][input.below(3)];
    let length = u32::try_from(input.below(9_000)).unwrap();
    let source = Remote { va: 7, rkey: Rkey::new(7) };
    let body = match input.below(10) {
        0 => Body::Credit,
        1 => Body::Acknowledge,
        2 => Body::Close(CloseReason(u16::try_from(input.below(3)).unwrap())),
        3 => Body::First { role, length },
        4 => Body::Rest,
        5 => Body::Offer { role, length, source },
        6 => Body::Cancel(id),
        7 => Body::Refusal(id),
        8 => Body::Finish,
        _ => Body::Data,
    };
    let mut frame = Frame::new(Default::default(), body);
    frame.acknowledges = input.is_one_of(8);
    frame.stops = input.is_one_of(8);
    frame.limits.receives = 1 << 20;
    frame.limits.bytes = 1 << 28;
    frame.limits.fetched = u32::try_from(input.below(3)).unwrap();
    frame
}

/// Checks that an end is within its limits.
fn check<M>(end: &End<M>) {
    let options = &end.options;
    assert!(end.held.len() <= options.receives as usize);
    // The shortest message has 20 B, and the first is free.
    let most = 1 + options.window_bytes as usize / 20;
    assert!(end.inbox.len() <= most, "{} of {most} messages", end.inbox.len());
    let messages = most + (options.reads + options.calls) as usize;
    assert!(end.arriving.len() <= messages, "{} of {messages} messages", end.arriving.len());
}

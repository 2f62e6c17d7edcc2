//! Unreliable connections: a stream of packets into a responder, and a sender of requests.

use arbitrary::Unstructured;
use rdma_proto::wire::{Headers, Service};
use rdma_proto::{Burst, Stop, UnreliableRequester, UnreliableResponder, Wqe};
use rdma_types::Psn;

use super::connected::{counted, legal, reason};
use super::input::{Answer, Poll, Post, Setting, Tag, number, raw};
use super::peer;
use super::posted::Posted;
use super::responder::{request, stop};
use super::watched::Watched;

struct Responding {
    responder: UnreliableResponder,
    host: Watched,
    mtu: u32,
    expected: Psn,
}

pub(crate) fn respond(setting: &Setting, input: &mut Unstructured<'_>) {
    let responder = UnreliableResponder::new(setting.connection(), setting.psn());
    let (mtu, expected) = (setting.mtu().bytes(), setting.psn());
    let mut end = Responding { responder, host: Watched::new(), mtu, expected };
    while !input.is_empty() {
        let host = &mut end.host.plain;
        match Tag::read(input) {
            tag @ (Tag::Packet | Tag::Raw) => {
                let asked = request(tag, Service::Uc, mtu, end.expected, input);
                if let Some((burst, payload)) = asked {
                    let packets = burst.packets(&payload);
                    packets.for_each(|(headers, payload)| end.receive(&headers, payload));
                }
            }
            Tag::Post => host.memory.receives.push_back(number::<u16>(input).into()),
            Tag::Switch => host.memory.granted = number::<u8>(input) < 128,
            Tag::Next => host.next = Some(stop(number(input))),
            Tag::Poll => _ = Poll::read(input),
        }
    }
    assert_eq!(end.host.plain.memory.failed, None, "an unreliable connection does not fail");
}

impl Responding {
    /// Receives a packet: it is executed, or dropped with its message.
    fn receive(&mut self, headers: &Headers, payload: &[u8]) {
        let before = *self.responder.counters();
        self.host.take_up(headers, payload);
        let opened = self.host.open;
        self.responder.receive(&Burst::single(*headers, payload.len()), payload, &mut self.host);
        let after = *self.responder.counters();
        assert_eq!(after.rcvd_pkts, before.rcvd_pkts + 1);
        let counted = counted(&before, &after);
        let (opcode, hand) = (headers.bth.opcode, &self.host.hand);
        if opcode.service() != Service::Uc {
            assert!(counted == ["wrong_opcode"] && !hand.asked());
            return;
        }
        let starts = opcode.operation().starts_message();
        let follows = starts || headers.bth.psn == self.expected && opened.is_some();
        self.expected = headers.bth.psn.wrapping_add(1);
        assert_eq!(self.responder.expected(), self.expected);
        let legal = legal(opened.filter(|_| !starts), headers, payload, self.mtu);
        let expected = match hand.stopped {
            _ if !follows => Some("out_of_seq_request"),
            _ if !legal => Some("resp_invalid_request_errors"),
            Some(Stop::NotReady) => Some("out_of_buffer"),
            stopped => stopped.map(reason),
        };
        assert_eq!(counted, expected.as_slice(), "{headers:?}");
        let taken = expected.is_none();
        if opened.is_some() && (starts || !taken) {
            assert!(hand.abandoned);
        }
        if taken {
            assert_eq!((hand.began, hand.placed), (starts, !payload.is_empty()));
            assert_eq!(hand.finished, opcode.operation().ends_message());
            self.host.settle();
        } else {
            assert!(self.host.open.is_none());
        }
    }
}

pub(crate) fn send(setting: &Setting, input: &mut Unstructured<'_>) {
    let mut requester = UnreliableRequester::new(setting.connection(), setting.psn());
    let mut work = Posted::new(setting, Service::Uc);
    while !input.is_empty() {
        match Tag::read(input) {
            Tag::Post => work.post(&Post::read(input)),
            Tag::Poll => _ = transmit(&mut requester, &mut work, &Poll::read(input)),
            Tag::Raw => _ = raw(input),
            Tag::Switch if number::<u8>(input) == u8::MAX => {
                requester.stop();
                work.stopped = true;
            }
            Tag::Packet => _ = Answer::read(input),
            Tag::Next => _ = number::<u32>(input),
            Tag::Switch => {}
        }
    }
    // A message may have millions of packets.
    if transmit(&mut requester, &mut work, &Poll { times: 50, room: 3 }) && !work.stopped {
        assert_eq!(work.completed(), work.posted(), "all ends");
    }
}

/// Returns true if nothing is left.
fn transmit(requester: &mut UnreliableRequester, work: &mut Posted, poll: &Poll) -> bool {
    let (mut room, mut left) = (vec![0; work.room(poll)], poll.times);
    while left > 0 {
        let Some(burst) = requester.poll_transmit(work, &mut room) else { break };
        left -= 1;
        work.gave(&peer::packets(&burst, &room));
        assert_eq!(requester.counters().sent_pkts, work.given);
    }
    assert_eq!(requester.stopped(), work.stopped);
    assert_eq!(requester.psn(), work.psn_of(work.end));
    let is_remote = |n: u32| matches!(work.at(n).request, Wqe::Remote { .. });
    assert!((0..work.completed()).all(|n| work.at(n).executed || is_remote(n)));
    work.all_done_was_given();
    assert!(left == 0 || requester.idle() || work.stopped, "something is left to send");
    left > 0
}

//! Datagrams: those of one end, and any other packet, into the other end.

use arbitrary::Unstructured;
use rdma_proto::wire::{Bth, Headers, Service};
use rdma_proto::{Burst, Datagrams, Destination, MessageEnd};

use super::connected::counted;
use super::input::{self, Poll, Post, Setting, Tag, number};
use super::peer::{self, OWN, PEER, QKEY};
use super::responder::request;
use super::watched::Watched;

struct Ends {
    sender: Datagrams,
    receiver: Datagrams,
    host: Watched,
    mtu: u32,
    came: u64,
    sent: u64,
}

pub(crate) fn run(setting: &Setting, input: &mut Unstructured<'_>) {
    let mtu = setting.mtu();
    let mut ends = Ends {
        sender: Datagrams::new(PEER, mtu, setting.psn()),
        receiver: Datagrams::new(OWN, mtu, setting.psn()),
        host: Watched::new(),
        mtu: mtu.bytes(),
        came: 0,
        sent: 0,
    };
    while !input.is_empty() {
        match Tag::read(input) {
            tag @ (Tag::Packet | Tag::Raw) => {
                let asked = request(tag, Service::Ud, ends.mtu, setting.psn(), input);
                if let Some((burst, payload)) = asked {
                    let packets = burst.packets(&payload);
                    packets.for_each(|(headers, payload)| ends.receive(&headers, payload));
                }
            }
            Tag::Post => ends.send(&Post::read(input)),
            Tag::Poll => _ = Poll::read(input),
            Tag::Switch => _ = number::<u8>(input),
            Tag::Next => {
                let size = number::<u16>(input);
                ends.host.plain.memory.receives.push_back(size.into());
            }
        }
    }
}

impl Ends {
    fn send(&mut self, post: &Post) {
        let has = |flag| post.flags & flag != 0;
        let end = MessageEnd {
            length: input::length(post.length),
            immediate: has(Post::IMMEDIATE).then_some(post.at.into()),
            invalidate: None,
            solicited: has(Post::SOLICITED),
        };
        let qkey = if has(Post::UNREACHABLE) { 7 } else { QKEY };
        let to = Destination { qpn: OWN, qkey, p_key: Bth::DEFAULT_P_KEY };
        let Some(burst) = self.sender.send(&to, &end) else {
            assert!(end.length > self.mtu);
            return;
        };
        self.sent += 1;
        assert_eq!(self.sender.counters().sent_pkts, self.sent);
        assert_eq!((burst.segments, burst.length), (1, end.length));
        let room = peer::bytes(burst.header.bth.psn, end.length as usize);
        for (headers, payload) in peer::packets(&burst, &room) {
            self.receive(&headers, &payload);
        }
    }

    /// Receives a packet: it is delivered, or counted as dropped.
    fn receive(&mut self, headers: &Headers, payload: &[u8]) {
        let received = self.host.plain.memory.received.len();
        let before = *self.receiver.counters();
        self.host.take_up(headers, payload);
        let burst = Burst::single(*headers, payload.len());
        self.receiver.receive(QKEY, &[0; 40], &burst, payload, &mut self.host);
        self.came += 1;
        let counters = self.receiver.counters();
        assert_eq!(counters.rcvd_pkts, self.came);
        let counted = counted(&before, counters);
        let is_there = self.host.plain.memory.received.len() > received;
        // Packets of a run that no peer can send lack headers.
        let is_ud = headers.bth.opcode.service() == Service::Ud && headers.deth.is_some();
        let is_for_us = headers.deth.is_some_and(|deth| deth.qkey == QKEY);
        let fits = payload.len() <= self.mtu as usize;
        assert_eq!(self.host.hand.placed, is_ud && is_for_us && fits);
        let expected = match (is_ud, is_for_us, fits) {
            (false, ..) => &["wrong_opcode"][..],
            (_, false, _) => &["qkey_viol_cntr"],
            (.., false) => &["resp_invalid_request_errors"],
            _ if is_there => &[],
            _ => &["out_of_buffer"],
        };
        assert_eq!(counted, expected);
    }
}

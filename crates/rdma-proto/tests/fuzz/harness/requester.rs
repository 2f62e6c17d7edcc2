//! Answers of any kind, into a requester while its program posts requests and time passes.

use arbitrary::Unstructured;
use rdma_proto::requester::{self, Fixed, Requester};
use rdma_proto::wire::{Bth, Operation, Packet, PadCount, Service, Syndrome};
use rdma_proto::{Burst, Kind, Time, Wqe};
use rdma_types::{AckTimeout, MaxAckRetries, MaxRnrRetries, Rkey};

use super::connected::counted;
use super::input::{self, Answer, Poll, Post, Setting, Tag, number, raw};
use super::peer::{self, Fields, OWN, moved};
use super::posted::Posted;
use super::unreliable;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let setting = Setting::read(&mut input);
    match setting.service() {
        Service::Rc => Requesting::new(&setting).run(&mut input),
        _ => unreliable::send(&setting, &mut input),
    }
}

struct Requesting {
    requester: Requester,
    work: Posted,
    settings: requester::Settings,
    /// The largest number of READs and atomics that was ever allowed in flight.
    most_fetches: u8,
    window: u32,
    now: Time,
    came: u64,
    /// The number of packets that were sent since any other event.
    at_once: u32,
}

impl Requesting {
    fn new(setting: &Setting) -> Self {
        let timeout = AckTimeout::limited(setting.timeout % 32).unwrap_or(AckTimeout::unlimited());
        let rnr = MaxRnrRetries::limited(setting.rnr_retries % 8);
        let settings = requester::Settings {
            connection: setting.connection(),
            psn: setting.psn(),
            timeout,
            retries: MaxAckRetries::limited(setting.retries % 8).expect("three bits"),
            rnr_retries: rnr.unwrap_or(MaxRnrRetries::unlimited()),
            max_rd_atomic: setting.resources % 20,
        };
        let window = match setting.window {
            255 => u32::MAX,
            few => few.into(),
        };
        Self {
            requester: Requester::with_window(&settings, Fixed(window)),
            work: Posted::new(setting, Service::Rc),
            settings,
            most_fetches: settings.max_rd_atomic,
            window,
            now: Time::from_nanos(0),
            came: 0,
            at_once: 0,
        }
    }

    fn run(&mut self, input: &mut Unstructured<'_>) {
        while !input.is_empty() {
            self.step(input);
            assert_eq!(self.requester.stopped(), self.work.stopped);
            assert_eq!(self.requester.psn(), self.work.psn_of(self.work.end));
            let idle = self.work.completed() == self.requester.begun();
            assert_eq!(self.requester.idle(), idle);
        }
        self.ends();
    }

    fn step(&mut self, input: &mut Unstructured<'_>) {
        match Tag::read(input) {
            Tag::Packet => {
                let (burst, payload) = self.answer(&Answer::read(input));
                self.receive(&burst, &payload);
            }
            Tag::Raw => {
                if let Ok(Packet { headers, payload, .. }) = Packet::parse(raw(input)) {
                    self.receive(&Burst::single(headers, payload.len()), payload);
                }
            }
            Tag::Poll => self.poll(&Poll::read(input)),
            Tag::Post => self.work.post(&Post::read(input)),
            Tag::Switch => match number::<u8>(input) {
                0..128 => self.work.admitted = Some(self.requester.begun()),
                limits @ 240..255 => self.set_limits(limits),
                255 => {
                    self.requester.stop();
                    self.work.stopped = true;
                }
                _ => self.work.admitted = None,
            },
            Tag::Next => {
                let later = number::<u32>(input);
                let later = u64::from(later & 0x3ff_ffff) << (later >> 26);
                let deadline = self.requester.deadline().filter(|_| later == 0);
                // The clock does not reach its end, which is centuries away.
                let nanos = self.now.as_nanos().saturating_add(later).min(1 << 62);
                self.expire(deadline.unwrap_or(Time::from_nanos(nanos)));
            }
        }
    }

    fn set_limits(&mut self, limits: u8) {
        let Self { settings, most_fetches, .. } = self;
        settings.retries = MaxAckRetries::limited(limits % 8).expect("three bits");
        settings.max_rd_atomic = limits % 3;
        *most_fetches = settings.max_rd_atomic.max(*most_fetches);
        self.requester.set_limits(self.now, settings);
    }

    /// Returns the response of this step, and its payload.
    fn answer(&self, answer: &Answer) -> (Burst, Vec<u8>) {
        let has = |flag| answer.flags & flag != 0;
        let (mtu, oldest) = (self.work.mtu, self.work.oldest());
        let (mut psn, mut right, mut rest) = (self.work.end, Operation::Acknowledge, 0);
        if let Some(entry) = oldest {
            let Wqe::Remote { start, end, .. } = entry.request else {
                return self.answer_of(answer, psn, right, 0);
            };
            let there = entry.delivered / mtu;
            (right, rest) = match start.kind {
                Kind::Read => {
                    let rest = end.length - entry.delivered.min(end.length);
                    let ends = rest <= mtu;
                    let only = there == 0 && ends;
                    let right = match (only, ends, there) {
                        (true, ..) => Operation::RdmaReadResponseOnly,
                        (_, true, _) => Operation::RdmaReadResponseLast,
                        (_, _, 0) => Operation::RdmaReadResponseFirst,
                        _ => Operation::RdmaReadResponseMiddle,
                    };
                    (right, rest)
                }
                Kind::Send | Kind::Write => (Operation::Acknowledge, 0),
                _ => (Operation::AtomicAcknowledge, 0),
            };
            if !has(Answer::FROM_END) {
                psn = entry.base + u64::from(there);
            }
        }
        self.answer_of(answer, psn, right, rest)
    }

    fn answer_of(
        &self,
        answer: &Answer,
        psn: u64,
        right: Operation,
        rest: u32,
    ) -> (Burst, Vec<u8>) {
        let has = |flag| answer.flags & flag != 0;
        let mtu = self.work.mtu;
        let operation = match answer.operation {
            Answer::RIGHT => right as u8,
            other => other,
        };
        let service = if has(Answer::OTHER_SERVICE) { Service::Uc } else { Service::Rc };
        let psn = moved(self.work.psn_of(psn), answer.ahead);
        let bth = Bth {
            becn: has(Answer::CONGESTED),
            ..Bth::new(peer::opcode(service, operation), OWN, psn)
        };
        let messages = self.requester.begun().wrapping_add_signed(answer.msn.into());
        let fields = Fields {
            va: 0,
            rkey: Rkey::new(0),
            length: 0,
            operand: answer.syndrome.into(),
            syndrome: Syndrome::from_code(answer.syndrome),
            msn: messages,
        };
        let more = u32::from(answer.more % 8);
        let length = match answer.payload {
            Answer::RIGHT_PAYLOAD => rest.min((more + 1) * mtu) as usize,
            other => more as usize * mtu as usize + input::payload(other, mtu),
        };
        let mut header = fields.headers(bth);
        header.bth.pad_count = PadCount::of(length);
        let payload = peer::bytes(psn, length);
        let single = Burst::single(header, length);
        let segment = u16::try_from(mtu).expect("an MTU");
        let burst = match more {
            0 => single,
            _ => Burst { segment, segments: more as u16 + 1, ..single },
        };
        (burst, payload)
    }

    fn receive(&mut self, burst: &Burst, payload: &[u8]) {
        let before = *self.requester.counters();
        let completed = self.work.completed();
        self.came += u64::from(burst.segments);
        let opcode = burst.header.bth.opcode;
        self.work.until = self.until(burst);
        self.at_once = 0;
        self.requester.receive(self.now, burst, payload, &mut self.work);
        let counters = self.requester.counters();
        assert_eq!(counters.rcvd_pkts, self.came);
        if burst.segments != 1 {
            return;
        }
        let counted = counted(&before, counters);
        let is_response = opcode.service() == Service::Rc && opcode.operation().is_response();
        let dropped = ["unsolicited_response", "reserved_syndrome", "wrong_opcode", "after_end"];
        if !is_response || counted.iter().any(|name| dropped.contains(name)) {
            assert!(counted.len() == 1 && dropped.contains(&counted[0]), "{counted:?}");
            assert_eq!(completed, self.work.completed(), "what is dropped completes nothing");
        }
        let refuses =
            burst.header.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack(_)));
        let contradicts = match opcode.operation() {
            Operation::Acknowledge => !payload.is_empty(),
            _ => refuses,
        };
        if contradicts {
            assert_eq!(completed, self.work.completed(), "data and a refusal complete nothing");
        }
    }

    /// Returns the number of the packet up to which the answers acknowledge.
    fn until(&self, burst: &Burst) -> u64 {
        let Some(oldest) = self.work.oldest() else { return 0 };
        let bth = burst.header.bth;
        let psn = bth.psn.wrapping_add(u32::from(burst.segments.wrapping_sub(1)));
        let ahead = psn.distance_from(self.work.psn_of(oldest.base));
        let refuses =
            burst.header.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack(_)));
        let is_ack = bth.opcode.operation() == Operation::Acknowledge;
        oldest.base + u64::from(ahead) + u64::from(!(is_ack && refuses))
    }

    fn expire(&mut self, now: Time) {
        self.now = self.now.max(now);
        (self.work.until, self.at_once) = (0, 0);
        self.requester.expire(self.now, &mut self.work);
    }

    fn poll(&mut self, poll: &Poll) {
        let mut room = vec![0; self.work.room(poll)];
        (self.work.until, self.work.sending) = (0, true);
        for _ in 0..poll.times {
            let before = self.requester.counters().sent_pkts;
            let Some(burst) = self.requester.poll_transmit(self.now, &mut self.work, &mut room)
            else {
                break;
            };
            let packets = peer::packets(&burst, &room);
            self.work.gave(&packets);
            let sent = self.requester.counters().sent_pkts;
            assert_eq!((sent - before, sent), (packets.len() as u64, self.work.given));
            self.at_once += u32::from(burst.segments);
            assert!(self.at_once <= self.window.max(1), "the window");
            self.limits_fetches();
        }
        self.work.sending = false;
    }

    /// Checks that the number of READs and atomics in flight is within its limit.
    fn limits_fetches(&self) {
        let left = self.work.completed()..self.work.posted();
        let under_way = left.filter(|&n| {
            let entry = self.work.at(n);
            matches!(entry.request, Wqe::Remote { start, .. } if start.kind.fetches())
                && entry.base < self.work.end
        });
        assert!(under_way.count() <= self.most_fetches.into());
    }

    /// Checks that all requests end without further packets, whatever happened before.
    fn ends(&mut self) {
        self.work.admitted = None;
        if self.settings.timeout == AckTimeout::unlimited() {
            return;
        }
        for _ in 0..600 {
            self.poll(&Poll { times: 4, room: 1 });
            if self.work.stopped || self.work.completed() == self.work.posted() {
                assert_eq!(self.requester.deadline(), None);
                return;
            }
            let Some(deadline) = self.requester.deadline() else { break };
            self.expire(deadline);
        }
        let never = self.settings.max_rd_atomic == 0;
        assert!(never, "all requests end, unless no READ or atomic may be in flight");
    }
}

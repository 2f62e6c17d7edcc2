//! A send queue that checks which requests may be sent, and which may complete.

use rdma_proto::wire::{Headers, Operation, Service};
use rdma_proto::{Kind, MAX_MESSAGE_BYTES, MessageEnd, MessageStart, Remote, Work, Wqe};
use rdma_types::{Psn, Rkey, WcStatus};

use super::ends::{RKEY, VA};
use super::input::{self, Poll, Post, Setting};
use super::peer::{self, PEER};

/// A request.
pub(crate) struct Entry {
    pub(crate) request: Wqe,
    /// The length of its memory that is reachable.
    reach: Option<usize>,
    /// The number of packets of all requests before it, and its own.
    pub(crate) base: u64,
    pub(crate) packets: u32,
    /// The number of bytes that were delivered.
    pub(crate) delivered: u32,
    /// Whether it was executed locally.
    pub(crate) executed: bool,
}

impl Entry {
    fn reaches(&self, to: usize) -> Result<(), WcStatus> {
        let reached = self.reach.is_some_and(|reach| to <= reach);
        if reached { Ok(()) } else { Err(WcStatus::LOC_PROT_ERR) }
    }
}

/// The status of an invalid request, which nothing else uses.
const INVALID: WcStatus = WcStatus::MW_BIND_ERR;

/// The packets that the current packet acknowledges: requests can complete whose last packet is before this number.
pub(crate) type Until = u64;

pub(crate) struct Posted {
    entries: Vec<Entry>,
    /// All requests, or fewer.
    pub(crate) admitted: Option<u32>,
    completed: u32,
    pub(crate) failed: Option<WcStatus>,
    pub(crate) stopped: bool,
    service: Service,
    pub(crate) mtu: u32,
    psn: Psn,
    /// The number after the last packet that was ever sent, and the number of packets sent.
    pub(crate) end: u64,
    pub(crate) given: u64,
    pub(crate) until: Until,
    /// Whether the current call may execute local requests.
    pub(crate) sending: bool,
}

impl Posted {
    pub(crate) fn new(setting: &Setting, service: Service) -> Self {
        Self {
            entries: Vec::new(),
            admitted: None,
            completed: 0,
            failed: None,
            stopped: false,
            service,
            mtu: setting.mtu().bytes(),
            psn: setting.psn(),
            end: 0,
            given: 0,
            until: 0,
            sending: service == Service::Uc,
        }
    }

    pub(crate) fn completed(&self) -> u32 {
        self.completed
    }

    pub(crate) fn posted(&self) -> u32 {
        u32::try_from(self.entries.len()).expect("few")
    }

    pub(crate) fn at(&self, n: u32) -> &Entry {
        &self.entries[n as usize]
    }

    /// Returns the oldest request that has not completed.
    pub(crate) fn oldest(&self) -> Option<&Entry> {
        self.entries.get(self.completed as usize)
    }

    /// Returns the size of the buffer in bytes.
    pub(crate) fn room(&self, poll: &Poll) -> usize {
        let (mtu, more) = (self.mtu as usize, usize::from(poll.room));
        mtu + more % 16 * mtu + more
    }

    pub(crate) fn psn_of(&self, packet: u64) -> Psn {
        self.psn.wrapping_add((packet & 0xff_ffff) as u32)
    }

    pub(crate) fn post(&mut self, post: &Post) {
        let has = |flag| post.flags & flag != 0;
        let remote = Remote { va: VA + u64::from(post.at), rkey: RKEY };
        let mut length = input::length(post.length);
        let start = match post.kind % 7 {
            0 => Some(MessageStart::send()),
            1 => Some(MessageStart::one_sided(Kind::Write, remote, length)),
            2 => Some(MessageStart::one_sided(Kind::Read, remote, length)),
            3 => Some(MessageStart::atomic(Kind::CompareSwap, remote, 1, 2)),
            4 => Some(MessageStart::atomic(Kind::FetchAdd, remote, 3, 0)),
            _ => None,
        };
        if start.is_some_and(|start| start.kind.is_atomic()) {
            length = 8;
        }
        let end = MessageEnd {
            length,
            immediate: has(Post::IMMEDIATE).then_some(post.at.into()),
            invalidate: has(Post::INVALIDATE).then_some(Rkey::new(post.at.into())),
            solicited: has(Post::SOLICITED),
        };
        let fence = has(Post::FENCE);
        let is_fetch = start.is_some_and(|start| start.kind.fetches());
        let packets = match start {
            None => 0,
            Some(start) if start.kind.is_atomic() => 1,
            // Such a request fails.
            Some(_) if length > MAX_MESSAGE_BYTES => 0,
            Some(_) if is_fetch && self.service == Service::Uc => 0,
            Some(_) => length.div_ceil(self.mtu).max(1),
        };
        let request = match start {
            Some(start) => Wqe::Remote { start, end, fence },
            None if post.kind % 7 == 6 => Wqe::Invalid(INVALID),
            None => Wqe::Local,
        };
        let base = self.entries.last().map_or(0, |last| last.base + u64::from(last.packets));
        let reach = match (has(Post::UNREACHABLE), has(Post::CUT)) {
            (true, _) => None,
            (_, true) => Some(self.mtu as usize),
            _ => Some(usize::MAX),
        };
        let (delivered, executed) = (0, false);
        self.entries.push(Entry { request, reach, base, packets, delivered, executed });
    }

    /// Returns the request that this packet belongs to.
    fn holder(&self, packet: u64) -> u32 {
        let has = |entry: &Entry| packet.wrapping_sub(entry.base) < entry.packets.into();
        let n = self.entries.iter().position(has).expect("a packet of what was posted");
        u32::try_from(n).expect("few")
    }

    /// Checks that each sent packet belongs to the queue and has all required parts.
    pub(crate) fn gave(&mut self, packets: &[(Headers, Vec<u8>)]) {
        for (headers, payload) in packets {
            self.given += 1;
            let oldest = match self.service {
                Service::Uc => self.end,
                _ => self.oldest().expect("something is left to send").base,
            };
            let ahead = headers.bth.psn.distance_from(self.psn_of(oldest));
            let packet = oldest + u64::from(ahead);
            assert!(packet <= self.end, "no gap");
            let n = self.holder(packet);
            assert!(n < self.admitted.unwrap_or(u32::MAX));
            let next = self.check(n, packet, headers, payload);
            self.end = self.end.max(next);
        }
    }

    /// Checks a packet, and returns the number of the next one.
    fn check(&self, n: u32, packet: u64, headers: &Headers, payload: &[u8]) -> u64 {
        let entry = self.at(n);
        let Wqe::Remote { start, end, fence } = entry.request else {
            panic!("{n} is not for the peer")
        };
        let bth = &headers.bth;
        assert_eq!((bth.destination, bth.opcode.service()), (PEER, self.service));
        let index = (packet - entry.base) as u32;
        if self.service == Service::Rc {
            let before = &self.entries[self.completed as usize..n as usize];
            for earlier in before {
                match earlier.request {
                    Wqe::Local => panic!("{n} is sent before an earlier local request"),
                    Wqe::Invalid(_) => panic!("{n} is sent after a request that fails"),
                    Wqe::Remote { start, .. } => {
                        assert!(!(fence && index == 0 && start.kind.fetches()), "{n} is fenced");
                    }
                }
            }
        }
        let at = index * if entry.packets == 1 { 0 } else { self.mtu };
        if start.kind.fetches() {
            assert!(payload.is_empty() && bth.ack_request);
            check_fetch(headers, &start, at, end.length);
            return entry.base + u64::from(entry.packets);
        }
        let operation = bth.opcode.operation();
        let (first, last) = (index == 0, index + 1 == entry.packets);
        let is_write = start.kind == Kind::Write;
        let name = operation.to_string();
        assert_eq!((name.contains("SEND"), name.contains("WRITE")), (!is_write, is_write));
        assert_eq!((operation.starts_message(), operation.ends_message()), (first, last));
        let reth = headers.reth.map(|reth| (reth.va, reth.rkey, reth.length));
        let (Remote { va, rkey }, length) = (start.remote, end.length);
        assert_eq!(reth, (first && is_write).then_some((va, rkey, length)));
        let immediate = end.immediate.filter(|_| last);
        assert_eq!(headers.imm.map(|imm| imm.immediate), immediate);
        let may = last && !is_write && self.service == Service::Rc && end.immediate.is_none();
        assert_eq!(headers.ieth.map(|ieth| ieth.rkey), end.invalidate.filter(|_| may));
        assert_eq!(bth.solicited, last && end.solicited);
        assert_eq!(payload.len(), (length - at).min(self.mtu) as usize);
        let mut expected = vec![0; payload.len()];
        content(n, at, &mut expected);
        assert!(payload == expected, "{n} from {at}");
        packet + 1
    }

    /// Checks that no request completed before its last packet was sent.
    pub(crate) fn all_done_was_given(&self) {
        if let Some(last) = self.completed.checked_sub(1) {
            let last = self.at(last);
            assert!(last.base + u64::from(last.packets) <= self.end);
        }
    }

    fn lives(&self, n: u32) -> &Entry {
        assert!(
            self.failed.is_none() && !self.stopped,
            "{n} is read after the queue has failed or stopped"
        );
        assert!(n >= self.completed, "{n} is read after it completed");
        self.at(n)
    }
}

/// Checks the request packet of an atomic, or of a READ that has `at` bytes already.
fn check_fetch(headers: &Headers, start: &MessageStart, at: u32, length: u32) {
    let Remote { va, rkey } = start.remote;
    let operation = headers.bth.opcode.operation();
    if start.kind == Kind::Read {
        let reth = headers.reth.expect("a READ");
        let (va, rest) = (va + u64::from(at), length - at);
        assert_eq!((reth.va, reth.rkey, reth.length), (va, rkey, rest));
        assert_eq!(operation, Operation::RdmaReadRequest);
        return;
    }
    let atomic = headers.atomic.expect("an atomic");
    let (expected, numbers) = match start.kind {
        Kind::CompareSwap => (Operation::CompareSwap, (2, 1)),
        _ => (Operation::FetchAdd, (3, 0)),
    };
    assert_eq!((operation, (atomic.swap_or_add, atomic.compare)), (expected, numbers));
    assert_eq!((atomic.va, atomic.rkey), (va, rkey));
}

/// Fills `out` with the payload of a request, from this offset on.
fn content(n: u32, at: u32, out: &mut [u8]) {
    peer::fill(n.wrapping_mul(31).wrapping_add(at), out);
}

impl Work for Posted {
    fn admitted(&self) -> u32 {
        self.admitted.unwrap_or(self.posted())
    }

    fn request(&self, n: u32) -> Wqe {
        self.lives(n).request
    }

    fn gather(&mut self, n: u32, at: u32, out: &mut [u8]) -> Result<(), WcStatus> {
        let entry = self.lives(n);
        let Wqe::Remote { start, end, .. } = entry.request else { panic!("{n} is local") };
        assert!(!start.kind.fetches() && !out.is_empty());
        let rest = end.length.checked_sub(at).expect("within the request");
        assert!(out.len() <= rest as usize);
        let reachable = entry.reaches(at as usize + out.len());
        content(n, at, out);
        reachable
    }

    fn deliver(&mut self, n: u32, at: u32, payload: &[u8]) -> Result<(), WcStatus> {
        let entry = self.lives(n);
        assert!(n == self.completed && self.service == Service::Rc);
        let Wqe::Remote { start, end, .. } = entry.request else { panic!("{n} is local") };
        assert!(start.kind.fetches() && !payload.is_empty());
        assert_eq!(at, entry.delivered, "each byte once");
        let there = at + u32::try_from(payload.len()).expect("a packet");
        assert!(there <= end.length);
        assert!(there == end.length || payload.len() == self.mtu as usize);
        entry.reaches(there as usize)?;
        self.entries[n as usize].delivered = there;
        Ok(())
    }

    fn execute_local(&mut self, n: u32) -> Result<(), WcStatus> {
        let entry = self.lives(n);
        assert!(n == self.completed && !entry.executed && self.sending);
        assert!(matches!(entry.request, Wqe::Local));
        entry.reaches(0)?;
        self.entries[n as usize].executed = true;
        Ok(())
    }

    fn done(&mut self, n: u32) {
        let entry = self.lives(n);
        assert_eq!(n, self.completed, "in order, and once");
        match entry.request {
            Wqe::Local => assert!(entry.executed),
            Wqe::Invalid(_) => panic!("{n} completed, but is invalid"),
            Wqe::Remote { .. } if self.service == Service::Uc => {}
            Wqe::Remote { start, end, .. } => {
                let behind = entry.base + u64::from(entry.packets);
                assert!(behind <= self.end && behind <= self.until, "{n} was acknowledged");
                let delivered = if start.kind.fetches() { end.length } else { 0 };
                assert_eq!(entry.delivered, delivered);
            }
        }
        self.completed += 1;
    }

    fn failed(&mut self, n: u32, status: WcStatus) {
        let entry = self.lives(n);
        assert_eq!(n, self.completed, "in order, and once");
        let is_invalid = matches!(entry.request, Wqe::Invalid(_));
        assert!(status != WcStatus::SUCCESS && is_invalid == (status == INVALID));
        self.failed = Some(status);
        self.stopped = true;
    }
}

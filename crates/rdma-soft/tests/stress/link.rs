//! One queue pair, and the record of each request that was posted to it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rdma_sys::{ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status as Status};

use crate::meeting::{Tally, deed};
use crate::memory::{Memory, length_of};
use test_support::rig::{Qp, imm_of};

pub(crate) enum Request {
    Write {
        sink: Arc<Memory>,
        slot: usize,
        tag: u64,
        is_message: bool,
    },
    /// The expected contents of the local slot after the READ.
    Read {
        local: Arc<Memory>,
        slot: usize,
        tag: u64,
    },
    Send,
    Nothing,
    /// The last request, in the error state.
    Sentinel,
}

struct Posted {
    number: u64,
    signaled: bool,
    request: Request,
}

struct Receive {
    number: u64,
    memory: Arc<Memory>,
    slot: usize,
}

/// The possible contents of a slot of the peer's memory: the value known to be there, then those posted since.
struct Written {
    sink: Arc<Memory>,
    slot: usize,
    tags: Vec<u64>,
}

/// The outcomes of completions, over all rounds.
#[derive(Default, Debug, Clone, Copy)]
pub(crate) struct Score {
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) flushed: u64,
}

impl std::ops::AddAssign for Score {
    fn add_assign(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.flushed += other.flushed;
    }
}

pub(crate) struct Link {
    /// `None` once the queue pair is destroyed.
    pub(crate) qp: Option<Qp>,
    pub(crate) qpn: u32,
    /// The tag of the peer's first message; the others count up from it.
    peer_tag: u64,
    pub(crate) posted: u64,
    pub(crate) messages: u64,
    open: VecDeque<Posted>,
    open_receives: VecDeque<Receive>,
    receives_posted: u64,
    /// The slots written to, by address.
    written: HashMap<u64, Written>,
    failed: bool,
    receive_failed: bool,
    sent: u64,
    received: u64,
    /// Whether the queue pair was reset or destroyed, which drops its requests.
    pub(crate) dropped: bool,
    pub(crate) score: Score,
}

impl Link {
    pub(crate) fn new(qp: Qp, peer_tag: u64) -> Self {
        Self {
            qpn: qp.number(),
            qp: Some(qp),
            peer_tag,
            posted: 0,
            messages: 0,
            open: VecDeque::new(),
            open_receives: VecDeque::new(),
            receives_posted: 0,
            written: HashMap::new(),
            failed: false,
            receive_failed: false,
            sent: 0,
            received: 0,
            dropped: false,
            score: Score::default(),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.open.is_empty() && self.open_receives.is_empty()
    }

    pub(crate) fn has_sent_all(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    pub(crate) fn receive_has_failed(&self) -> bool {
        self.receive_failed
    }

    pub(crate) fn receives_open(&self) -> usize {
        self.open_receives.len()
    }

    pub(crate) fn next_receive(&self) -> u64 {
        self.receives_posted
    }

    /// Records that the queue pair was reset or destroyed: nothing else completes.
    pub(crate) fn drop_requests(&mut self) {
        self.dropped = true;
        self.open.clear();
        self.open_receives.clear();
    }

    pub(crate) fn tally(&self) -> Tally {
        (!self.dropped).then_some((self.sent, self.received))
    }

    /// Records an accepted request.
    pub(crate) fn note(&mut self, signaled: bool, request: Request) {
        match &request {
            Request::Write { sink, slot, tag, is_message } => {
                self.written_to(sink, *slot).tags.push(*tag);
                self.messages += u64::from(*is_message);
            }
            Request::Send => self.messages += 1,
            Request::Read { .. } | Request::Nothing | Request::Sentinel => {}
        }
        self.open.push_back(Posted { number: self.posted, signaled, request });
        self.posted += 1;
    }

    pub(crate) fn note_receive(&mut self, memory: Arc<Memory>, slot: usize) {
        self.open_receives.push_back(Receive { number: self.receives_posted, memory, slot });
        self.receives_posted += 1;
    }

    fn written_to(&mut self, sink: &Arc<Memory>, slot: usize) -> &mut Written {
        let first = || Written { sink: Arc::clone(sink), slot, tags: vec![0] };
        self.written.entry(sink.address_of(slot)).or_insert_with(first)
    }

    /// Returns the tag that a READ posted now will find.
    pub(crate) fn last_written(&self, sink: &Memory, slot: usize) -> u64 {
        let written = self.written.get(&sink.address_of(slot));
        written.and_then(|written| written.tags.last()).copied().unwrap_or(0)
    }

    /// Accounts for a completion of the send queue, and for the unsignaled requests before it.
    pub(crate) fn complete(&mut self, wc: &ibv_wc, own_deeds: u32, peer_deeds: u32) {
        assert!(!self.dropped, "{}: a completion after the queue was emptied", wc.wr_id);
        loop {
            let open = self.open.pop_front().expect("a completion without a posted request");
            if open.number != wc.wr_id {
                assert!(!open.signaled, "request {} was overtaken by {}", open.number, wc.wr_id);
                assert!(!self.failed, "request {} was not flushed", open.number);
                self.succeed(open.request);
            } else if wc.status == Status::IBV_WC_SUCCESS {
                assert!(open.signaled && !self.failed, "request {} did not fail", open.number);
                return self.succeed(open.request);
            } else {
                return self.fail(wc.status, own_deeds, peer_deeds);
            }
        }
    }

    fn succeed(&mut self, request: Request) {
        self.score.succeeded += 1;
        match request {
            Request::Write { sink, slot, tag, is_message } => {
                self.sent += u64::from(is_message);
                let tags = &mut self.written_to(&sink, slot).tags;
                let at = tags.iter().position(|&other| other == tag).unwrap();
                tags.drain(..at);
            }
            Request::Read { local, slot, tag } => {
                let holds = local.is_taken_back() || local.holds(slot, tag);
                assert!(holds, "read {:#x}, not {tag:#x}", local.tag(slot));
            }
            Request::Send => self.sent += 1,
            Request::Nothing => {}
            Request::Sentinel => panic!("the last request, in the error state, succeeded"),
        }
    }

    fn fail(&mut self, status: Status, own_deeds: u32, peer_deeds: u32) {
        let any = own_deeds | peer_deeds;
        let reason = match status {
            Status::IBV_WC_WR_FLUSH_ERR if self.failed => 1,
            _ if self.failed => 0,
            Status::IBV_WC_WR_FLUSH_ERR => any & !deed::IMPATIENT,
            Status::IBV_WC_LOC_PROT_ERR => own_deeds & deed::REPLACED_LOCAL_MEMORY,
            Status::IBV_WC_REM_ACCESS_ERR => peer_deeds & deed::DEREGISTERED_SINK,
            Status::IBV_WC_REM_OP_ERR => peer_deeds & deed::REPLACED_RECEIVE_MEMORY,
            // A peer that is in error does not answer, whatever caused the error.
            Status::IBV_WC_RETRY_EXC_ERR => any,
            Status::IBV_WC_RNR_RETRY_EXC_ERR => own_deeds & deed::IMPATIENT,
            _ => 0,
        };
        assert_ne!(reason, 0, "unexpected {status:?}; failed before: {}", self.failed);
        self.failed = true;
        match status {
            Status::IBV_WC_WR_FLUSH_ERR => self.score.flushed += 1,
            _ => self.score.failed += 1,
        }
    }

    pub(crate) fn complete_receive(&mut self, wc: &ibv_wc, own_deeds: u32) {
        assert!(!self.dropped, "{}: a completion after the queue was emptied", wc.wr_id);
        let receive =
            self.open_receives.pop_front().expect("a completion without a posted receive");
        assert_eq!(receive.number, wc.wr_id, "out of order");
        match wc.status {
            Status::IBV_WC_SUCCESS => {
                assert!(!self.receive_failed, "receive {} was not flushed", wc.wr_id);
                self.check_message(wc, &receive);
                self.received += 1;
                self.score.succeeded += 1;
            }
            Status::IBV_WC_LOC_PROT_ERR => {
                assert!(!self.receive_failed && own_deeds & deed::REPLACED_RECEIVE_MEMORY != 0);
                self.receive_failed = true;
                self.score.failed += 1;
            }
            status => {
                assert_eq!(status, Status::IBV_WC_WR_FLUSH_ERR);
                self.receive_failed = true;
                self.score.flushed += 1;
            }
        }
    }

    /// Checks that messages arrive whole, in order, and with their immediate data.
    fn check_message(&self, wc: &ibv_wc, receive: &Receive) {
        let tag = self.peer_tag + self.received;
        if wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0 {
            assert_eq!(u64::from(imm_of(wc)), tag & 0xffff_ffff, "message out of order");
        }
        if wc.opcode == ibv_wc_opcode::IBV_WC_RECV && !receive.memory.is_taken_back() {
            let (memory, slot) = (&receive.memory, receive.slot);
            assert!(memory.holds(slot, tag), "received {:#x}, not {tag:#x}", memory.tag(slot));
            assert_eq!(wc.byte_len as usize, length_of(tag));
        }
    }

    /// Checks that the peer's memory holds what was written, unless the peer has revoked it.
    pub(crate) fn check_written(&self, peer_sinks: &[Arc<Memory>]) {
        for Written { sink, slot, tags } in self.written.values() {
            if !peer_sinks.iter().any(|other| Arc::ptr_eq(other, sink)) {
                continue;
            }
            let tag = sink.tag(*slot);
            let expected = if self.dropped { &tags[..] } else { &tags[..1] };
            assert!(expected.contains(&tag) && sink.holds(*slot, tag), "{tag:#x} of {tags:#x?}");
        }
    }
}

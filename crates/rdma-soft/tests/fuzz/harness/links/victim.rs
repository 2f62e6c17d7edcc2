//! An attacked queue pair, and the record of the requests posted to it.

use std::collections::VecDeque;

use rdma_sys::{
    ibv_mtu, ibv_qp_attr, ibv_qp_state, ibv_qp_type, ibv_wc, ibv_wc_opcode as Done,
    ibv_wc_status as Status, ibv_wr_opcode as Opcode,
};
use test_support::fuzz::trace;
use test_support::rig::connect::{
    Endpoint, Knobs, RTS, attributes, connect_unreliably, to_init, to_rtr,
};
use test_support::rig::datagram::{self, Ah, QKEY};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, Qp};

use super::input::{Post, Setting};
use super::memory::{Memory, RECEIVES, ROOM, SHARED, SINKS};

#[derive(Clone, Copy)]
struct Sent {
    id: u64,
    opcode: Opcode,
    length: u32,
}

pub(crate) struct Victim {
    pub(crate) qp: Qp,
    /// Whether it only receives requests and posts none.
    pub(crate) is_silent: bool,
    sends: VecDeque<Sent>,
    receives: VecDeque<u64>,
    /// Whether a request has failed.
    broken: bool,
    /// The first number after the last reset: lower ones may complete or not.
    first: u64,
    /// The PSNs of the next incoming request and of the first outgoing one.
    pub(crate) next_psn: u32,
    pub(crate) own_psn: u32,
    posted: u64,
}

impl Victim {
    pub(crate) fn new(qp: Qp, is_silent: bool) -> Self {
        let (sends, receives) = Default::default();
        let (broken, first, posted, next_psn, own_psn) = (false, 0, 0, 0, 0);
        Self { qp, is_silent, sends, receives, broken, first, next_psn, own_psn, posted }
    }

    fn next_id(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// Connects it from the reset state.
    pub(crate) fn connect(&mut self, setting: &Setting, own: &Endpoint, far: &Endpoint) {
        let has = |flag| setting.flags & flag != 0;
        let psn = if has(Setting::WRAPS) { 0x00ff_fffd } else { 7 };
        (self.next_psn, self.own_psn) = (psn, psn);
        let impatient = has(Setting::IMPATIENT);
        let knobs = Knobs {
            access: ALL_ACCESS,
            mtu: ibv_mtu(1 + u32::from(setting.mtu % 5)),
            psn,
            timeout: if impatient { 4 } else { 0 },
            retries: if impatient { 1 } else { 7 },
            rnr_retries: if impatient { 1 } else { 7 },
            min_rnr_timer: 1,
            rd_atomic: 4,
        };
        let own = Endpoint { qpn: self.qp.number(), ..*own };
        match self.qp.service() {
            ibv_qp_type::IBV_QPT_RC => {
                let attr = attributes(&own, far, &knobs);
                to_init(&self.qp, &attr);
                to_rtr(&self.qp, &attr);
                if !self.is_silent {
                    // A packet that has waited for the queue pair may fail it as soon as it can
                    // receive.
                    let rts = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RTS, ..attr };
                    let is_ready = self.qp.modify(rts, RTS) == 0;
                    assert!(is_ready || self.qp.state() == ibv_qp_state::IBV_QPS_ERR);
                }
            }
            ibv_qp_type::IBV_QPT_UC => connect_unreliably(&self.qp, &own, far, &knobs),
            _ => datagram::activate(&self.qp, QKEY),
        }
    }

    /// Checks that all posted requests are done; in the reset state there are none.
    pub(crate) fn end(&self) {
        if self.qp.state() != ibv_qp_state::IBV_QPS_RESET {
            self.qp.to_error();
        }
    }

    /// Resets the queue pair and its record. The caller has polled.
    pub(crate) fn reset(&mut self) {
        self.qp.to_reset();
        self.sends.clear();
        self.receives.clear();
        self.broken = false;
        self.first = self.posted + 1;
    }

    pub(crate) fn receive(&mut self, memory: &Memory) {
        let id = self.next_id();
        if self.qp.try_post_receive(id, &[memory.slot(RECEIVES, id, ROOM)]) == 0 {
            self.receives.push_back(id);
        }
    }

    pub(crate) fn send(&mut self, memory: &Memory, ah: &Ah, far: &Endpoint, post: &Post) {
        let id = self.next_id();
        let from = [memory.source(post.at, post.length)];
        let remote = |wr: Wr| wr.remote(memory.address(SHARED as u8, post.at), memory.key(0));
        let room = usize::from(post.length) % (ROOM + 1);
        let read = |length| [memory.slot(SINKS, id, length)];
        let wr = match post.kind % 8 {
            0 => Wr::send(id, &from),
            1 => Wr::send(id, &from).with_imm(post.at.into()),
            2 => remote(Wr::new(id, Opcode::IBV_WR_RDMA_WRITE, &from)),
            3 => remote(Wr::new(id, Opcode::IBV_WR_RDMA_WRITE, &from)).with_imm(9),
            4 | 5 => remote(Wr::new(id, Opcode::IBV_WR_RDMA_READ, &read(room))),
            6 => Wr::new(id, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, &read(8)).atomic_at(64, 5, 1, 0),
            _ => Wr::new(id, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP, &read(8)).atomic_at(64, 5, 1, 2),
        };
        let wr = match self.qp.service() {
            ibv_qp_type::IBV_QPT_UD => wr.to(ah, far.qpn, QKEY),
            _ => wr,
        };
        let errno = self.qp.try_post(&wr);
        trace(&("posted", self.qp.service(), id, post, errno));
        if errno == 0 {
            let length = wr.sges[0].length;
            self.sends.push_back(Sent { id, opcode: wr.wr.opcode, length });
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    pub(crate) fn take_sent(&mut self, wc: &ibv_wc) {
        let seen = seen(wc);
        if wc.wr_id < self.first {
            return;
        }
        let sent = self.sends.pop_front().expect("a request was posted");
        assert_eq!(sent.id, wc.wr_id, "{seen:?}");
        assert!(is_known(wc.status), "{seen:?}");
        if wc.status != Status::IBV_WC_SUCCESS {
            let flushed = wc.status == Status::IBV_WC_WR_FLUSH_ERR;
            assert!(flushed || !self.broken, "a second failure: {seen:?}");
            self.broken = true;
            return;
        }
        assert!(!self.broken, "an earlier request failed: {seen:?}");
        let expected = match sent.opcode {
            Opcode::IBV_WR_SEND | Opcode::IBV_WR_SEND_WITH_IMM => Done::IBV_WC_SEND,
            Opcode::IBV_WR_RDMA_READ => Done::IBV_WC_RDMA_READ,
            Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Done::IBV_WC_FETCH_ADD,
            Opcode::IBV_WR_ATOMIC_CMP_AND_SWP => Done::IBV_WC_COMP_SWAP,
            _ => Done::IBV_WC_RDMA_WRITE,
        };
        assert_eq!(wc.opcode, expected, "{seen:?}");
        let brings = expected != Done::IBV_WC_SEND && expected != Done::IBV_WC_RDMA_WRITE;
        assert!(!brings || wc.byte_len == sent.length, "{seen:?}");
    }

    pub(crate) fn take_received(&mut self, wc: &ibv_wc, memory: &Memory) {
        let seen = seen(wc);
        if wc.wr_id < self.first {
            return;
        }
        let id = self.receives.pop_front().expect("a receive was posted");
        assert_eq!(id, wc.wr_id, "{seen:?}");
        assert!(is_known(wc.status), "{seen:?}");
        if wc.status != Status::IBV_WC_SUCCESS {
            return;
        }
        let most = match wc.opcode {
            Done::IBV_WC_RECV => ROOM,
            other => {
                assert_eq!(other, Done::IBV_WC_RECV_RDMA_WITH_IMM, "{seen:?}");
                memory.length(SHARED)
            }
        };
        assert!(wc.byte_len as usize <= most, "{seen:?}");
    }
}

/// Returns true if a request of a queue pair may end with this status.
fn is_known(status: Status) -> bool {
    matches!(
        status,
        Status::IBV_WC_SUCCESS
            | Status::IBV_WC_LOC_LEN_ERR
            | Status::IBV_WC_LOC_QP_OP_ERR
            | Status::IBV_WC_LOC_PROT_ERR
            | Status::IBV_WC_WR_FLUSH_ERR
            | Status::IBV_WC_BAD_RESP_ERR
            | Status::IBV_WC_LOC_ACCESS_ERR
            | Status::IBV_WC_REM_INV_REQ_ERR
            | Status::IBV_WC_REM_ACCESS_ERR
            | Status::IBV_WC_REM_OP_ERR
            | Status::IBV_WC_RETRY_EXC_ERR
            | Status::IBV_WC_RNR_RETRY_EXC_ERR
    )
}

/// The fields of a completion that failures and traces show.
fn seen(wc: &ibv_wc) -> (u32, u64, Status, Done, u32) {
    let seen = (wc.qp_num, wc.wr_id, wc.status, wc.opcode, wc.byte_len);
    trace(&seen);
    seen
}

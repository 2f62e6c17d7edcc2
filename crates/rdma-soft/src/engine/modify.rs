//! Modifying and querying a queue pair. Every attribute is checked before any is changed.

use std::sync::Arc;

use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_state};
use rdma_types::{AccessFlags, QpState};

use crate::address::Path;
use crate::engine::Refusal;
use crate::engine::probe;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::drive::resume;
use crate::engine::requester::side::Requester;
use crate::engine::responder::side::Responder;
use crate::engine::transition;
use crate::overflow;
use crate::sync::{ControlGuard, locked};

const LARGEST_24_BITS: u32 = 0x00ff_ffff;

/// A queue pair's attributes as they were last set, and its life. This lock comes before all others
/// of the queue pair, and its state is the one that a transition starts from.
pub(crate) struct Attributes {
    pub(crate) state: QpState,
    /// But for the state.
    pub(crate) verbs: ibv_qp_attr,
    /// Counts resets.
    pub(crate) incarnation: u32,
    /// An event told why it failed.
    pub(crate) reported: bool,
}

impl Default for Attributes {
    fn default() -> Self {
        let (state, verbs) = (QpState::RESET, ibv_qp_attr::default());
        Self { state, verbs, incarnation: 0, reported: false }
    }
}

impl std::fmt::Debug for Attributes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attributes")
            .field("state", &self.state)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

impl Attributes {
    fn record(&mut self, attr: &ibv_qp_attr, has: impl Fn(Mask) -> bool) {
        macro_rules! record {
            ($($mask:ident: $($field:ident),+;)+) => {
                $(if has(Mask::$mask) { $(self.verbs.$field = attr.$field;)+ })+
            };
        }
        record! {
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_DEST_QPN: dest_qp_num;
            IBV_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            IBV_QP_QKEY: qkey;
        }
    }
}

impl QueuePair {
    /// `ibv_modify_qp`.
    pub(crate) fn modify(
        self: &Arc<Self>,
        attr: &ibv_qp_attr,
        dgid: [u8; 16],
        mask: u32,
    ) -> Result<(), Refusal> {
        let to = self.modify_locked(attr, dgid, mask);
        // Also if it was refused: it may have found that the queue pair had failed.
        overflow::settle();
        if to? == QpState::RTS {
            resume(self);
        }
        Ok(())
    }

    /// Modifies, under the locks, and says to what state.
    fn modify_locked(
        &self,
        attr: &ibv_qp_attr,
        dgid: [u8; 16],
        mask: u32,
    ) -> Result<QpState, Refusal> {
        let has = |bit: Mask| mask & bit.0 != 0;
        let mut attributes = self.attributes();
        let from = attributes.state;
        let to = if has(Mask::IBV_QP_STATE) { QpState::from_raw(attr.qp_state.0) } else { from };
        transition::check(self.service, from, to, mask)?;
        if has(Mask::IBV_QP_CUR_STATE) && attr.cur_qp_state.0 != from.raw() {
            return Err(Refusal::Invalid);
        }
        check_values(attr, self.device.limits.max_rd_atomic, has)?;
        let path = match has(Mask::IBV_QP_AV) {
            true => Some(self.device.path(&attr.ah_attr, dgid)?),
            false => None,
        };
        match to {
            QpState::RESET => self.reset(&mut attributes),
            QpState::ERR => {
                attributes.state = to;
                self.flush();
            }
            _ => {
                attributes.state = to;
                attributes.record(attr, has);
                self.apply(attr, from, to, path, has);
                if path.is_some() {
                    self.leave_requester();
                }
            }
        }
        Ok(to)
    }

    /// The attributes, with the state as it is: a request that failed puts its completion there
    /// before it has locked the attributes.
    fn attributes(&self) -> ControlGuard<'_, Attributes> {
        let mut attributes = locked(&self.attributes);
        let send = self.send.lock().state;
        let failed = send == QpState::ERR || self.responder.lock().state == QpState::ERR;
        if failed && attributes.state != QpState::ERR {
            attributes.state = QpState::ERR;
            self.flush();
        } else if send == QpState::SQE {
            attributes.state = send;
        }
        attributes
    }

    /// Sets what was given. A half that failed since the transition was checked stays in error, and
    /// the rest of the queue pair follows it: whoever made it fail sees to that.
    fn apply(
        &self,
        attr: &ibv_qp_attr,
        from: QpState,
        to: QpState,
        path: Option<Path>,
        has: impl Fn(Mask) -> bool,
    ) {
        let unless_failed = |present| match present {
            QpState::ERR => present,
            QpState::SQE if from != present => present,
            _ => to,
        };
        let mut guard = self.send.lock();
        let send = &mut *guard;
        send.state = unless_failed(send.state);
        if to != QpState::SQD {
            send.notify_drained = false;
        } else if has(Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY) {
            send.notify_drained = attr.en_sqd_async_notify != 0;
            send.report_drained(self);
        }
        send.requester.set(attr, path, &has);
        let mut responder = self.responder.lock();
        responder.state = unless_failed(responder.state);
        responder.set(attr, path, &has);
        self.receive.lock().state = to;
    }

    /// `ibv_query_qp`: all attributes, whatever was asked for, as providers do.
    pub(crate) fn query(&self) -> ibv_qp_attr {
        let (state, mut attr) = {
            let attributes = self.attributes();
            (attributes.state, attributes.verbs)
        };
        // It may have found that the queue pair had failed.
        overflow::settle();
        attr.qp_state = ibv_qp_state(state.raw());
        attr.cur_qp_state = attr.qp_state;
        {
            let send = self.send.lock();
            attr.sq_psn = send.requester.psn;
            let draining = send.state == QpState::SQD && send.may_run();
            attr.sq_draining = draining.into();
        }
        attr.rq_psn = self.responder.lock().psn;
        attr.cap.max_send_wr = self.capacity.send_wr;
        attr.cap.max_recv_wr = self.capacity.receive_wr;
        attr.cap.max_send_sge = self.capacity.send_sge;
        attr.cap.max_recv_sge = self.capacity.receive_sge;
        attr.cap.max_inline_data = self.capacity.inline;
        attr
    }
}

impl Requester {
    fn set(&mut self, attr: &ibv_qp_attr, path: Option<Path>, has: impl Fn(Mask) -> bool) {
        if path.is_some() {
            self.go(path);
        }
        if has(Mask::IBV_QP_DEST_QPN) {
            self.peer_qpn = attr.dest_qp_num;
        }
        if has(Mask::IBV_QP_PATH_MTU) {
            // Code 1 is 256 bytes.
            self.mtu_log2 = 7 + attr.path_mtu.0;
        }
        if has(Mask::IBV_QP_SQ_PSN) {
            self.psn = attr.sq_psn & LARGEST_24_BITS;
        }
        if has(Mask::IBV_QP_TIMEOUT) {
            self.ack_timeout = attr.timeout;
        }
        if has(Mask::IBV_QP_RETRY_CNT) {
            self.retries = attr.retry_cnt;
        }
        if has(Mask::IBV_QP_RNR_RETRY) {
            self.rnr_retries = attr.rnr_retry;
        }
        if has(Mask::IBV_QP_MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = attr.max_rd_atomic;
        }
        if has(Mask::IBV_QP_QKEY) {
            self.qkey = attr.qkey;
        }
    }
}

impl Responder {
    fn set(&mut self, attr: &ibv_qp_attr, path: Option<Path>, has: impl Fn(Mask) -> bool) {
        if path.is_some() {
            (self.path, self.verified) = (path, 0);
        }
        if has(Mask::IBV_QP_DEST_QPN) {
            (self.peer_qpn, self.verified) = (attr.dest_qp_num, 0);
        }
        if has(Mask::IBV_QP_RQ_PSN) {
            self.psn = attr.rq_psn & LARGEST_24_BITS;
        }
        if has(Mask::IBV_QP_ACCESS_FLAGS) {
            self.access = attr.qp_access_flags;
        }
        if has(Mask::IBV_QP_MIN_RNR_TIMER) {
            self.min_rnr_timer = attr.min_rnr_timer;
        }
        if has(Mask::IBV_QP_MAX_DEST_RD_ATOMIC) {
            self.max_rd_atomic = attr.max_dest_rd_atomic;
        }
        if has(Mask::IBV_QP_QKEY) {
            self.qkey = attr.qkey;
        }
    }
}

fn check_values(
    attr: &ibv_qp_attr,
    max_rd_atomic: u8,
    has: impl Fn(Mask) -> bool,
) -> Result<(), Refusal> {
    let access = AccessFlags::LOCAL_WRITE.bits() | probe::FROM_PEERS;
    let bad = has(Mask::IBV_QP_PORT) && attr.port_num != 1
        || has(Mask::IBV_QP_PKEY_INDEX) && attr.pkey_index != 0
        || has(Mask::IBV_QP_ACCESS_FLAGS) && attr.qp_access_flags & !access != 0
        || has(Mask::IBV_QP_PATH_MTU) && !(1..=5).contains(&attr.path_mtu.0)
        || has(Mask::IBV_QP_DEST_QPN) && attr.dest_qp_num > LARGEST_24_BITS
        || has(Mask::IBV_QP_TIMEOUT) && attr.timeout > 31
        || has(Mask::IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31
        || has(Mask::IBV_QP_RETRY_CNT) && attr.retry_cnt > 7
        || has(Mask::IBV_QP_RNR_RETRY) && attr.rnr_retry > 7
        || has(Mask::IBV_QP_MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > max_rd_atomic
        || has(Mask::IBV_QP_MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > max_rd_atomic;
    if bad { Err(Refusal::Invalid) } else { Ok(()) }
}

//! Modifying and querying a queue pair. Every attribute is checked before any is changed.

use std::sync::Arc;

use rdma_types::{AccessFlags, QpAttributes, QpState};

use crate::address::Path;
use crate::engine::Refusal;
use crate::engine::probe;
use crate::engine::queue_pair::QueuePair;
use crate::engine::requester::drive::resume;
use crate::engine::requester::side::Requester;
use crate::engine::responder::side::Responder;
use crate::engine::settings::{Found, Settings};
use crate::engine::transition;
use crate::sync::{ControlGuard, locked};

const LARGEST_24_BITS: u32 = 0x00ff_ffff;

/// A queue pair's attributes as they were last set, and its life. This lock comes before all others
/// of the queue pair, and its state is the one that a transition starts from.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) settings: Settings,
    /// Counts resets.
    pub(crate) incarnation: u32,
    /// An event told why it failed.
    pub(crate) reported: bool,
}

impl std::fmt::Debug for Attributes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attributes")
            .field("state", &self.settings.state)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

impl QueuePair {
    /// `ibv_modify_qp`.
    pub(crate) fn modify(
        self: &Arc<Self>,
        new: &Settings,
        mask: QpAttributes,
    ) -> Result<(), Refusal> {
        let to = self.modify_locked(new, mask);
        // Also if it was refused: it may have found that the queue pair had failed.
        self.device.fabric.unsettled.settle();
        if to? == QpState::RTS {
            resume(self);
        }
        Ok(())
    }

    /// Modifies, under the locks, and says to what state.
    fn modify_locked(&self, new: &Settings, mask: QpAttributes) -> Result<QpState, Refusal> {
        let has = |attribute| mask.intersects(attribute);
        let mut attributes = self.attributes();
        let from = attributes.settings.state;
        let to = if has(QpAttributes::STATE) { new.state } else { from };
        transition::check(self.service, from, to, mask)?;
        if has(QpAttributes::CUR_STATE) && new.current_state != from {
            return Err(Refusal::Invalid);
        }
        check_values(new, self.device.limits.max_rd_atomic, has)?;
        let path = match has(QpAttributes::AV) {
            true => Some(self.device.path(&new.address)?),
            false => None,
        };
        match to {
            QpState::RESET => self.reset(&mut attributes),
            QpState::ERR => {
                attributes.settings.state = to;
                self.flush();
            }
            _ => {
                attributes.settings.record(new, mask);
                self.apply(new, from, to, path, has);
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
        if failed && attributes.settings.state != QpState::ERR {
            attributes.settings.state = QpState::ERR;
            self.flush();
        } else if send == QpState::SQE {
            attributes.settings.state = send;
        }
        attributes
    }

    /// Sets what was given. A half that failed since the transition was checked stays in error, and
    /// the rest of the queue pair follows it: whoever made it fail sees to that.
    fn apply(
        &self,
        new: &Settings,
        from: QpState,
        to: QpState,
        path: Option<Path>,
        has: impl Fn(QpAttributes) -> bool,
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
        } else if has(QpAttributes::EN_SQD_ASYNC_NOTIFY) {
            send.notify_drained = new.notify_drained != 0;
            send.report_drained(self);
        }
        send.requester.set(new, path, &has);
        let mut responder = self.responder.lock();
        responder.state = unless_failed(responder.state);
        responder.set(new, path, &has);
        self.receive.lock().state = to;
    }

    /// `ibv_query_qp`: all attributes, whatever was asked for, as providers do.
    pub(crate) fn query(&self) -> Found {
        let mut settings = self.attributes().settings;
        // It may have found that the queue pair had failed.
        self.device.fabric.unsettled.settle();
        settings.current_state = settings.state;
        let draining = {
            let send = self.send.lock();
            settings.sq_psn = send.requester.psn;
            send.state == QpState::SQD && send.may_run()
        };
        settings.rq_psn = self.responder.lock().psn;
        Found { settings, draining }
    }
}

impl Requester {
    fn set(&mut self, new: &Settings, path: Option<Path>, has: impl Fn(QpAttributes) -> bool) {
        if path.is_some() {
            self.go(path);
        }
        if has(QpAttributes::DEST_QPN) {
            self.peer_qpn = new.peer_qpn;
        }
        if has(QpAttributes::PATH_MTU) {
            // Code 1 is 256 bytes.
            self.mtu_log2 = 7 + new.path_mtu;
        }
        if has(QpAttributes::SQ_PSN) {
            self.psn = new.sq_psn & LARGEST_24_BITS;
        }
        if has(QpAttributes::TIMEOUT) {
            self.ack_timeout = new.timeout;
        }
        if has(QpAttributes::RETRY_CNT) {
            self.retries = new.retries;
        }
        if has(QpAttributes::RNR_RETRY) {
            self.rnr_retries = new.rnr_retries;
        }
        if has(QpAttributes::MAX_QP_RD_ATOMIC) {
            self.max_rd_atomic = new.max_rd_atomic;
        }
        if has(QpAttributes::QKEY) {
            self.qkey = new.qkey;
        }
    }
}

impl Responder {
    fn set(&mut self, new: &Settings, path: Option<Path>, has: impl Fn(QpAttributes) -> bool) {
        if path.is_some() {
            (self.path, self.verified) = (path, 0);
        }
        if has(QpAttributes::DEST_QPN) {
            (self.peer_qpn, self.verified) = (new.peer_qpn, 0);
        }
        if has(QpAttributes::RQ_PSN) {
            self.psn = new.rq_psn & LARGEST_24_BITS;
        }
        if has(QpAttributes::ACCESS_FLAGS) {
            self.access = new.access;
        }
        if has(QpAttributes::MIN_RNR_TIMER) {
            self.min_rnr_timer = new.min_rnr_timer;
        }
        if has(QpAttributes::MAX_DEST_RD_ATOMIC) {
            self.max_rd_atomic = new.max_dest_rd_atomic;
        }
        if has(QpAttributes::QKEY) {
            self.qkey = new.qkey;
        }
    }
}

fn check_values(
    new: &Settings,
    max_rd_atomic: u8,
    has: impl Fn(QpAttributes) -> bool,
) -> Result<(), Refusal> {
    let access = AccessFlags::LOCAL_WRITE.bits() | probe::FROM_PEERS;
    let bad = has(QpAttributes::PORT) && new.port != 1
        || has(QpAttributes::PKEY_INDEX) && new.pkey_index != 0
        || has(QpAttributes::ACCESS_FLAGS) && new.access & !access != 0
        || has(QpAttributes::PATH_MTU) && !(1..=5).contains(&new.path_mtu)
        || has(QpAttributes::DEST_QPN) && new.peer_qpn > LARGEST_24_BITS
        || has(QpAttributes::TIMEOUT) && new.timeout > 31
        || has(QpAttributes::MIN_RNR_TIMER) && new.min_rnr_timer > 31
        || has(QpAttributes::RETRY_CNT) && new.retries > 7
        || has(QpAttributes::RNR_RETRY) && new.rnr_retries > 7
        || has(QpAttributes::MAX_QP_RD_ATOMIC) && new.max_rd_atomic > max_rd_atomic
        || has(QpAttributes::MAX_DEST_RD_ATOMIC) && new.max_dest_rd_atomic > max_rd_atomic;
    if bad { Err(Refusal::Invalid) } else { Ok(()) }
}

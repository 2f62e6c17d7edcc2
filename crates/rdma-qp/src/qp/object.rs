//! The provider's C object of a queue pair, connected or not.
#![allow(unsafe_code)]

use std::ffi::c_int;

use rdma_mem::{Errno, Handle, ObjectId, ProtectionDomain, VerbError};
use rdma_sys::{ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr};
use rdma_types::{QpAttributes, QpState, QpType, Qpn};

use crate::cq::claim::Claims;
use crate::cq::queue::CompletionQueue;
use crate::error::{Error, modify_hint};
use crate::post::bounds::usual_sge;
use crate::post::operations::Operations;
use crate::post::stand_in::Called;
use crate::qp::capabilities::QueuePairCapabilities;
use crate::qp::datagrams::groups::Groups;
use crate::qp::modify::transition;
use crate::srq::queue::SharedReceiveQueue;

#[derive(Debug)]
pub(crate) struct Object {
    handle: Handle<ibv_qp, Needs>,
    /// The object that requests of the send queue are posted to.
    pub(crate) posted: Called<ibv_qp>,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) capabilities: QueuePairCapabilities,
    /// The result of [`usual_sge`].
    pub(crate) usual_sge: u32,
    pub(crate) operations: Operations,
    pub(crate) id: ObjectId,
}

/// The objects that a queue pair must not outlive.
#[derive(Debug)]
pub(crate) struct Needs {
    /// The claims refer to the shared receive queue by address, so they are released before it, but only after the
    /// queue pair is destroyed.
    pub(crate) _claims: Claims,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) pd: ProtectionDomain,
}

impl Object {
    pub(crate) const fn new(
        handle: Handle<ibv_qp, Needs>,
        posted: Called<ibv_qp>,
        (qpn, id): (Qpn, ObjectId),
        qp_type: QpType,
        capabilities: QueuePairCapabilities,
        operations: Operations,
    ) -> Self {
        let usual_sge = usual_sge(qp_type, operations.are_all(), capabilities.max_send_sge);
        Self { handle, posted, qpn, qp_type, capabilities, usual_sge, operations, id }
    }

    #[inline]
    pub(crate) fn needs(&self) -> &Needs {
        self.handle.needs()
    }

    pub(crate) fn query(
        &self,
        mask: ibv_qp_attr_mask,
    ) -> Result<(ibv_qp_attr, ibv_qp_init_attr), Error> {
        self.handle.check_process().map_err(rdma_mem::Error::from)?;
        let mut attributes = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr::default();
        let (mask, verbs) = (mask.0.cast_signed(), self.needs().pd.verbs());
        // SAFETY: SAFETY.md F1, F2: the queue pair is live and belongs to this table, and the attributes are writable.
        let returned =
            unsafe { (verbs.query_qp)(self.as_raw(), &raw mut attributes, mask, &raw mut init) };
        Errno::check(returned).map_err(|errno| VerbError::new("ibv_query_qp", errno))?;
        Ok((attributes, init))
    }

    pub(crate) fn modify(
        &self,
        attributes: &mut ibv_qp_attr,
        mask: ibv_qp_attr_mask,
        from: QpState,
        to: QpState,
    ) -> Result<(), Error> {
        self.handle.check_process().map_err(rdma_mem::Error::from)?;
        let given = QpAttributes::from_bits_retain(mask.0);
        transition::check(self.qpn, self.qp_type, from, to, given)?;
        let mask: c_int = mask.0.cast_signed();
        // SAFETY: SAFETY.md F1, F2: the queue pair is live and belongs to this table, and the attributes are live.
        let returned =
            unsafe { (self.needs().pd.verbs().modify_qp)(self.as_raw(), attributes, mask) };
        Errno::check(returned).map_err(|errno| {
            let source = VerbError::new("ibv_modify_qp", errno).with_hint(modify_hint(errno));
            Error::Transition { qpn: self.qpn, from, to, source }
        })
    }

    #[allow(clippy::result_large_err)] // it is the queue pair itself
    pub(crate) fn close(self) -> Result<(), (Self, rdma_mem::Error)> {
        let Self { handle, posted, qpn, qp_type, capabilities, operations, id, .. } = self;
        let back = |handle| Self::new(handle, posted, (qpn, id), qp_type, capabilities, operations);
        handle.close().map(drop).map_err(|(handle, error)| (back(handle), error))
    }

    /// Returns an empty set of groups. Once the queue pair has joined a group, the set must be dropped before this
    /// object.
    pub(crate) fn groups(&self) -> Groups {
        // SAFETY: SAFETY.md F6: the queue pair belongs to this domain, and its owner drops the groups first.
        unsafe { Groups::new(self.as_raw(), &self.needs().pd) }
    }

    #[inline]
    pub(crate) const fn as_raw(&self) -> *mut ibv_qp {
        self.handle.as_ptr()
    }
}

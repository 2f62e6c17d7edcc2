//! Operations whose memory nobody watches over, with any of the peers.
#![allow(unsafe_code)]

use rdma_qp::SendWorkRequest;

use super::work_request::PeerRequest;
use super::{
    MultiChannel, PeerAtomicWorkRequest, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerSendWorkRequest, PeerWriteWorkRequest,
};
use crate::core::Room;
use crate::{PendingWork, TransportError};

macro_rules! unpolled {
    ($($(#[$doc:meta])* $name:ident: $request:ident $(=> $(#[$all_doc:meta])* $all:ident)?;)+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// As of [`Channel::send_unpolled`](crate::Channel::send_unpolled); [`TransportError::NoSuchPeer`] if there is
        /// none.
        ///
        /// # Safety
        /// As there.
        #[inline]
        pub unsafe fn $name(
            &self,
            wr: $request<'_, '_>,
        ) -> Result<PendingWork<'_>, TransportError> {
            // SAFETY: SAFETY.md F21: the same contract.
            let ticket = unsafe { wr.post(&self.core, Room::Now) }?;
            Ok(PendingWork::new(ticket))
        }

        $($(#[$all_doc])*
        ///
        /// # Errors
        /// [`TransportError::NoSuchPeer`], or [`TransportError::Closed`], before anything is posted. That of a post: the
        /// requests before it are under way then, without handles, and only [`close`](Self::close) tells that they are
        /// over. One by one they have handles.
        ///
        /// # Safety
        /// As of [`Channel::send_unpolled`](crate::Channel::send_unpolled), for each.
        pub unsafe fn $all<'wr, 'data: 'wr>(
            &self,
            wrs: impl IntoIterator<Item = $request<'wr, 'data>>,
        ) -> Result<Vec<PendingWork<'_>>, TransportError> {
            // SAFETY: SAFETY.md F21: the same contract.
            unsafe { self.each_unpolled(wrs) }
        })?
    )+};
}

impl MultiChannel {
    unpolled! {
        /// Posts a message to a peer.
        send_unpolled: PeerSendWorkRequest
            => /// Posts a message for each request, to its peer.
            scatter_send_unpolled;
        /// Posts a write into memory of a peer.
        write_unpolled: PeerWriteWorkRequest
            => /// Posts a write for each request, into memory of its peer.
            scatter_write_unpolled;
        /// Posts a read of memory of a peer.
        read_unpolled: PeerReadWorkRequest
            => /// Posts a read for each request, of memory of its peer.
            gather_read_unpolled;
        /// Posts room for a message of a peer.
        receive_unpolled: PeerReceiveWorkRequest
            => /// Posts room for a message for each request, of its peer.
            gather_receive_unpolled;
        /// Posts an atomic operation on memory of a peer.
        atomic_unpolled: PeerAtomicWorkRequest;
    }

    /// Posts one message to each of these peers.
    ///
    /// # Errors
    /// As of [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn multicast_send_unpolled(
        &self,
        peers: impl IntoIterator<Item = usize>,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        let wrs = peers.into_iter().map(|peer| PeerSendWorkRequest::from_wr(peer, wr));
        // SAFETY: SAFETY.md F21: the same contract.
        unsafe { self.each_unpolled(wrs) }
    }

    /// # Safety
    /// As of [`scatter_send_unpolled`](Self::scatter_send_unpolled).
    unsafe fn each_unpolled<'data, R: PeerRequest<'data>>(
        &self,
        wrs: impl IntoIterator<Item = R>,
    ) -> Result<Vec<PendingWork<'_>>, TransportError> {
        // SAFETY: SAFETY.md F21: the same contract.
        let post = |wr: R| unsafe { wr.post(&self.core, Room::Now) };
        self.core.gathered(wrs)?.into_iter().map(|wr| post(wr).map(PendingWork::new)).collect()
    }
}

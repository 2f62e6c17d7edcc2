//! Operations whose memory nobody watches over: what the other forms are made of.
#![allow(unsafe_code)]

use rdma_qp::{
    AtomicWorkRequest, ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest,
};

use crate::core::{Only, Room};
use crate::{Channel, Operation, PendingWork, TransportError};

macro_rules! unpolled {
    ($($(#[$doc:meta])* $name:ident: $request:ident => $operation:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// If it was not posted. A full queue is [`TransportError::WouldBlock`] at once. After
        /// [`TransportError::PostError`] with [`posted`](rdma_qp::PostError::posted) it may be with the
        /// device.
        ///
        /// # Safety
        /// As of [`send_unpolled`](Self::send_unpolled).
        #[inline]
        pub unsafe fn $name(
            &self,
            wr: $request<'_, '_>,
        ) -> Result<PendingWork<'_>, TransportError> {
            // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
            let ticket = unsafe { self.core.post_to(Only, Operation::$operation, wr, Room::Now) }?;
            Ok(PendingWork::new(ticket))
        }
    )+};
}

impl Channel {
    /// Posts a message to the peer.
    ///
    /// # Errors
    /// If it was not posted. A full queue is [`TransportError::WouldBlock`] at once. After
    /// [`TransportError::PostError`] with [`posted`](rdma_qp::PostError::posted) it may be with the device.
    ///
    /// # Safety
    /// As of [`QueuePair::post`](rdma_qp::QueuePair::post): the memory is left alone until the request has
    /// completed. That is when its handle says how it ended, or when the channel was closed with success
    /// ([`close`](Self::close)). A handle that is dropped, or runs out of time, says nothing.
    ///
    /// # Examples
    /// ```
    /// use rdma_channel::prelude::*;
    /// use rdma_qp::{ReceiveWorkRequest, SendWorkRequest};
    ///
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// # let channel = pd.create_channel().build()?;
    /// # let endpoint = channel.endpoint();
    /// # let channel = channel.handshake(endpoint)?; // to itself
    /// // SAFETY: requests without memory.
    /// let received = unsafe { channel.receive_unpolled(ReceiveWorkRequest::only_immediate()) }?;
    /// // SAFETY: as above.
    /// let sent = unsafe { channel.send_unpolled(SendWorkRequest::only_immediate(7)) }?;
    /// assert_eq!(received.spin_poll()?.immediate_data(), Some(7));
    /// sent.spin_poll()?;
    /// # Ok::<(), rdma_channel::TransportError>(())
    /// ```
    #[inline]
    pub unsafe fn send_unpolled(
        &self,
        wr: SendWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        let ticket = unsafe { self.core.post_to(Only, Operation::Send, wr, Room::Now) }?;
        Ok(PendingWork::new(ticket))
    }

    unpolled! {
        /// Posts a write into memory of the peer.
        write_unpolled: WriteWorkRequest => Write;
        /// Posts a read of memory of the peer.
        read_unpolled: ReadWorkRequest => Read;
        /// Posts an atomic operation on memory of the peer.
        atomic_unpolled: AtomicWorkRequest => Atomic;
    }

    /// Posts room for a message of the peer.
    ///
    /// # Errors
    /// As of [`send_unpolled`](Self::send_unpolled).
    ///
    /// # Safety
    /// As of [`send_unpolled`](Self::send_unpolled).
    #[inline]
    pub unsafe fn receive_unpolled(
        &self,
        wr: ReceiveWorkRequest<'_, '_>,
    ) -> Result<PendingWork<'_>, TransportError> {
        // SAFETY: SAFETY.md F22: all that `post` asks for is this function's contract, too.
        let ticket = unsafe { self.core.post_receive_from(Only, wr, Room::Now) }?;
        Ok(PendingWork::new(ticket))
    }
}

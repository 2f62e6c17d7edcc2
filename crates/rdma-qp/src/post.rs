//! Posting: handing requests to the device.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use rdma_mem::Errno;
use rdma_sys::{ibv_post_recv, ibv_post_send, ibv_recv_wr, ibv_send_wr};

use crate::post_error::Reason;
use crate::{
    PostError, QueuePair, QueuedReceive, QueuedRequest, ReadWorkRequest, ReceiveWorkRequest,
    SendWorkRequest, WriteWorkRequest,
};

/// # Posting
///
/// All of these are `unsafe` for the same reason: the borrow of a request ends when the call returns,
/// and the device uses the memory until the request has completed. Nothing here allocates, locks or
/// counts. Requests of a queue start in the order in which they were posted, from whatever thread.
impl QueuePair {
    /// Posts a send.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// From a call that succeeds until the request has completed (or the queue pair was destroyed),
    /// the memory of its elements stays allocated and registered, and nobody writes it. The exception
    /// is an inline request, whose data is copied before the call returns. A request has completed
    /// when its own completion was polled; an unsignaled one also when that of a later request of this
    /// send queue was.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_send(
        &self,
        request: SendWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post_one(request.with_id(wr_id)) }
    }

    /// Posts an RDMA write.
    ///
    /// # Errors
    /// See [`PostError`]; elements that are longer than the remote memory are refused here.
    ///
    /// # Safety
    /// As [`post_send`](Self::post_send).
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_write(
        &self,
        request: WriteWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post_one(request.with_id(wr_id)) }
    }

    /// Posts an RDMA read.
    ///
    /// # Errors
    /// See [`PostError`]; elements that are longer than the remote memory are refused here.
    ///
    /// # Safety
    /// As [`post_send`](Self::post_send); and since the device writes the memory of the elements, that
    /// memory is nobody else's until then: no reference to it exists or is made, but for
    /// [shared regions](rdma_mem::SharedRegion), which make none.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_read(
        &self,
        request: ReadWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        // SAFETY: the same contract.
        unsafe { self.post_one(request.with_id(wr_id)) }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// As [`post_read`](Self::post_read).
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive(
        &self,
        request: ReceiveWorkRequest<'_, '_>,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let mut request = request.with_id(wr_id);
        // SAFETY: SAFETY.md F12: one request, which ends the list; the rest is the same contract.
        unsafe { self.post_recv_list(request.as_raw(), |bad| usize::from(bad.is_null())) }
    }

    /// Posts requests of any kind to the send queue, in order, with one call of the provider (one
    /// doorbell).
    ///
    /// # Errors
    /// See [`PostError`]. If one of the requests is refused here, none is posted.
    ///
    /// # Safety
    /// As [`post_send`](Self::post_send) for sends and writes, and as [`post_read`](Self::post_read)
    /// for reads; after a failure this holds for the first [`PostError::posted`] of them.
    ///
    /// # Examples
    /// ```no_run
    /// # use rdma_mem::{OwnedRegion, RemoteMemoryRegion};
    /// # use rdma_qp::{PostError, QueuePair, WriteWorkRequest};
    /// # fn example(qp: &QueuePair, region: &OwnedRegion, remote: RemoteMemoryRegion) -> Option<()> {
    /// let head = [region.get_ref(0, 64)?.gather_element()];
    /// let body = [region.get_ref(64, 4000)?.gather_element()];
    /// let mut batch = [
    ///     WriteWorkRequest::new(&body, remote.sub_region(64)?).signaled(false).with_id(1),
    ///     WriteWorkRequest::new(&head, remote).with_immediate(7).with_id(2),
    /// ];
    /// // SAFETY: the region is left alone until the completion of 2.
    /// unsafe { qp.post_batch(&mut batch) }.ok()?;
    /// # Some(())
    /// # }
    /// ```
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_batch(
        &self,
        requests: &mut [QueuedRequest<'_, '_>],
    ) -> Result<(), PostError> {
        for request in &*requests {
            request.check().map_err(|reason| PostError::new(0, reason))?;
        }
        let (mut next, count) = (null_mut(), requests.len());
        for request in requests.iter_mut().rev() {
            let wr = request.as_raw();
            // SAFETY: SAFETY.md F12: a request of the slice.
            unsafe { (*wr).next = next };
            next = wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let stride = size_of::<QueuedRequest<'_, '_>>();
        let posted = |bad: *mut ibv_send_wr| place(next.addr(), bad.addr(), stride, count);
        // SAFETY: SAFETY.md F12: a list of the whole slice; the rest is the same contract.
        unsafe { self.post_send_list(next, posted) }
    }

    /// Posts receives, in order, with one call of the provider (one doorbell).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// As [`post_receive`](Self::post_receive); after a failure this holds for the first
    /// [`PostError::posted`] of them.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive_batch(
        &self,
        requests: &mut [QueuedReceive<'_, '_>],
    ) -> Result<(), PostError> {
        let (mut next, count) = (null_mut(), requests.len());
        for request in requests.iter_mut().rev() {
            let wr = request.as_raw();
            // SAFETY: SAFETY.md F12: a request of the slice.
            unsafe { (*wr).next = next };
            next = wr;
        }
        if next.is_null() {
            return Ok(());
        }
        let stride = size_of::<QueuedReceive<'_, '_>>();
        let posted = |bad: *mut ibv_recv_wr| place(next.addr(), bad.addr(), stride, count);
        // SAFETY: SAFETY.md F12: a list of the whole slice; the rest is the same contract.
        unsafe { self.post_recv_list(next, posted) }
    }

    /// # Safety
    /// As [`Self::post_send`] or [`Self::post_read`].
    #[inline]
    unsafe fn post_one(&self, request: QueuedRequest<'_, '_>) -> Result<(), PostError> {
        request.check().map_err(|reason| PostError::new(0, reason))?;
        let mut wr = request.into_raw();
        // SAFETY: SAFETY.md F12: one request, which ends the list; the rest is the same contract.
        unsafe { self.post_send_list(&raw mut wr, |bad| usize::from(bad.is_null())) }
    }

    /// Posts a list; `posted` tells from the refused request how many were posted.
    ///
    /// # Safety
    /// The list and its elements are valid during the call; and as [`Self::post_batch`].
    #[inline]
    unsafe fn post_send_list(
        &self,
        list: *mut ibv_send_wr,
        posted: impl FnOnce(*mut ibv_send_wr) -> usize,
    ) -> Result<(), PostError> {
        // A provider that does not set it counts as one that has posted all.
        let mut bad = null_mut();
        // SAFETY: SAFETY.md F1, F12: a live queue pair, and a list by this function's contract.
        let returned = unsafe { ibv_post_send(self.as_raw(), list, &raw mut bad) };
        Errno::check(returned).map_err(|errno| {
            PostError::new(posted(bad), Reason::Verb { verb: "ibv_post_send", errno })
        })
    }

    /// As [`Self::post_send_list`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    unsafe fn post_recv_list(
        &self,
        list: *mut ibv_recv_wr,
        posted: impl FnOnce(*mut ibv_recv_wr) -> usize,
    ) -> Result<(), PostError> {
        let mut bad = null_mut();
        // SAFETY: SAFETY.md F1, F12: a live queue pair, and a list by this function's contract.
        let returned = unsafe { ibv_post_recv(self.as_raw(), list, &raw mut bad) };
        Errno::check(returned).map_err(|errno| {
            PostError::new(posted(bad), Reason::Verb { verb: "ibv_post_recv", errno })
        })
    }
}

/// Which of `count` requests, `stride` bytes apart from `first` on, is at `bad`: so many before it
/// were posted. All of them, if it is none.
#[cold]
fn place(first: usize, bad: usize, stride: usize, count: usize) -> usize {
    let place = bad.checked_sub(first).map(|distance| distance / stride);
    place.filter(|&place| place < count).unwrap_or(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_request_tells_how_many_were_posted() {
        assert_eq!(place(1000, 1000, 100, 3), 0);
        assert_eq!(place(1000, 1200, 100, 3), 2);
        for bad in [0, 900, 1300] {
            assert_eq!(place(1000, bad, 100, 3), 3, "not one of them: all may be posted");
        }
    }
}

//! Calls to the provider that post one request or a list of requests.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_mem::Errno;
use rdma_sys::{ibv_post_recv, ibv_post_send, ibv_recv_wr};

use crate::post::error::{PostError, Reason};
use crate::qp::queue_pair::QueuePair;
use crate::wr::queued::QueuedRequest;
use crate::wr::queued_receive::QueuedReceive;
use crate::wr::request::sealed::Queued;
use crate::wr::send_wr::SendWr;

/// A request that can be a member of a list.
pub(crate) trait Linked {
    type Wr;

    /// Makes `next` the request after this one in the list. Returns this request as a pointer to its C struct.
    fn link(&mut self, next: *mut Self::Wr) -> *mut Self::Wr;
}

impl Linked for QueuedRequest<'_, '_> {
    type Wr = SendWr;

    #[inline]
    fn link(&mut self, next: *mut SendWr) -> *mut SendWr {
        self.wr.next = next;
        &raw mut self.wr
    }
}

impl Linked for QueuedReceive<'_, '_> {
    type Wr = ibv_recv_wr;

    #[inline]
    fn link(&mut self, next: *mut ibv_recv_wr) -> *mut ibv_recv_wr {
        self.wr.next = next;
        &raw mut self.wr
    }
}

/// Posts one request through `call`. The arguments of `call` are the request, and a pointer to which it writes the
/// address of the refused request. After a failure, `refused` creates the error from the result of `call` and the
/// number of posted requests.
#[inline(always)]
pub(crate) fn post_one<W>(
    mut wr: W,
    call: impl FnOnce(*mut W, *mut *mut W) -> c_int,
    refused: impl FnOnce(c_int, usize) -> PostError,
) -> Result<(), PostError> {
    // If a provider does not set this pointer, the request is assumed to be posted.
    let mut bad = null_mut();
    match call(&raw mut wr, &raw mut bad) {
        0 => Ok(()),
        returned => Err(refused(returned, usize::from(bad.is_null()))),
    }
}

/// Like [`post_one`], but for all requests of a slice, linked into a list.
#[inline]
pub(crate) fn post_all<R: Linked>(
    requests: &mut [R],
    call: impl FnOnce(*mut R::Wr, *mut *mut R::Wr) -> c_int,
    refused: impl FnOnce(c_int, usize) -> PostError,
) -> Result<(), PostError> {
    let first = requests.iter_mut().rev().fold(null_mut(), |next, request| request.link(next));
    if first.is_null() {
        return Ok(());
    }
    let mut bad = null_mut();
    match call(first, &raw mut bad) {
        0 => Ok(()),
        returned => {
            let posted = place(first.addr(), bad.addr(), size_of::<R>(), requests.len());
            Err(refused(returned, posted))
        }
    }
}

/// Creates the error for a failed call to this verb.
#[cold]
pub(crate) fn refused(verb: &'static str, returned: c_int, posted: usize) -> PostError {
    let errno = Errno::check(returned).err().unwrap_or(Errno::EIO);
    PostError::new(posted, Reason::Verb { verb, errno })
}

/// Returns the index of the request at `bad`, which is also the number of posted requests. The `count` requests start
/// at `first` and are `stride` bytes apart. If `bad` points to none of them, all count as posted.
#[cold]
fn place(first: usize, bad: usize, stride: usize, count: usize) -> usize {
    let place = bad.checked_sub(first).map(|distance| distance / stride);
    place.filter(|&place| place < count).unwrap_or(count)
}

impl Queued for QueuedRequest<'_, '_> {
    #[inline(always)]
    fn check(&self, qp: &QueuePair) -> Result<(), PostError> {
        self.check(qp)
    }

    #[inline(always)]
    unsafe fn post(self, qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F1, F5, F12: the queue pair is live, and the list ends after one request. The caller
        // upholds the rest of the contract.
        let call = |wr: *mut SendWr, bad: *mut *mut SendWr| unsafe {
            ibv_post_send(qp.posted(), wr.cast(), bad.cast())
        };
        post_one(self.wr, call, |returned, posted| refused("ibv_post_send", returned, posted))
    }

    #[inline]
    unsafe fn post_batch(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F1, F5, F12: the queue pair is live, and the list contains the whole slice. The caller
        // upholds the rest of the contract.
        let call = |list: *mut SendWr, bad: *mut *mut SendWr| unsafe {
            ibv_post_send(qp.posted(), list.cast(), bad.cast())
        };
        post_all(batch, call, |returned, posted| refused("ibv_post_send", returned, posted))
    }
}

impl Queued for QueuedReceive<'_, '_> {
    #[inline(always)]
    fn check(&self, qp: &QueuePair) -> Result<(), PostError> {
        self.check(qp.pd(), qp.limits().max_recv_sge).map_err(|error| explain(error, qp))
    }

    #[inline(always)]
    unsafe fn post(self, qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F1, F12: same argument as above.
        let call = |wr, bad| unsafe { ibv_post_recv(qp.as_raw(), wr, bad) };
        post_one(self.wr, call, |returned, posted| refused_receive(qp, returned, posted))
    }

    #[inline]
    unsafe fn post_batch(batch: &mut [Self], qp: &QueuePair) -> Result<(), PostError> {
        // SAFETY: SAFETY.md F1, F12: same argument as above.
        let call = |list, bad| unsafe { ibv_post_recv(qp.as_raw(), list, bad) };
        post_all(batch, call, |returned, posted| refused_receive(qp, returned, posted))
    }
}

#[cold]
fn refused_receive(qp: &QueuePair, returned: c_int, posted: usize) -> PostError {
    explain(refused("ibv_post_recv", returned, posted), qp)
}

/// Corrects the error when a receive is posted to a queue pair that uses a shared receive queue. Providers report this
/// mistake in unhelpful ways. Some report that the queue pair's own queue is full, because its capacity is 0.
#[cold]
fn explain(error: PostError, qp: &QueuePair) -> PostError {
    match qp.srq() {
        Some(_) => error.because(Reason::SharedReceives),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_request_gives_the_number_of_posted_ones() {
        assert_eq!(place(1000, 1000, 100, 3), 0);
        assert_eq!(place(1000, 1200, 100, 3), 2);
        for bad in [0, 900, 1300] {
            assert_eq!(place(1000, bad, 100, 3), 3, "not one of them: all may be posted");
        }
    }
}

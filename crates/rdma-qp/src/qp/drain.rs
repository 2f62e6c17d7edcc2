//! Ends a connection and polls all of its completions.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use rdma_types::QpType;

use crate::cq::completion::{PollSlot, WorkCompletion};

use crate::cq::queue::CompletionQueue;

use crate::error::Error;

use crate::post::error::{PostError, PostErrorKind};

use crate::qp::queue_pair::QueuePair;

use crate::wr::receive::ReceiveWorkRequest;

use crate::wr::send::SendWorkRequest;

/// The state of the last request that `drain` posts to a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    NotPosted,
    Posted,
    Done,
}

impl QueuePair {
    /// The WR ID of the last request that [`drain`](Self::drain) posts to the send queue.
    pub const LAST_SEND_ID: u64 = u64::MAX;
    /// The WR ID of the last receive that [`drain`](Self::drain) posts.
    pub const LAST_RECEIVE_ID: u64 = u64::MAX - 1;

    /// Ends the connection, like [`to_error`](Self::to_error), and waits until all posted requests have completed.
    /// After this, the device no longer uses the memory of the queue pair's requests.
    ///
    /// Completions that are polled during the call are passed to `each`. They belong to this queue pair (successful or
    /// flushed), or to others that share its completion queues. `drain` posts one request without memory to each queue,
    /// and returns when these two requests have been flushed. Their completions are not passed to `each`. No other
    /// request may use their WR IDs, [`LAST_SEND_ID`](Self::LAST_SEND_ID) and
    /// [`LAST_RECEIVE_ID`](Self::LAST_RECEIVE_ID). No other code may poll the queues during the call, because `drain`
    /// might then wait for a completion that was polled elsewhere.
    ///
    /// With a [shared receive queue](crate::SharedReceiveQueue), unused receives stay in it for the other queue pairs.
    /// Receives that this queue pair has already taken are passed to `each` only if they complete before a poll returns
    /// no completions. The event [`QP_LAST_WQE_REACHED`](rdma_mem::AsyncEventKind::QP_LAST_WQE_REACHED) reports that
    /// the queue pair takes no further receives.
    ///
    /// # Errors
    /// [`Error::DrainTimedOut`] if the time limit expires. The device may then use the memory of the requests until the
    /// queue pair is destroyed. This also happens if the send queue is full of executed unsignaled requests with no
    /// signaled one after them, because no completion frees their slots. [`Error::Poll`] if a completion queue has
    /// failed. [`Error::Post`] if a queue refuses the last request. [`Error::Transition`] if the device refuses the
    /// change to the error state. For UD, also the errors of [`address_handle`](Self::address_handle) for this queue
    /// pair's own endpoint; in that case, nothing has changed.
    ///
    /// # Examples
    /// ```
    /// # use rdma_qp::{CompletionQueue, QueuePair, ReceiveWorkRequest, prelude::*};
    /// # use std::time::Duration;
    /// # rdma_soft::install();
    /// # let context = rdma_mem::open_device("soft0")?;
    /// # let cq = CompletionQueue::create(&context, 64)?;
    /// # let pd = context.allocate_pd()?;
    /// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
    /// # let (one, other) = (prepare()?, prepare()?);
    /// # let other = other.endpoint();
    /// # let qp: QueuePair = one.handshake(other)?;
    /// // SAFETY: no memory.
    /// unsafe { qp.post_receive(ReceiveWorkRequest::only_immediate(), 7) }?;
    /// let mut ids = Vec::new();
    /// qp.drain(Duration::from_secs(5), |completion| ids.push(completion.wr_id()))?;
    /// assert_eq!(ids, [7]);
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ib_drain_qp")]
    pub fn drain(
        &self,
        timeout: Duration,
        mut each: impl FnMut(WorkCompletion),
    ) -> Result<(), Error> {
        let deadline = Instant::now().checked_add(timeout);
        let mut last_send = SendWorkRequest::only_immediate(0);
        if self.qp_type() == QpType::UD {
            // This request is never sent, but a send on a UD queue pair must have a destination.
            last_send = last_send.to(self.own_handle()?, self.qpn(), 0);
        }
        self.to_error()?;
        let of = |capacity| if capacity == 0 { Last::Done } else { Last::NotPosted };
        let sizes = self.capabilities();
        let mut send = of(sizes.max_send_wr);
        // With a shared receive queue, the receives that were taken from it count as completed once completions stop
        // arriving.
        let mut receive = if self.srq().is_some() { Last::Posted } else { of(sizes.max_recv_wr) };
        loop {
            post(&mut send, || {
                // SAFETY: SAFETY.md F6: the request has no memory and is not a bind. For a datagram, its handle is the
                // queue pair's own, which is dropped after the queue pair.
                unsafe { self.post_send(last_send, Self::LAST_SEND_ID) }
            })?;
            post(&mut receive, || {
                let request = ReceiveWorkRequest::only_immediate();
                // SAFETY: SAFETY.md F1: a receive without elements meets every condition of `post`.
                unsafe { self.post_receive(request, Self::LAST_RECEIVE_ID) }
            })?;
            let mut take = |completion: WorkCompletion| match (
                completion.qpn() == self.qpn(),
                completion.wr_id(),
            ) {
                (true, Self::LAST_SEND_ID) => send = Last::Done,
                (true, Self::LAST_RECEIVE_ID) => receive = Last::Done,
                _ => each(completion),
            };
            let mut idle = poll(self.send_cq(), &mut take)?;
            let mut no_receives = idle;
            if !self.recv_cq().is_same(self.send_cq()) {
                no_receives = poll(self.recv_cq(), &mut take)?;
                idle &= no_receives;
            }
            if self.srq().is_some() && no_receives {
                receive = Last::Done;
            }
            if (send, receive) == (Last::Done, Last::Done) {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::DrainTimedOut { qpn: self.qpn(), timeout });
            }
            if idle {
                thread::yield_now();
            }
        }
    }
}

/// Posts the last request if the queue has a free slot.
fn post(last: &mut Last, post: impl FnOnce() -> Result<(), PostError>) -> Result<(), PostError> {
    if *last == Last::NotPosted {
        match post() {
            Ok(()) => *last = Last::Posted,
            Err(error) if error.kind() == PostErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Polls available completions. Returns true if none were available.
fn poll(cq: &CompletionQueue, each: &mut impl FnMut(WorkCompletion)) -> Result<bool, Error> {
    let mut slots = [PollSlot::default(); 16];
    let completions = cq.poll(&mut slots)?;
    let idle = completions.is_empty();
    completions.for_each(each);
    Ok(idle)
}

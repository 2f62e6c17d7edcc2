//! The completion queue capacity that a queue pair may need.

use crate::cq::queue::CompletionQueue;
use crate::error::Error;
use crate::qp::capabilities::QueuePairCapabilities;
use crate::srq::queue::SharedReceiveQueue;

/// The capacity that is reserved in one completion queue for one queue pair. Dropping the claim releases the capacity.
#[derive(Debug)]
pub(crate) struct Claim {
    cq: CompletionQueue,
    own: u32,
    /// The address of the shared receive queue whose receives complete in `cq`, if any.
    srq: Option<usize>,
}

/// The claims of one queue pair: one each for its send and its receive completion queue. If both are the same queue,
/// the second claim is `None`.
pub(crate) type Claims = [Option<Claim>; 2];

/// Reserves the capacity that a queue pair may need in its completion queues. Both may be the same queue.
///
/// # Errors
/// [`Error::CompletionQueueTooSmall`] if `strict` is set and there is not enough capacity. In that case, nothing is
/// reserved.
pub(crate) fn claim(
    (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
    sizes: &QueuePairCapabilities,
    srq: Option<&SharedReceiveQueue>,
    strict: bool,
) -> Result<Claims, Error> {
    let &QueuePairCapabilities { max_send_wr: sends, max_recv_wr, .. } = sizes;
    let receives = if srq.is_some() { 0 } else { max_recv_wr };
    if send_cq.is_same(recv_cq) {
        let both = sends.saturating_add(receives);
        return Ok([Some(Claim::new("send_cq", send_cq, both, srq, strict)?), None]);
    }
    Ok([
        Some(Claim::new("send_cq", send_cq, sends, None, strict)?),
        Some(Claim::new("recv_cq", recv_cq, receives, srq, strict)?),
    ])
}

impl Claim {
    fn new(
        knob: &'static str,
        cq: &CompletionQueue,
        own: u32,
        srq: Option<&SharedReceiveQueue>,
        strict: bool,
    ) -> Result<Self, Error> {
        let capacity = cq.min_capacity();
        let fits = |needed: u64| needed <= u64::from(capacity);
        let address = srq.map(|srq| srq.as_raw().addr());
        let (before, after) = {
            let mut needed = cq.needed().lock();
            let before = needed.total();
            needed.add(own, address.zip(srq.map(SharedReceiveQueue::max_wr)));
            let after = needed.total();
            if strict && !fits(after) {
                needed.remove(own, address);
            }
            (before, after)
        };
        let needed = u32::try_from(after).unwrap_or(u32::MAX);
        if strict && !fits(after) {
            return Err(Error::CompletionQueueTooSmall { knob, capacity, needed });
        }
        if fits(before) && !fits(after) {
            tracing::warn!(
                knob,
                capacity,
                needed,
                "the queue pairs of a completion queue can have more completions than it holds: it \
                 fails if it is not polled in time"
            );
        }
        Ok(Self { cq: cq.clone(), own, srq: address })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.cq.needed().lock().remove(self.own, self.srq);
    }
}

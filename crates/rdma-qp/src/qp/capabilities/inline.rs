//! The inline capacity requested for a queue pair.

use std::iter::successors;

/// The amount of inline data that a builder requests from the device, in bytes.
///
/// Verbs cannot query the device's limit. If a request is above the limit, the device refuses to create the queue pair.
/// The device may also grant more than requested. [`QueuePair::capabilities`](crate::QueuePair::capabilities) returns
/// the granted amount.
///
/// Instead of an `Inline`, a builder accepts a plain number, which means [`Exactly`](Self::Exactly).
///
/// # Examples
/// ```
/// use rdma_qp::{CompletionQueue, Inline, prelude::*};
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let cq = CompletionQueue::create(pd.context(), 64)?;
/// let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq);
/// let ours = builder.clone().max_inline_data(Inline::UpTo(1 << 20)).build()?; // no device has that many
/// # let (here, mut there) = (ours.endpoint(), builder.clone().build()?);
/// let ours = ours.handshake(there.endpoint())?;
/// println!("requests of {} bytes can be inline", ours.capabilities().max_inline_data);
/// assert!(builder.max_inline_data(1 << 20).build().is_err());
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inline {
    /// At least this many bytes. If the device's limit is lower, the queue pair is not created.
    Exactly(u32),
    /// At most this many bytes. If the device does not support that many, the number is halved until the device accepts
    /// it. Halves below 16 are skipped: the last number that is tried is 0.
    UpTo(u32),
}

/// The lower limit for halved numbers.
const LEAST: u32 = 16;

impl Inline {
    /// Returns the number of bytes to request first.
    #[must_use]
    pub const fn wish(self) -> u32 {
        match self {
            Self::Exactly(bytes) | Self::UpTo(bytes) => bytes,
        }
    }

    /// Returns the numbers to request in turn, until the device accepts one.
    pub(in crate::qp) fn tries(self) -> impl Iterator<Item = u32> {
        let (halved, last) = match self {
            Self::Exactly(bytes) => (None, bytes),
            Self::UpTo(bytes) => (Some(bytes), 0),
        };
        let half = |&bytes: &u32| (bytes / 2 >= LEAST).then_some(bytes / 2);
        successors(halved.filter(|&bytes| bytes > 0), half).chain([last])
    }
}

/// Up to 64 bytes, which is the size of a cache line.
impl Default for Inline {
    fn default() -> Self {
        Self::UpTo(64)
    }
}

/// Requests [`Exactly`](Inline::Exactly) that many bytes.
impl From<u32> for Inline {
    fn from(bytes: u32) -> Self {
        Self::Exactly(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_halved_down_to_16_and_then_zero() {
        let tries = |inline: Inline| inline.tries().collect::<Vec<_>>();
        assert_eq!(tries(Inline::default()), [64, 32, 16, 0]);
        assert_eq!(tries(Inline::UpTo(1)), [1, 0]);
        assert_eq!(tries(Inline::UpTo(0)), [0]);
        assert_eq!(tries(Inline::UpTo(200)), [200, 100, 50, 25, 0]);
        assert_eq!(tries(Inline::UpTo(u32::MAX)).len(), 29);
        assert_eq!(tries(Inline::Exactly(64)), [64]);
        assert_eq!(tries(0.into()), [0]);
    }
}

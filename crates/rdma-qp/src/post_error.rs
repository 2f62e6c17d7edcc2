//! Requests that were not posted.

use std::fmt;

use rdma_mem::Errno;

/// Requests that were not posted, or not all.
///
/// Requests are posted in order, so the first [`posted`](Self::posted) of a batch are with the device,
/// which uses their memory until they complete, and the others are not. It holds no memory, so that
/// making one costs nothing.
///
/// ```
/// # use rdma_mem::{AccessFlags, RemoteMemoryRegion};
/// # use rdma_qp::{CompletionQueue, WriteWorkRequest, prelude::*};
/// # rdma_soft::install();
/// # let context = rdma_mem::open_device("soft0")?;
/// # let cq = CompletionQueue::create(&context, 64)?;
/// # let pd = context.allocate_pd()?;
/// # let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).build();
/// # let (one, other) = (prepare()?, prepare()?);
/// # let other = other.endpoint();
/// # let qp = one.handshake(other)?;
/// let region = pd.allocate_region(64)?;
/// let elements = [region.get_ref(0, 64).unwrap().gather_element()];
/// let too_short = RemoteMemoryRegion::new(0x1000, 63, 0x42);
/// // SAFETY: nothing uses the region until the request has completed.
/// let error = unsafe { qp.post_write(WriteWorkRequest::new(&elements, too_short), 1) }.unwrap_err();
/// assert_eq!(error.posted(), 0);
/// assert_eq!(error.to_string(), "64 bytes of elements do not fit into 63 bytes of remote memory");
/// # Ok::<(), rdma_qp::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    posted: usize,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    RemoteTooShort { elements: u64, remote: u64 },
    Verb { verb: &'static str, errno: Errno },
}

/// Why requests were not posted, for programs; [`PostError`] says it for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The elements are longer than the remote memory.
    RemoteTooShort,
    /// The queue is full: take completions first, then post again. Nothing is wrong with the queue
    /// pair.
    WouldBlock,
    /// The provider refused, for another reason.
    Refused,
}

impl PostError {
    #[cold]
    pub(crate) const fn new(posted: usize, reason: Reason) -> Self {
        Self { posted, reason }
    }

    /// How many of the requests are with the device. 1 for a single request means: perhaps. A provider
    /// that does not say which request it refused must be taken to have posted all.
    #[must_use]
    pub const fn posted(&self) -> usize {
        self.posted
    }

    /// Why it was not posted.
    #[must_use]
    pub const fn kind(&self) -> PostErrorKind {
        match self.reason {
            Reason::RemoteTooShort { .. } => PostErrorKind::RemoteTooShort,
            Reason::Verb { errno: Errno::ENOMEM, .. } => PostErrorKind::WouldBlock,
            Reason::Verb { .. } => PostErrorKind::Refused,
        }
    }

    /// The error number, if it was the provider that refused; `None` if the request was refused here.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self.reason {
            Reason::Verb { errno, .. } => Some(errno),
            Reason::RemoteTooShort { .. } => None,
        }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::RemoteTooShort { elements, remote } => write!(
                f,
                "{elements} bytes of elements do not fit into {remote} bytes of remote memory"
            )?,
            Reason::Verb { verb, errno } => {
                write!(f, "{verb}: {errno}")?;
                f.write_str(match errno {
                    Errno::ENOMEM => {
                        ": the queue is full: take completions first (of unsignaled requests those of \
                         a later signaled one), or create it with more work requests"
                    }
                    Errno::EINVAL => {
                        ": more elements or inline bytes than the queue pair has, or a state that \
                         does not take requests (receives from INIT on, others in RTS)"
                    }
                    _ => "",
                })?;
            }
        }
        if self.posted > 0 { write!(f, " ({} posted before it)", self.posted) } else { Ok(()) }
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            Reason::Verb { errno, .. } => Some(errno),
            Reason::RemoteTooShort { .. } => None,
        }
    }
}

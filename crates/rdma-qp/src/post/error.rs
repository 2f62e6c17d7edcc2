//! Errors from posting.

use std::fmt;

use rdma_mem::{BindError, Errno, Mtu, Recovery};
use rdma_types::QpType;

use crate::post::without_niche::WithoutNiche;

/// A failed post: the provider refused a request, or a check did.
///
/// Requests are posted in order. The device may have accepted the first [`posted`](Self::posted) requests of a batch,
/// and then uses their memory until they complete. The others were not posted. The error owns no memory, so creating
/// one is cheap.
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
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PostError {
    posted: usize,
    refused: usize,
    reason: WithoutNiche<Reason>,
}

rdma_types::debug_messages!(struct PostError { posted, refused, reason });

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    RemoteTooShort { elements: u64, remote: u64 },
    TooManyElements { elements: u32, most: u32 },
    TooMuchInline { bytes: u64, most: u32 },
    WrongDomain { element: usize },
    Misaligned { address: u64 },
    AtomicResult,
    Window(BindError),
    SharedReceives,
    NoDestination,
    Destination { qp_type: QpType },
    ForeignHandle,
    LongerThanMtu { bytes: u64, mtu: Mtu },
    Opcode { opcode: &'static str, qp_type: QpType },
    NoAtomics { is_iwarp: bool },
    NoImmediates,
    OneElementPerRead { elements: u32 },
    Verb { verb: &'static str, errno: Errno },
}

/// The kind of a [`PostError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PostErrorKind {
    /// The elements are longer than the remote memory.
    RemoteTooShort,
    /// The request has more elements than the queue pair's `max_send_sge` or `max_recv_sge`, or the shared
    /// receive queue's `max_sge`.
    TooManyElements,
    /// The inline request has more bytes than the queue pair's `max_inline_data`.
    TooMuchInline,
    /// A registered slice in the request is not in the protection domain of the queue pair or the shared receive queue.
    WrongDomain,
    /// The address of the peer's word in an atomic request is not a multiple of 8.
    Misaligned,
    /// The result of an atomic request is not exactly 8 bytes long.
    AtomicResult,
    /// The memory window does not allow the request, for example because of its state, its type or its protection
    /// domain. The error message contains the reason.
    Window,
    /// The queue pair has no receive queue, because it uses a shared one.
    SharedReceives,
    /// A send on a UD queue pair has no destination.
    NoDestination,
    /// The request has a destination, but the queue pair is connected.
    Destination,
    /// The address handle and the queue pair belong to different protection domains.
    ForeignHandle,
    /// A datagram is longer than the MTU.
    LongerThanMtu,
    /// A queue pair of this type does not support the request.
    Opcode,
    /// The device has no atomic operations.
    NoAtomics,
    /// The request has immediate data, and the device speaks iWARP, which has none.
    NoImmediates,
    /// The queue is full: poll completions first, then post again. The queue pair is still usable.
    WouldBlock,
    /// The provider refused for another reason.
    Refused,
}

impl PostError {
    #[cold]
    pub(crate) const fn new(posted: usize, reason: Reason) -> Self {
        Self { posted, refused: posted, reason: WithoutNiche::new(reason) }
    }

    /// Returns the same error with the index of the refused request.
    #[cold]
    pub(crate) const fn at(self, refused: usize) -> Self {
        Self { refused, ..self }
    }

    /// Returns the same error with another reason.
    #[cold]
    pub(crate) const fn because(self, reason: Reason) -> Self {
        Self { reason: WithoutNiche::new(reason), ..self }
    }

    /// Returns the number of requests that the device may have accepted. For a single request, 1 means that the device
    /// may have accepted it. If a provider does not report which request it refused, all requests count as posted.
    #[must_use]
    pub const fn posted(&self) -> usize {
        self.posted
    }

    /// Returns the index of the refused request in the batch. If the provider does not report it, this is the length of
    /// the batch.
    #[must_use]
    pub const fn refused(&self) -> usize {
        self.refused
    }

    /// Returns the kind of the error.
    #[must_use]
    pub const fn kind(&self) -> PostErrorKind {
        match *self.reason.get() {
            Reason::RemoteTooShort { .. } => PostErrorKind::RemoteTooShort,
            Reason::TooManyElements { .. } | Reason::OneElementPerRead { .. } => {
                PostErrorKind::TooManyElements
            }
            Reason::TooMuchInline { .. } => PostErrorKind::TooMuchInline,
            Reason::WrongDomain { .. } => PostErrorKind::WrongDomain,
            Reason::Misaligned { .. } => PostErrorKind::Misaligned,
            Reason::AtomicResult => PostErrorKind::AtomicResult,
            Reason::Window(_) => PostErrorKind::Window,
            Reason::SharedReceives => PostErrorKind::SharedReceives,
            Reason::NoDestination => PostErrorKind::NoDestination,
            Reason::Destination { .. } => PostErrorKind::Destination,
            Reason::ForeignHandle => PostErrorKind::ForeignHandle,
            Reason::LongerThanMtu { .. } => PostErrorKind::LongerThanMtu,
            Reason::Opcode { .. } => PostErrorKind::Opcode,
            Reason::NoAtomics { .. } => PostErrorKind::NoAtomics,
            Reason::NoImmediates => PostErrorKind::NoImmediates,
            Reason::Verb { errno: Errno::ENOMEM, .. } => PostErrorKind::WouldBlock,
            Reason::Verb { .. } => PostErrorKind::Refused,
        }
    }

    /// Returns the error number if the provider refused the request; `None` if a check in this crate did.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match *self.reason.get() {
            Reason::Verb { errno, .. } => Some(errno),
            _ => None,
        }
    }
}

impl PostError {
    /// Returns the action that may help after this error.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        match *self.reason.get() {
            // Either the queue is full, or the provider is out of memory: verbs report both with the same number.
            Reason::Verb { errno: Errno::ENOMEM, .. } => Recovery::Retry,
            Reason::Verb { errno, .. } => Recovery::of_errno(errno),
            _ => Recovery::Programming,
        }
    }
}

impl From<BindError> for PostError {
    fn from(error: BindError) -> Self {
        Self::new(0, Reason::Window(error))
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.refused > self.posted {
            write!(f, "request {} of the batch (none was posted): ", self.refused)?;
        }
        self.reason.get().fmt(f)?;
        if self.posted > 0 { write!(f, " ({} posted before it)", self.posted) } else { Ok(()) }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RemoteTooShort { elements, remote } => write!(
                f,
                "{elements} bytes of elements do not fit into {remote} bytes of remote memory"
            ),
            Self::TooManyElements { elements, most } => write!(
                f,
                "the request has {elements} elements, but the queue takes {most}: send fewer, or \
                 create the queue with more"
            ),
            Self::TooMuchInline { bytes, most } => write!(
                f,
                "the request has {bytes} inline bytes, but the queue pair takes {most}: create it \
                 with a larger `max_inline_data`, or post without `inline`"
            ),
            Self::WrongDomain { element } => write!(
                f,
                "element {element} belongs to a different protection domain from the queue's: \
                 register the memory in the queue's domain"
            ),
            Self::Misaligned { address } => write!(
                f,
                "the remote address {address:#x} of an atomic operation is not a multiple of 8"
            ),
            Self::AtomicResult => {
                f.write_str("the result of an atomic operation needs an element of exactly 8 bytes")
            }
            Self::Window(error) => error.fmt(f),
            Self::SharedReceives => f.write_str(
                "the queue pair takes its receives from a shared receive queue: post them there",
            ),
            Self::NoDestination => {
                f.write_str("a send of a UD queue pair needs a destination: `SendWorkRequest::to`")
            }
            Self::Destination { qp_type } => write!(
                f,
                "this queue pair is {qp_type}, and sends to the peer that it is connected to: \
                 omit `SendWorkRequest::to`"
            ),
            Self::ForeignHandle => f.write_str(
                "the address handle belongs to a different protection domain from the queue \
                 pair's: create one in the queue pair's domain",
            ),
            Self::LongerThanMtu { bytes, mtu } => write!(
                f,
                "a datagram of {bytes} bytes does not fit into the MTU of {mtu}: send several, or \
                 use a connection"
            ),
            Self::NoAtomics { .. }
            | Self::NoImmediates
            | Self::OneElementPerRead { .. }
            | Self::Opcode { .. } => self.fmt_unsupported(f),
            Self::Verb { verb, errno } => {
                write!(f, "{verb}: {errno}")?;
                f.write_str(refusal_hint(errno))
            }
        }
    }
}

impl Reason {
    /// Writes which operation the device or the queue pair does not support.
    fn fmt_unsupported(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoAtomics { is_iwarp } => {
                let which = if is_iwarp { "the device speaks iWARP, which" } else { "the device" };
                write!(
                    f,
                    "{which} has no atomic operations: ask the peer with messages to change its \
                     memory, or use another device"
                )
            }
            Self::NoImmediates => f.write_str(
                "the device speaks iWARP, which has no immediate data: send the value as a message",
            ),
            Self::OneElementPerRead { elements } => write!(
                f,
                "the RDMA read has {elements} elements, but the device speaks iWARP, which reads \
                 into one: post a read for each element"
            ),
            Self::Opcode { opcode, qp_type } => {
                let carried = if qp_type == QpType::UD {
                    "sends"
                } else {
                    "sends, writes, binds and local invalidations"
                };
                write!(
                    f,
                    "{opcode} was requested, but this queue pair is {qp_type}, which supports \
                     only {carried}"
                )
            }
            _ => Ok(()),
        }
    }
}

/// Returns the usual cause of a provider's refusal, as a suffix of an error message.
const fn refusal_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => {
            ": the queue is full: poll completions first (for unsignaled requests, that of a later \
             signaled one), or create it with more work requests"
        }
        Errno::EINVAL => {
            ": the request has more elements or inline bytes than the queue pair allows, or the state \
             does not accept it (receives need INIT or later, other requests need RTS)"
        }
        _ => "",
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.reason.get() {
            Reason::Verb { errno, .. } => Some(errno),
            _ => None,
        }
    }
}

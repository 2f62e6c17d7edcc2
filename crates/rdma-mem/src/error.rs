//! Errors with hints.

pub(crate) mod hint;
pub(crate) mod range;
pub(crate) mod recovery;
pub(crate) mod verb;

use rdma_sys::{UnknownProvider, Unsupported};
use rdma_types::AccessError;

use crate::device::unknown::{ListError, UnknownDevice};
use crate::error::verb::VerbError;
use crate::object::forked::Forked;

/// An error from an operation in this crate.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// No device has this name.
    #[error(transparent)]
    UnknownDevice(#[from] Box<UnknownDevice>),
    /// No RDMA device exists.
    #[error(
        "there is no RDMA device: a NIC needs its driver and rdma-core, SoftRoCE needs `rdma link \
         add`, and the software devices need rdma_soft::install() or the feature `soft` of the \
         crate `rdma`{}",
        errors.iter().map(|error| format!("; {error}")).collect::<String>()
    )]
    NoDevice {
        /// The errors of providers whose devices may be missing from the list.
        errors: Vec<ListError>,
    },
    /// The environment variable `RDMA_PROVIDERS` names an unknown provider.
    #[error(transparent)]
    UnknownProvider(#[from] UnknownProvider),
    /// The object belongs to the process that forked this one.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The provider lacks a function.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Access flags that the verbs forbid.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The device has no memory windows, or none of this type.
    #[error(
        "the device `{device}` has no memory windows of this type: for access that can be \
         revoked, register a region for each grant and close it"
    )]
    NoWindows {
        /// The device's name.
        device: String,
    },
    /// The device has no atomic operations.
    #[error(
        "the device `{device}` has no atomic operations: register the memory without remote \
         atomic access, and let the peer request changes with messages"
    )]
    NoAtomics {
        /// The device's name.
        device: String,
    },
    /// An environment variable has an invalid value.
    #[error("{variable} is `{value}` in the environment: set it to {expected}, or unset it")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// A region of 0 bytes, which devices cannot register.
    #[error("a region of 0 bytes cannot be registered: it needs at least 1")]
    EmptyRegion,
    /// The dma-buf offset and the iova are not at the same offset within a page.
    #[error(
        "offset {offset:#x} of the dma-buf and iova {iova:#x} are not at the same offset within a \
         page of {page} bytes: choose an iova that is {:#x} more than a multiple of the page size", .offset % .page
    )]
    PageOffset {
        /// The offset in the dma-buf at which the registered part starts, in bytes.
        offset: u64,
        /// The requested iova.
        iova: u64,
        /// The size of a page, in bytes.
        page: u64,
    },
    /// The alignment of memory is not a power of two.
    #[error("an alignment of {alignment} is not a power of two: use one such as 64 or 4096")]
    Alignment {
        /// The requested alignment, in bytes.
        alignment: usize,
    },
    /// A pool has no free range that is long enough, and its [limit](crate::BufferPool::set_limit)
    /// allows no further registration.
    #[error(
        "the pool has no {length} contiguous bytes free: it has registered {registered} bytes and \
         may register {limit}; drop buffers, trim the pool, or set a higher limit"
    )]
    PoolLimit {
        /// The requested length, in bytes.
        length: usize,
        /// The number of bytes that the pool has registered.
        registered: usize,
        /// The maximum number of bytes that the pool may register.
        limit: usize,
    },
    /// The memory for a region could not be allocated.
    #[error("no memory for a region of {length} bytes")]
    OutOfMemory {
        /// The requested length, in bytes.
        length: usize,
    },
    /// The object cannot be closed yet, because clones of it, or objects created from it, are
    /// alive.
    #[error("the {what} is still in use: first drop its clones and everything created from it")]
    StillUsed {
        /// The kind of object that was to be closed.
        what: &'static str,
    },
}

rdma_types::debug_messages!(enum Error {
    Verb(it), UnknownDevice(it), NoDevice { errors }, UnknownProvider(it), Forked(it), Unsupported(it), Access(it),
    NoWindows { device }, NoAtomics { device }, Environment { variable, value, expected }, EmptyRegion, PageOffset { offset, iova, page },
    Alignment { alignment }, PoolLimit { length, registered, limit }, OutOfMemory { length },
    StillUsed { what },
});

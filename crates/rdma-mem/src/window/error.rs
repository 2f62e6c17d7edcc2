//! Errors from binding windows.

use rdma_types::AccessFlags;

use crate::error::range::RangeError;

/// An invalid bind, unbind or invalidation, refused before the device sees it; IBTA vol 1, section
/// 10.6.7.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The window is already bound, and a window gives access to one range at a time.
    #[error(
        "the window is bound: invalidate it first (type 1: unbind it), poll the completion, and call \
         `unbound`"
    )]
    StillBound,
    /// The window is not bound, so it cannot be unbound or invalidated.
    #[error("the window is not bound")]
    NotBound,
    /// The range is not within the region.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The range has 0 bytes.
    #[error("a window needs at least 1 byte")]
    Empty,
    /// The region was registered without `MW_BIND`.
    #[error(
        "no window can be bound to the region: register it with `with_mw_bind` (an owned region by \
         `allocate_bindable_region`)"
    )]
    NotBindable,
    /// The access would let peers change memory that this machine's own device may not write.
    #[error("{access} through a window needs a region with local write: add with_local_write()")]
    NoLocalWrite {
        /// The requested rights.
        access: AccessFlags,
    },
    /// The buffer's pool was created with
    /// [`with_read_windows`](crate::BufferPool::with_read_windows).
    #[error(
        "a window cannot give {access}, because the buffer's pool lets peers only read: create the \
         pool with `BufferPool::new`"
    )]
    ReadOnly {
        /// The requested rights that are not allowed.
        access: AccessFlags,
    },
    /// The region, the window and the queue pair are not all in the same protection domain.
    #[error(
        "the window, its region and the queue pair belong to different protection domains: create \
         all three in the same one"
    )]
    WrongDomain,
    /// A right that windows cannot grant.
    #[error(
        "a window cannot give {access}: it can give remote read, remote write and remote atomic, \
         and a window of type 2 can be zero-based"
    )]
    Access {
        /// The requested rights that are not allowed.
        access: AccessFlags,
    },
    /// The addresses of the region start at 0, which windows do not support.
    #[error("the region is zero-based: no window can be bound to it")]
    ZeroBased,
    /// The request is for the other type of window.
    #[error(
        "the window is of type {kind}: `QueuePair::bind` binds both, `BindWindow` and \
         `LocalInvalidate` are for type 2, `QueuePair::unbind` is for type 1"
    )]
    Kind {
        /// The type of the window.
        kind: u8,
    },
}

rdma_types::debug_messages!(enum BindError {
    StillBound, NotBound, Range(it), Empty, NotBindable, NoLocalWrite { access },
    ReadOnly { access }, WrongDomain, Access { access }, ZeroBased, Kind { kind },
});

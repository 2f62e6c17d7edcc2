//! The ownership of objects that came from C.

/// Selects the owner of an object that is passed to `from_raw`: the caller, or the returned value.
///
/// The types of these crates lend their C objects to other libraries with `as_raw`, and wrap
/// objects of other libraries with `from_raw`. The types with `from_raw` are
/// [`Context`](crate::Context::from_raw), [`ProtectionDomain`](crate::ProtectionDomain::from_raw),
/// [`MemoryRegion`](crate::MemoryRegion::from_raw),
/// [`DmabufRegion`](crate::DmabufRegion::from_raw),
/// [`MemoryWindow`](crate::MemoryWindow::from_raw), and several types in `rdma-qp`.
///
/// Regions that own or borrow their memory ([`OwnedRegion`](crate::OwnedRegion),
/// [`SharedRegion`](crate::SharedRegion), [`BorrowedRegion`](crate::BorrowedRegion),
/// [`BufferPool`](crate::BufferPool)) have no `from_raw`. They must allocate the memory themselves
/// or hold a checked borrow of it. For memory that C owns, use a
/// [`MemoryRegion`](crate::MemoryRegion).
///
/// # The contract of every `from_raw`
/// - The object is live. It was created in this process, from the given parents, by their provider.
/// - No other code destroys it before this value and all objects created from it have been dropped.
/// - Any thread may use it: it was created without `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` and without
///   a thread domain, which omit the provider's locks.
/// - [`Owned`](Self::Owned): when the object is destroyed, no other code uses it or has objects
///   created from it.
///
/// If `from_raw` fails, the object is unchanged, and the caller still owns it, even if the
/// requested ownership is [`Owned`](Self::Owned).
///
/// # Wrap each object once
/// These crates treat two values that wrap the same C object as two objects. For example, they
/// would report that a queue pair and a region are in different domains. Therefore, wrap each
/// object only once, and clone the resulting value.
///
/// # Examples
/// ```
/// use std::ptr::NonNull;
/// use rdma_mem::{Ownership, ProtectionDomain};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let verbs = context.verbs();
/// // SAFETY: a live context of this table.
/// let raw = NonNull::new(unsafe { (verbs.alloc_pd)(context.as_raw()) }).unwrap();
///
/// // SAFETY: just allocated from the context, and deallocated below.
/// let pd = unsafe { ProtectionDomain::from_raw(raw, &context, Ownership::Borrowed) };
/// drop(pd.allocate_region(64)?);
/// drop(pd);
/// // SAFETY: the domain is still live, and no object created from it is.
/// assert_eq!(unsafe { (verbs.dealloc_pd)(raw.as_ptr()) }, 0);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums)] // it is one or the other
pub enum Ownership {
    /// Dropping the value destroys the object with its provider's verb, as if it had been created
    /// here.
    Owned,
    /// The caller destroys the object, after dropping the value and all objects created from it.
    /// Dropping or closing the value calls no verb, so it ends neither requests nor a peer's
    /// access. Therefore, a contract that holds until the object is destroyed holds until the
    /// caller destroys the object, not only until the value is dropped.
    ///
    /// The value keeps its parents alive, but releases them when it is dropped. If values of these
    /// crates own the parents, keep those values alive until the object is destroyed.
    Borrowed,
}

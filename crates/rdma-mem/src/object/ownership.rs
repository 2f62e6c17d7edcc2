//! The ownership of objects from C.

/// The ownership of an object that a program passes to `from_raw`.
///
/// An owner lends its C object to other libraries with `as_raw`, and wraps one of theirs with `from_raw`. Such owners are
/// [`Context`](crate::Context::from_raw), [`ProtectionDomain`](crate::ProtectionDomain::from_raw),
/// [`MemoryRegion`](crate::MemoryRegion::from_raw), [`DmabufRegion`](crate::DmabufRegion::from_raw),
/// [`MemoryWindow`](crate::MemoryWindow::from_raw), and several types of `rdma-qp`.
///
/// Regions that own or borrow their memory ([`OwnedRegion`](crate::OwnedRegion), [`SharedRegion`](crate::SharedRegion),
/// [`BorrowedRegion`](crate::BorrowedRegion), [`BufferPool`](crate::BufferPool)) have no `from_raw`: they allocate the
/// memory, or prove that it is borrowed. Use a [`MemoryRegion`](crate::MemoryRegion) for memory of C.
///
/// # The contract of every `from_raw`
/// - The object is live, and was created in this process by the provider of the given parents and from these parents.
/// - No other code destroys it before this value and all objects made from it are dropped.
/// - Any thread may use it: it was created without `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` and without a thread domain,
///   which omit the provider's locks.
/// - [`Owned`](Self::Owned): when it is destroyed, no other code uses it or has objects created
///   from it.
///
/// If `from_raw` fails, the object is unchanged, and the caller owns it in either case.
///
/// # Names
/// Two values of one C object are two objects to these crates. They would report that a queue pair and a region are of
/// different domains. So wrap once, and clone.
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
    /// Dropping the value destroys the object, by its provider's verb, as if the object had been
    /// created here.
    Owned,
    /// The caller destroys the object, after the value and all objects created from it are dropped. Dropping or closing
    /// the value calls no verb, so it ends no request and no access of a peer. A promise that lasts until an object is
    /// destroyed lasts until the caller has destroyed it.
    ///
    /// The value keeps its parents alive, and releases them when it is dropped. Parents that are owned here have to be
    /// kept until the object was destroyed.
    Borrowed,
}

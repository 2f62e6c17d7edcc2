//! Protection domains.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys::{Verbs, ibv_pd};

use crate::device::context::{Context, check_null};
use crate::error::Error;
use crate::object::forked::Forked;
use crate::object::handle::Handle;
use crate::object::ownership::Ownership;

/// A protection domain (PD): queue pairs may use only memory regions in their own domain.
///
/// This rule applies both to a queue pair's own requests and to its peer's requests. Clones are
/// cheap and refer to the same domain. Objects created from a domain keep it alive.
///
/// # Examples
/// ```
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut region = pd.allocate_region(4096)?;
/// region[..5].copy_from_slice(b"hello");
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_pd")]
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<Handle<ibv_pd, Context>>);

impl ProtectionDomain {
    /// Allocates a domain; see `man ibv_alloc_pd`.
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn allocate(context: &Context) -> Result<Self, Error> {
        context.check_process()?;
        let verbs = context.verbs();
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table.
        let raw = check_null("ibv_alloc_pd", unsafe { (verbs.alloc_pd)(context.as_raw()) })?;
        let context = context.clone();
        // SAFETY: SAFETY.md F2, F9: the domain has just been allocated through this table, and the
        // handle keeps its context alive. Objects created from the domain hold a clone of it (F6).
        let handle = unsafe { Handle::new(raw, verbs.dealloc_pd, "ibv_dealloc_pd", context) };
        Ok(Self(Arc::new(handle)))
    }

    /// Wraps a domain that was allocated elsewhere; it may be a parent domain. For an example, see
    /// [`Ownership`].
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The domain belongs to this context.
    #[must_use]
    pub unsafe fn from_raw(raw: NonNull<ibv_pd>, context: &Context, ownership: Ownership) -> Self {
        let (deallocate, verb) = (context.verbs().dealloc_pd, "ibv_dealloc_pd");
        // SAFETY: SAFETY.md F2, F6, F9: by this function's contract; the handle keeps the context
        // alive.
        let handle = unsafe { Handle::from_raw(raw, deallocate, verb, context.clone(), ownership) };
        Self(Arc::new(handle))
    }

    /// Returns the context from which the domain was created.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.0.needs()
    }

    /// Deallocates the domain.
    ///
    /// # Errors
    /// Returns the domain and an error: [`Error::StillUsed`] while a clone of the domain, or an
    /// object created from it, is alive; otherwise the provider's error.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        Handle::close_last(self.0, "protection domain")
            .map_err(|(handle, error)| (Self(handle), error))
    }

    /// Returns true if both values are clones of the same domain.
    #[inline]
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Checks that this process created the object. Call this before you pass
    /// [`as_raw`](Self::as_raw) to a verb outside the data path.
    ///
    /// # Errors
    /// Returns an error in a child that was forked after the object was created.
    #[inline]
    pub fn check_process(&self) -> Result<(), Forked> {
        self.0.check_process()
    }

    /// Returns the functions of the domain's provider.
    #[inline]
    #[must_use]
    pub fn verbs(&self) -> &'static Verbs {
        self.context().verbs()
    }

    /// Returns the C object, which stays alive while `self` or one of its clones exists.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_pd {
        self.0.as_ptr()
    }
}

impl Context {
    /// Allocates a protection domain, like [`ProtectionDomain::allocate`].
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn allocate_pd(&self) -> Result<ProtectionDomain, Error> {
        ProtectionDomain::allocate(self)
    }
}

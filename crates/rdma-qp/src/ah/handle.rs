//! The destinations of datagrams.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use rdma_mem::{Errno, Handle, Ownership, ProtectionDomain, VerbError};
use rdma_sys::{ibv_ah, ibv_ah_attr, ibv_wc};

use crate::ah::global_route_header::GlobalRouteHeader;
use crate::ah::vector::AddressVector;
use crate::error::{Error, address_hint};

/// An address handle: a route to another port, stored in the device.
/// [`SendWorkRequest::to`](crate::SendWorkRequest::to) uses it as the destination of a datagram.
///
/// A handle belongs to a protection domain and keeps the domain alive. Queue pairs of the same domain can use it, even
/// from several threads at a time. Dropping the handle destroys it. The contract of posting requires that all sends
/// that name the handle have completed by then.
///
/// # Examples
/// A handle can be created from [a peer's endpoint](crate::QueuePair::address_handle), from [a
/// received datagram](Self::from_completion), or from parts:
/// ```
/// use rdma_qp::{AddressHandle, AddressVector, GlobalRoute};
///
/// rdma_soft::install();
/// let context = rdma_mem::open_device("soft0")?;
/// let pd = context.allocate_pd()?;
/// let own = context.gid_table()?[0];
/// let route = GlobalRoute::new(own.index.try_into()?, own.gid);
/// let vector = AddressVector::new(own.port, rdma_types::Lid::NONE).with_route(route);
/// let to_myself = AddressHandle::create(&pd, &vector)?;
/// # to_myself.close().map_err(|(_, error)| error)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_ah")]
#[derive(Debug)]
pub struct AddressHandle(Handle<ibv_ah, ProtectionDomain>);

impl AddressHandle {
    /// Creates an address handle; see `man ibv_create_ah`.
    ///
    /// # Errors
    /// Returns the provider's error, for example if the port or the GID does not exist, or if too many handles exist.
    #[doc(alias = "ibv_create_ah")]
    pub fn create(pd: &ProtectionDomain, vector: &AddressVector) -> Result<Self, Error> {
        Self::create_raw(pd, vector.to_raw())
    }

    /// Creates a handle for sending from `port` to the sender that the completion `wc` names. The caller needs to set
    /// only the source, the service level, the path bits and the header flag of `wc`.
    ///
    /// # Errors
    /// Returns the provider's error.
    pub(crate) fn to_sender(
        pd: &ProtectionDomain,
        port: u8,
        mut wc: ibv_wc,
        header: &GlobalRouteHeader,
    ) -> Result<Self, Error> {
        pd.context().check_process().map_err(rdma_mem::Error::from)?;
        let (mut grh, mut attributes) = (header.to_raw(), ibv_ah_attr::default());
        let context = pd.context().as_raw();
        let (wc, grh) = (&raw mut wc, &raw mut grh);
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table. The completion, the header and the
        // memory for the result are live.
        let returned =
            unsafe { (pd.verbs().init_ah_from_wc)(context, port, wc, grh, &raw mut attributes) };
        Errno::check(returned).map_err(|errno| {
            VerbError::new("ibv_init_ah_from_wc", errno).with_hint(address_hint(errno))
        })?;
        Self::create_raw(pd, attributes)
    }

    fn create_raw(pd: &ProtectionDomain, mut attributes: ibv_ah_attr) -> Result<Self, Error> {
        pd.context().check_process().map_err(rdma_mem::Error::from)?;
        let verbs = pd.verbs();
        // SAFETY: SAFETY.md F1, F2: the domain is live and belongs to this table, and the attributes are live.
        let raw = unsafe { (verbs.create_ah)(pd.as_raw(), &raw mut attributes) };
        let raw = Errno::check_null(raw).map_err(|errno| {
            VerbError::new("ibv_create_ah", errno).with_hint(address_hint(errno))
        })?;
        // SAFETY: SAFETY.md F2, F9: the handle was just created by this table, in this domain, and is not used
        // elsewhere.
        Ok(unsafe { Self::from_raw(raw, pd, Ownership::Owned) })
    }

    /// Wraps a handle that was created elsewhere.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The handle belongs to this domain.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::Ownership;
    /// use rdma_qp::AddressHandle;
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("softib0")?.allocate_pd()?;
    /// let mut to = rdma_sys::ibv_ah_attr { dlid: 7, port_num: 1, ..Default::default() };
    /// // SAFETY: a live domain of this table.
    /// let raw = unsafe { (pd.verbs().create_ah)(pd.as_raw(), &raw mut to) };
    /// let raw = NonNull::new(raw).unwrap();
    /// // SAFETY: just created in the domain, and not destroyed elsewhere.
    /// let handle = unsafe { AddressHandle::from_raw(raw, &pd, Ownership::Owned) };
    /// assert!(handle.pd().is_same(&pd));
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[must_use]
    pub unsafe fn from_raw(
        raw: NonNull<ibv_ah>,
        pd: &ProtectionDomain,
        ownership: Ownership,
    ) -> Self {
        let (destroy, verb) = (pd.verbs().destroy_ah, "ibv_destroy_ah");
        // SAFETY: SAFETY.md F2, F9: by this function's contract. The returned value keeps the domain alive (F6). By the
        // contract of posting, the requests that name the address handle have completed before it is destroyed.
        Self(unsafe { Handle::from_raw(raw, destroy, verb, pd.clone(), ownership) })
    }

    /// Returns the protection domain that the handle belongs to.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.needs()
    }

    /// Destroys the handle.
    ///
    /// # Errors
    /// Returns the handle and the provider's error.
    #[doc(alias = "ibv_destroy_ah")]
    pub fn close(self) -> Result<(), (Self, Error)> {
        self.0.close().map(drop).map_err(|(handle, error)| (Self(handle), error.into()))
    }

    /// Returns the C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub const fn as_raw(&self) -> *mut ibv_ah {
        self.0.as_ptr()
    }
}

//! Memory windows.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use rdma_sys::{Errno, ibv_alloc_mw, ibv_inc_rkey, ibv_mw, ibv_mw_bind_info, ibv_mw_type};
use rdma_types::{AccessFlags, Rkey};

use crate::device::context::Context;
use crate::device::protection_domain::ProtectionDomain;
use crate::error::Error;
use crate::error::range;
use crate::error::verb::VerbError;
use crate::object::forked::Forked;
use crate::object::handle::Handle;
use crate::object::ownership::Ownership;
use crate::remote::RemoteMemoryRegion;
use crate::window::bindable::{BindableRegion, Target};
use crate::window::error::BindError;

/// The type of a window.
#[doc(alias = "ibv_mw_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WindowType {
    /// A type 1 window: peers can use it through every queue pair in its domain. It is bound and
    /// unbound with calls (`ibv_bind_mw`).
    One,
    /// A type 2 window: a peer can use it only through the queue pair that bound it (type 2B). Work
    /// requests bind and invalidate it, and the peer can invalidate it with a send.
    Two,
}

/// A memory window (MW): a key through which peers use a part of a region until the window is
/// invalidated.
///
/// Registering memory is slow, but binding a window is only a work request. Therefore the memory is
/// registered once, with [`with_mw_bind`](AccessFlags::with_mw_bind) and without any right for
/// peers. Each grant is then a window with its own range, rights and key. Windows are bound with
/// the queue pairs of `rdma-qp`.
///
/// # Ownership of the memory
///
/// The window holds its region `R`, by value or through a pointer that keeps it alive (see
/// [`BindableRegion`]). On drop, the window is deallocated first, and then the region is released.
/// An [`OwnedRegion`](crate::OwnedRegion) or a [`Buffer`](crate::Buffer) is inaccessible while the
/// window is bound, and accessible through [`region_mut`](Self::region_mut) afterwards.
///
/// # End of access
///
/// A peer certainly has no access once you have polled a successful completion of an invalidation.
/// This is a completion of `LocalInvalidate`, of a receive that reports this [key](Self::rkey) as
/// invalidated, or, for type 1, of `QueuePair::unbind`. The window does not see completions, so the
/// caller has to [report the end of access](Self::unbound) to it. [`close`](Self::close) needs no
/// completion: when it returns, the peer has no access.
///
/// # Examples
/// ```
/// use rdma_mem::{AccessFlags, MemoryWindow, WindowType};
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let access = AccessFlags::new().with_local_write().with_mw_bind();
/// let region = pd.allocate_shared_region(4096, access)?;
/// let window = MemoryWindow::allocate(&region, WindowType::Two).map_err(|(_, error)| error)?;
/// assert_eq!(window.remote(), None, "a queue pair binds it");
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow<R: BindableRegion> {
    handle: Handle<ibv_mw, (R, ProtectionDomain)>,
    kind: WindowType,
    /// The key from the window's last bind; before the first bind, the key from its allocation.
    key: u32,
    /// `Some` from the time a bind request is prepared until the window is reported as unbound.
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    address: u64,
    length: usize,
    /// The window's key before this bind.
    key_before: u32,
}

/// A bind or unbind request in C's form, which `rdma-qp` posts.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PreparedBind {
    /// The window.
    pub mw: *mut ibv_mw,
    /// The key to bind a type 2 window with.
    pub rkey: Rkey,
    /// The memory that the window is bound to, and the rights that the window grants.
    pub info: ibv_mw_bind_info,
}

// SAFETY: SAFETY.md F12: it is plain data; code that uses the pointers has its own safety argument.
unsafe impl Send for PreparedBind {}
// SAFETY: SAFETY.md F12: `&self` gives no way to use the pointers.
unsafe impl Sync for PreparedBind {}

impl<R: BindableRegion> MemoryWindow<R> {
    /// Allocates an unbound window for this region; see `man ibv_alloc_mw`.
    ///
    /// # Errors
    /// Returns the region and an error: [`Error::NoWindows`] if the device has no windows of this
    /// type, otherwise the verb's error.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn allocate(region: R, kind: WindowType) -> Result<Self, (R, Error)> {
        let pd = region.target().pd.clone();
        if let Err(forked) = pd.check_process() {
            return Err((region, forked.into()));
        }
        let type_ = match kind {
            WindowType::One => ibv_mw_type::IBV_MW_TYPE_1,
            WindowType::Two => ibv_mw_type::IBV_MW_TYPE_2,
        };
        // SAFETY: SAFETY.md F1: the domain is live.
        let raw = match Errno::check_null(unsafe { ibv_alloc_mw(pd.as_raw(), type_) }) {
            Ok(raw) => raw,
            Err(errno) if lacks_windows(pd.context(), errno) => {
                let device = pd.context().device().name().to_owned();
                return Err((region, Error::NoWindows { device }));
            }
            Err(errno) => {
                let error = VerbError::new("ibv_alloc_mw", errno);
                return Err((region, error.with_hint(crate::error::hint::create(errno)).into()));
            }
        };
        // SAFETY: SAFETY.md F6, F9: the window was just allocated with this type and domain, so it
        // is not bound and no other code has it.
        Ok(unsafe { Self::of(raw, (region, pd), kind, Ownership::Owned) })
    }

    /// Wraps an unbound window that was allocated elsewhere, for use with this region.
    ///
    /// # Safety
    /// The caller upholds the contract of [`Ownership`]. The window is in the region's domain, is
    /// not bound, and is bound only through this value. A [borrowed](Ownership::Borrowed) window is
    /// unbound again before it is dropped or closed, because neither of these ends a peer's access.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use rdma_mem::{MemoryWindow, Ownership, WindowType};
    ///
    /// rdma_soft::install();
    /// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let region = pd.allocate_bindable_region(4096)?;
    /// let kind = rdma_sys::ibv_mw_type::IBV_MW_TYPE_2;
    /// // SAFETY: a live domain.
    /// let raw = NonNull::new(unsafe { rdma_sys::ibv_alloc_mw(pd.as_raw(), kind) }).unwrap();
    /// // SAFETY: just allocated in the region's domain.
    /// let window = unsafe { MemoryWindow::from_raw(raw, region, Ownership::Owned) };
    /// assert_eq!((window.kind(), window.is_bound()), (WindowType::Two, false));
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[must_use]
    pub unsafe fn from_raw(raw: NonNull<ibv_mw>, region: R, ownership: Ownership) -> Self {
        let pd = region.target().pd.clone();
        // SAFETY: SAFETY.md F1: the window is live, and its type never changes.
        let kind = match unsafe { (*raw.as_ptr()).type_ } {
            ibv_mw_type::IBV_MW_TYPE_1 => WindowType::One,
            _ => WindowType::Two,
        };
        // SAFETY: SAFETY.md F6, F9: by this function's contract.
        unsafe { Self::of(raw, (region, pd), kind, ownership) }
    }

    /// # Safety
    /// The contract of [`from_raw`](Self::from_raw) applies. The window has this type.
    unsafe fn of(
        raw: NonNull<ibv_mw>,
        needs: (R, ProtectionDomain),
        kind: WindowType,
        ownership: Ownership,
    ) -> Self {
        // SAFETY: SAFETY.md F1: the window is live and is not being bound.
        let key = unsafe { (*raw.as_ptr()).rkey };
        let verb = "ibv_dealloc_mw";
        // SAFETY: SAFETY.md F3, F6, F9: by this function's contract; `needs` keeps alive the
        // window's domain, and its region while it is bound. `dealloc` calls the provider's own
        // function.
        let handle = unsafe { Handle::from_raw(raw, dealloc, verb, needs, ownership) };
        Self { handle, kind, key, bound: None }
    }

    /// Returns the type of the window.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the protection domain of the window.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.handle.needs().1
    }

    /// Returns true if a peer may have access: from the time a bind request is prepared until
    /// [`unbound`](Self::unbound) or [`never_bound`](Self::never_bound) is called.
    #[inline]
    #[must_use]
    pub const fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// Returns the key for the peer, while the window [is bound](Self::is_bound). The device
    /// chooses the upper 24 bits, which never change. The low 8 bits are incremented with each
    /// bind, so an old key is invalid.
    #[inline]
    #[must_use]
    pub fn rkey(&self) -> Option<Rkey> {
        self.bound.map(|_| Rkey::new(self.key))
    }

    /// Returns a description of the memory that the window opens to the peer, for sending to that
    /// peer; `None` unless the window [is bound](Self::is_bound).
    ///
    /// Until the bind completes, send this only in a message that is posted after the bind, on the
    /// same queue pair.
    #[must_use]
    pub fn remote(&self) -> Option<RemoteMemoryRegion> {
        let Bound { address, length, .. } = self.bound?;
        Some(RemoteMemoryRegion::new(address, length, self.key))
    }

    /// Returns the window's region, for access to its bytes; `None` while the window [is
    /// bound](Self::is_bound).
    #[must_use]
    pub fn region(&self) -> Option<&R> {
        self.bound.is_none().then(|| &self.handle.needs().0)
    }

    /// Returns exclusive access to the window's region; `None` while the window [is
    /// bound](Self::is_bound). The caller may replace the region with another one in the same
    /// domain.
    #[must_use]
    pub fn region_mut(&mut self) -> Option<&mut R> {
        match self.bound {
            None => Some(&mut self.handle.needs_mut().0),
            Some(_) => None,
        }
    }

    /// Reports to the window that peers no longer have access.
    ///
    /// # Safety
    /// No peer has access or will get access again: no request that binds the window is still to be
    /// executed. One of these completions was polled:
    ///
    /// - the failed completion of the bind;
    /// - for type 2, the successful completion of a local invalidation, or of a receive that
    ///   reports this [key](Self::rkey) as invalidated;
    /// - for type 1, the successful completion of the unbind. The unbind must not have overtaken
    ///   the bind: it was posted to the same queue pair, or after the completion of the bind was
    ///   polled.
    ///
    /// Resetting or destroying the queue pair is not enough: some devices keep the window bound for
    /// the next queue pair with that QPN. [`close`](Self::close) the window in that case.
    pub const unsafe fn unbound(&mut self) {
        self.bound = None;
    }

    /// Reports to the window that the bind request was never posted, or that posting it failed.
    /// This restores the key that the window had before the request.
    ///
    /// # Safety
    /// The request was never posted, or posting it failed.
    pub unsafe fn never_bound(&mut self) {
        if let Some(Bound { key_before, .. }) = self.bound.take() {
            self.key = key_before;
        }
    }

    /// Prepares a request that binds `range` of the window's region, in bytes from the region's
    /// beginning, with these rights for peers. From now on, the window counts as bound. `rdma-qp`
    /// calls this.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the request is invalid.
    pub fn prepare_bind(
        &mut self,
        range: Range<usize>,
        access: AccessFlags,
    ) -> Result<PreparedBind, BindError> {
        let (region, _) = self.handle.needs();
        let target = region.target();
        if self.bound.is_some() {
            return Err(BindError::StillBound);
        }
        if !target.pd.is_same(self.pd()) {
            return Err(BindError::WrongDomain);
        }
        check(&target, &range, access, self.kind)?;
        let (mr, first) = (target.mr, target.address.wrapping_add(range.start as u64));
        let zero_based = access.contains(AccessFlags::ZERO_BASED);
        let address = if zero_based { 0 } else { first };
        self.bound = Some(Bound { address, length: range.len(), key_before: self.key });
        let mw = self.as_raw();
        if self.kind == WindowType::Two {
            // Some providers compare the key in this field with the key of the last bind.
            // SAFETY: SAFETY.md F1: the handle keeps the window alive, and `&mut self` is exclusive.
            unsafe { (*mw).rkey = self.key };
            self.key = ibv_inc_rkey(self.key);
        }
        let length = range.len() as u64;
        let info = ibv_mw_bind_info { mr, addr: first, length, mw_access_flags: access.bits() };
        Ok(PreparedBind { mw, rkey: Rkey::new(self.key), info })
    }

    /// Reads the key that `ibv_bind_mw` has stored in a type 1 window. `rdma-qp` calls this.
    pub fn bind_posted(&mut self) {
        // SAFETY: SAFETY.md F1: the handle keeps the window alive, and `&mut self` is exclusive.
        self.key = unsafe { (*self.as_raw()).rkey };
    }

    /// Prepares a request that unbinds a type 1 window. `rdma-qp` calls this.
    ///
    /// # Errors
    /// Returns an error if the window is not bound, or is of type 2.
    pub fn prepare_unbind(&mut self) -> Result<PreparedBind, BindError> {
        if self.kind != WindowType::One {
            return Err(BindError::Kind { kind: 2 });
        }
        if self.bound.is_none() {
            return Err(BindError::NotBound);
        }
        let target = self.handle.needs().0.target();
        // The request names a region although it binds nothing, because some providers read the
        // region's key.
        let info =
            ibv_mw_bind_info { mr: target.mr, addr: target.address, length: 0, mw_access_flags: 0 };
        Ok(PreparedBind { mw: self.as_raw(), rkey: Rkey::new(self.key), info })
    }

    /// Deallocates the window, whether or not it is bound, and returns its region. No peer has
    /// access afterwards.
    ///
    /// # Errors
    /// Returns the window and the provider's error.
    #[doc(alias = "ibv_dealloc_mw")]
    #[allow(clippy::result_large_err)] // it is the window itself
    pub fn close(self) -> Result<R, (Self, Error)> {
        let Self { handle, kind, key, bound } = self;
        match handle.close() {
            Ok((region, _)) => Ok(region),
            Err((handle, error)) => Err((Self { handle, kind, key, bound }, error)),
        }
    }

    /// Checks that this process created the object.
    ///
    /// # Errors
    /// Returns an error in a child that was forked after the object was created.
    pub fn check_process(&self) -> Result<(), Forked> {
        self.handle.check_process()
    }

    /// Returns the C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub const fn as_raw(&self) -> *mut ibv_mw {
        self.handle.as_ptr()
    }
}

/// Returns true if allocating a window failed because the device has no windows, or none of this
/// type. Some providers return `EINVAL` in that case, so `max_mw` is checked too.
fn lacks_windows(context: &Context, errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::ENOSYS)
        || context.query_device().is_ok_and(|device| device.max_mw == 0)
}

fn check(
    target: &Target<'_>,
    range: &Range<usize>,
    access: AccessFlags,
    kind: WindowType,
) -> Result<(), BindError> {
    let Range { start, end } = *range;
    let length = end.saturating_sub(start);
    range::check(start, length, target.length)?;
    if length == 0 {
        return Err(BindError::Empty);
    }
    let changes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let rights = changes | AccessFlags::REMOTE_READ;
    let known = if kind == WindowType::Two { rights | AccessFlags::ZERO_BASED } else { rights };
    if !known.contains(access) {
        return Err(BindError::Access { access: access.difference(known) });
    }
    if !target.access.contains(AccessFlags::MW_BIND) {
        return Err(BindError::NotBindable);
    }
    if access.intersects(changes) && target.is_read_only {
        return Err(BindError::ReadOnly { access: access & changes });
    }
    if access.intersects(changes) && !target.access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(BindError::NoLocalWrite { access: access & changes });
    }
    if target.access.contains(AccessFlags::ZERO_BASED) {
        return Err(BindError::ZeroBased);
    }
    Ok(())
}

/// C's inline function `ibv_dealloc_mw`, as a function that has an address.
unsafe extern "C" fn dealloc(mw: *mut ibv_mw) -> std::ffi::c_int {
    // SAFETY: SAFETY.md F1: by the contract of the handle, which calls this once.
    unsafe { rdma_sys::ibv_dealloc_mw(mw) }
}

impl<R: BindableRegion> fmt::Debug for MemoryWindow<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("kind", &self.kind)
            .field("bound", &self.remote())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the software device copies in assembly")]
    fn a_device_that_may_have_no_windows_has_none_whatever_its_provider_returns() {
        rdma_soft::Builder::new("no-windows-here")
            .limits(rdma_soft::Limits::default().max_mw(0))
            .install()
            .unwrap();
        rdma_soft::install();
        let lacks = |name: &str, errno| {
            lacks_windows(&crate::device::list::open_device(name).unwrap(), errno)
        };
        assert!(lacks("no-windows-here", Errno::EINVAL));
        assert!(!lacks("soft0", Errno::EINVAL) && lacks("soft0", Errno::EOPNOTSUPP));
    }
}

//! One `ibv_mr`, with the memory that must outlive it.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use rdma_sys::{Errno, ibv_mr};
use rdma_types::{AccessFlags, Lkey, Rkey};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::piece::Piece;
use crate::error::Error;
use crate::error::verb::VerbError;
use crate::object::forked::Forked;
use crate::object::handle::Handle;
use crate::object::ownership::Ownership;
use crate::region::hint;
use crate::region::memory::RegionMemory;
use crate::remote::RemoteMemoryRegion;

/// A registration of memory. `M` owns or borrows the memory, and is dropped only after a successful
/// deregistration.
pub(crate) struct Registration<M> {
    handle: Handle<ibv_mr, (M, ProtectionDomain)>,
    base: NonNull<u8>,
    length: usize,
    /// The address of the region's first byte in requests.
    iova: u64,
    lkey: Lkey,
    rkey: Rkey,
    access: AccessFlags,
}

// SAFETY: SAFETY.md F16: `base` is an address in this process; code that accesses memory through it
// has its own safety argument.
unsafe impl<M: Send> Send for Registration<M> {}
// SAFETY: SAFETY.md F16: same argument as above, and a registration does not change.
unsafe impl<M: Sync> Sync for Registration<M> {}

impl<M> Registration<M> {
    /// Registers `length` bytes at `base`, and exposes their provenance (SAFETY.md F7).
    ///
    /// # Safety
    /// The memory stays mapped while it is registered; dropping `memory` may unmap it. The rkey is
    /// given only to peers that may use the memory as `access` allows.
    pub(crate) unsafe fn new(
        pd: &ProtectionDomain,
        base: NonNull<u8>,
        length: usize,
        access: AccessFlags,
        memory: M,
    ) -> Result<Self, (M, Error)> {
        if length == 0 {
            return Err((memory, Error::EmptyRegion));
        }
        if let Err(error) = access.check() {
            return Err((memory, error.into()));
        }
        if let Err(forked) = pd.check_process() {
            return Err((memory, forked.into()));
        }
        if let Err(error) = pd.context().check_atomics(access) {
            return Err((memory, error));
        }
        base.as_ptr().expose_provenance();
        let verbs = pd.verbs();
        let start = base.as_ptr().cast();
        // SAFETY: SAFETY.md F8: the domain is live and belongs to this table, and this function's
        // contract covers the memory.
        let raw = unsafe { rdma_sys::ibv_reg_mr(verbs, pd.as_raw(), start, length, access.bits()) };
        let raw = match Errno::check_null(raw) {
            Ok(raw) => raw,
            Err(errno) => {
                let hint = hint::register(pd.context(), errno, length);
                return Err((memory, VerbError::new("ibv_reg_mr", errno).with_hint(hint).into()));
            }
        };
        // SAFETY: SAFETY.md F2, F8, F9: the region has just been registered through this table, in
        // this domain and with these arguments, so no other code has it. This function's contract
        // covers the memory.
        Ok(unsafe { Self::from_raw(pd, raw, base, length, access, memory, Ownership::Owned) })
    }

    /// Like [`new`](Self::new), but also informs the provider that the memory stays mapped.
    ///
    /// # Safety
    /// The contract of [`new`](Self::new) applies, with one more condition. Whenever a request or a
    /// peer can use the memory through one of the region's keys, the memory is mapped, readable and
    /// writable.
    pub(crate) unsafe fn mapped(
        pd: &ProtectionDomain,
        base: NonNull<u8>,
        length: usize,
        access: AccessFlags,
        memory: M,
    ) -> Result<Self, (M, Error)> {
        // SAFETY: SAFETY.md F8: the caller upholds the same contract.
        let registration = unsafe { Self::new(pd, base, length, access, memory) }?;
        // SAFETY: SAFETY.md F2, F29: the region has just been registered through this table, and
        // no other code knows its keys. This function's contract covers the memory.
        unsafe { pd.verbs().note_mapped(registration.as_raw()) };
        Ok(registration)
    }

    /// Wraps a registered region.
    ///
    /// # Safety
    /// The contracts of [`Handle::from_raw`] and [`new`](Self::new) apply. `raw` was registered in
    /// this domain with the other arguments.
    pub(crate) unsafe fn from_raw(
        pd: &ProtectionDomain,
        raw: NonNull<ibv_mr>,
        base: NonNull<u8>,
        length: usize,
        access: AccessFlags,
        memory: M,
        ownership: Ownership,
    ) -> Self {
        let (deregister, verb) = (pd.verbs().dereg_mr, "ibv_dereg_mr");
        let needs = (memory, pd.clone());
        // SAFETY: SAFETY.md F2, F8, F9: by this function's contract; `needs` keeps memory and
        // domain alive. When the handle is dropped, no code of this crate uses the region, because
        // such code borrows it. By the contract of posting, all requests that name its memory have
        // completed.
        let handle = unsafe { Handle::from_raw(raw, deregister, verb, needs, ownership) };
        // SAFETY: SAFETY.md F1: the region is live, and its keys never change.
        let mr = unsafe { raw.read() };
        let zero_based = access.contains(AccessFlags::ZERO_BASED);
        let iova = if zero_based { 0 } else { base.as_ptr().expose_provenance() as u64 };
        let (lkey, rkey) = (Lkey::new(mr.lkey), Rkey::new(mr.rkey));
        Self { handle, base, length, iova, lkey, rkey, access }
    }

    /// Deregisters the region and returns the owner of the memory.
    #[allow(clippy::result_large_err)] // it is the registration itself
    pub(crate) fn close(self) -> Result<M, (Self, Error)> {
        let Self { handle, base, length, iova, lkey, rkey, access } = self;
        match handle.close() {
            Ok((memory, _)) => Ok(memory),
            Err((handle, error)) => {
                Err((Self { handle, base, length, iova, lkey, rkey, access }, error))
            }
        }
    }

    /// Checks that this process created the region, like [`Handle::check_process`].
    pub(crate) fn check_process(&self) -> Result<(), Forked> {
        self.handle.check_process()
    }

    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    pub(crate) const fn length(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) fn lkey(&self) -> Lkey {
        self.lkey
    }

    #[inline]
    pub(crate) fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns the access that the region was registered with.
    pub(crate) fn access(&self) -> AccessFlags {
        self.access
    }

    /// Returns the region's address, length and key, for peers.
    pub(crate) fn remote(&self) -> RemoteMemoryRegion {
        RemoteMemoryRegion::new(self.iova, self.length, self.rkey)
    }

    /// Returns the address that requests use for the byte at `offset`.
    #[inline]
    pub(crate) fn device_address(&self, offset: usize) -> u64 {
        self.iova.wrapping_add(offset as u64)
    }

    /// Returns `length` bytes at `offset`.
    ///
    /// # Safety
    /// The bytes are within the region, whose memory is mapped while the registration is borrowed.
    #[inline]
    pub(crate) unsafe fn piece(&self, offset: usize, length: usize) -> Piece<'_> {
        // SAFETY: SAFETY.md F16: by this function's contract, the offset is within the region.
        let base = unsafe { self.base.add(offset) };
        let address = self.device_address(offset);
        // SAFETY: SAFETY.md F16: by this function's contract, the bytes are within the region and
        // mapped. The address, key and domain belong to this registration.
        unsafe { Piece::new(base, length, address, self.lkey, self.pd()) }
    }

    /// Returns the owner of the memory.
    pub(crate) fn memory(&self) -> &M {
        &self.handle.needs().0
    }

    /// Returns the owner of the memory. The caller must not change the memory's address.
    pub(crate) fn memory_mut(&mut self) -> &mut M {
        &mut self.handle.needs_mut().0
    }

    #[inline]
    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.handle.needs().1
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut ibv_mr {
        self.handle.as_ptr()
    }
}

impl Registration<RegionMemory> {
    /// Registers memory that the registration owns.
    ///
    /// # Safety
    /// The rkey is given only to peers that may use the memory as `access` allows.
    pub(crate) unsafe fn owning(
        pd: &ProtectionDomain,
        memory: RegionMemory,
        access: AccessFlags,
    ) -> Result<Self, (RegionMemory, Error)> {
        let (base, length) = (memory.base(), memory.len());
        // SAFETY: SAFETY.md F8, F16, F29: the registration owns `memory`, and the memory stays
        // mapped until `memory` is dropped. This function's contract covers the rkey.
        unsafe { Self::mapped(pd, base, length, access, memory) }
    }
}

impl<M> fmt::Debug for Registration<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("address", &self.base)
            .field("length", &self.length)
            .field("lkey", &self.lkey)
            .field("rkey", &self.rkey)
            .finish_non_exhaustive()
    }
}

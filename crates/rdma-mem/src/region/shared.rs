//! Regions that own their memory and open it to peers.
#![allow(unsafe_code)]

pub(crate) mod common;

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rdma_sys::ibv_mr;
use rdma_types::{AccessFlags, Lkey, Rkey};

use crate::device::protection_domain::ProtectionDomain;
use crate::element::shared::SharedElement;
use crate::error::Error;
use crate::error::range;
use crate::error::range::RangeError;
use crate::region::copy::{copy_in, copy_out};
use crate::region::memory::RegionMemory;
use crate::region::registration::Registration;
use crate::remote::RemoteMemoryRegion;

/// Registered memory that the region owns, open to peers while the region exists.
///
/// Peers may read and write it at any time, so a `&[u8]` of it never exists. Bytes are copied
/// [in](Self::write) and [out](Self::read), as a device would, and words that both sides change are
/// [atomics](Self::atomic_u64). A copy that runs while a peer writes the same bytes may see a
/// mixture of old and new bytes. To know that a message is complete, poll its completion, or let
/// the peer write an atomic word after it.
///
/// A software device may let peers in other processes of this user map the pages of a region that
/// [`allocate_shared_region`](ProtectionDomain::allocate_shared_region) has made. A forked child
/// does not have such pages, so it must not access the region's bytes.
///
/// # Examples
/// ```
/// use rdma_mem::AccessFlags;
///
/// rdma_soft::install();
/// let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let access = AccessFlags::new().with_local_write().with_remote_write();
/// let region = pd.allocate_shared_region(4096, access)?;
/// let descriptor = region.remote(); // for the peer
///
/// region.write(8, b"hello").unwrap();
/// let mut bytes = [0; 5];
/// region.read(8, &mut bytes).unwrap();
/// assert_eq!(&bytes, b"hello");
/// # assert_eq!(descriptor.length(), 4096);
/// # Ok::<(), rdma_mem::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
#[derive(Debug)]
pub struct SharedRegion(Registration<RegionMemory>);

impl ProtectionDomain {
    /// Allocates `length` zeroed bytes on separate pages, and registers them with these access
    /// flags.
    ///
    /// This is safe with any access: a peer with the key can access only this memory, and
    /// [`SharedRegion`] never exposes it as a slice. Local write is required for remote write, for
    /// remote atomics, and if an [element](SharedRegion::element) is the destination of a request.
    ///
    /// # Errors
    /// [`Error::EmptyRegion`]; [`Error::OutOfMemory`]; [`Error::Access`] for flags that the verbs
    /// forbid; [`Error::NoAtomics`] for remote atomics on a device without atomics; or the verb's
    /// error, with a hint about the limit of locked memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate_shared_region(
        &self,
        length: usize,
        access: AccessFlags,
    ) -> Result<SharedRegion, Error> {
        access.check()?;
        let Some(memory) = self.memory_for_peers(length, access) else {
            let memory = RegionMemory::allocate(length)?;
            return self.register_shared(memory, access).map_err(|(_, error)| error);
        };
        let mut region = self.register_shared(memory, access).map_err(|(_, error)| error)?;
        region.note_file();
        Ok(region)
    }

    /// Allocates memory that other processes of this user can map, if the provider wants it. If the
    /// system refuses another file or mapping, returns `None`: the region works without it.
    fn memory_for_peers(&self, length: usize, access: AccessFlags) -> Option<RegionMemory> {
        // A window may grant less than the region, and a peer with the file could not be confined
        // to the window.
        if access.contains(AccessFlags::MW_BIND) || self.check_process().is_err() {
            return None;
        }
        // SAFETY: SAFETY.md F2, F6: the domain is live and belongs to this table.
        let wants = unsafe { self.verbs().wants_file(self.as_raw(), length, access.bits()) };
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        if wants { RegionMemory::for_peers(length, access.intersects(writes)).ok() } else { None }
    }

    /// Registers memory, such as that of a closed region, with these access flags.
    ///
    /// # Errors
    /// Returns the unchanged memory, and one of the errors of
    /// [`allocate_shared_region`](Self::allocate_shared_region).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared(
        &self,
        memory: RegionMemory,
        access: AccessFlags,
    ) -> Result<SharedRegion, (RegionMemory, Error)> {
        // SAFETY: SAFETY.md F8: any holder of the rkey may use the memory, because no reference to
        // it is formed while it is registered.
        unsafe { Registration::owning(self, memory, access) }.map(SharedRegion)
    }
}

impl SharedRegion {
    /// Returns the length, in bytes.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // no region is empty
    pub fn len(&self) -> usize {
        self.0.length()
    }

    /// Passes the file of the memory to the provider, and closes it here.
    fn note_file(&mut self) {
        if let Some(file) = self.0.memory().peers_file() {
            // SAFETY: SAFETY.md F2, F31: the region has just been registered through this table, and
            // no other code knows its keys. It owns the file, whose size is sealed, and which was
            // created for it. `close` moves the contents to other memory.
            unsafe { self.pd().verbs().note_file(self.as_raw(), file.as_raw_fd()) };
        }
        self.0.memory_mut().close_file();
    }

    #[inline]
    fn at(&self, offset: usize, length: usize) -> Result<NonNull<u8>, RangeError> {
        range::check(offset, length, self.len())?;
        // SAFETY: SAFETY.md F16: the offset is checked.
        Ok(unsafe { self.0.base().add(offset) })
    }

    /// Copies the bytes at `offset` into `out`.
    ///
    /// # Errors
    /// Returns an error if the bytes are not within the region.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), RangeError> {
        let source = self.at(offset, out.len())?;
        // SAFETY: SAFETY.md F16: `out.len()` bytes are within the region, whose memory is readable
        // and writable and consists of whole pages. No slice of the memory exists, so it does not
        // overlap `out`. It is lent only as 8-byte atomics.
        unsafe { copy_out(source.as_ptr(), out) };
        Ok(())
    }

    /// Copies `data` into the region at `offset`.
    ///
    /// # Errors
    /// Returns an error, and writes nothing, if `data` does not fit into the region there.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        let target = self.at(offset, data.len())?;
        // SAFETY: SAFETY.md F16: same argument as in `read`, with `data` instead of `out`.
        unsafe { copy_in(data, target.as_ptr()) };
        Ok(())
    }

    /// Returns the eight bytes at `offset` as an atomic word, in this machine's byte order.
    ///
    /// Eight bytes are the only width, because atomics of different widths over the same bytes
    /// would race. Whether an operation of this processor is atomic with respect to a peer's atomic
    /// operation depends on the device. The operation is always atomic with respect to loads and
    /// stores of eight aligned bytes.
    ///
    /// # Errors
    /// Returns an error if `offset` is not a multiple of 8, or the word is not within the region.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, RangeError> {
        let word = self.at(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(RangeError::Misaligned { offset, align: 8 });
        }
        // SAFETY: SAFETY.md F16: the word is within the region, which begins at a page boundary, so
        // the word is aligned. It is valid while `&self` borrows the region. Apart from the device,
        // only copies access it, and they are assembly or atomics of this width.
        Ok(unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) })
    }

    /// Returns the element for a range, as the source or destination of requests.
    ///
    /// # Errors
    /// Returns an error if the range is not within the region, or longer than 4 GiB - 1.
    ///
    /// # Examples
    /// ```
    /// # use rdma_mem::{AccessFlags, GatherElement};
    /// # rdma_soft::install();
    /// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
    /// let access = AccessFlags::new().with_local_write();
    /// let region = pd.allocate_shared_region(4096, access)?;
    /// let element = GatherElement::from(region.element(0..64).unwrap());
    /// assert_eq!(element.length(), 64);
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[inline]
    pub fn element(&self, range: Range<usize>) -> Result<SharedElement<'_>, RangeError> {
        let iova = self.0.device_address(0);
        SharedElement::within(range, self.len(), iova, self.lkey(), self.pd())
    }

    /// Returns the file that holds the memory, if the memory came from [`RegionMemory::memfd`] and
    /// has not been an [`OwnedRegion`](crate::OwnedRegion) since then. Other processes on this
    /// machine can map the file, and drivers can turn it into a dma-buf (`/dev/udmabuf`).
    ///
    /// # Safety
    /// The memory that [`close`](Self::close) returns is visible as `&[u8]`, and can become an
    /// [`OwnedRegion`](crate::OwnedRegion), which is visible in the same way. While it is visible,
    /// no code in any process may write it through this file or a duplicate of the file.
    #[must_use]
    pub unsafe fn memfd(&self) -> Option<BorrowedFd<'_>> {
        self.0.memory().file()
    }

    /// Returns the region's address, length and key, for sending to a peer.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        self.0.remote()
    }

    /// Returns the key for this machine's own requests.
    #[inline]
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.0.lkey()
    }

    /// Returns the key for peers.
    #[inline]
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.0.rkey()
    }

    /// Returns the protection domain that the region was registered in.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        self.0.pd()
    }

    /// Deregisters the region, which ends the access of peers, and returns the memory.
    ///
    /// If the provider could let other processes of this user map the region's pages, the contents
    /// move to other pages, so their address changes.
    ///
    /// # Errors
    /// Returns the region, which is still registered, and the provider's error, or
    /// [`Error::OutOfMemory`] if the contents cannot be moved.
    #[doc(alias = "ibv_dereg_mr")]
    #[allow(clippy::result_large_err)] // it is the region itself
    pub fn close(self) -> Result<RegionMemory, (Self, Error)> {
        // Allocated first, so that the region stays as it is if this fails.
        let private = match self.0.memory().allocate_private() {
            Ok(private) => private,
            Err(error) => return Err((self, error)),
        };
        match self.0.close() {
            Ok(memory) => Ok(memory.moved_to(private)),
            Err((registration, error)) => Err((Self(registration), error)),
        }
    }

    pub(crate) fn registration(&self) -> &Registration<RegionMemory> {
        &self.0
    }

    /// Returns the C object, which lives as long as `self`.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *mut ibv_mr {
        self.0.as_raw()
    }
}

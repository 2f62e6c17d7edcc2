//! Memory of a peer, with the index of the peer.

use rdma_mem::RemoteMemoryRegion;

/// Memory that belongs to one of several peers.
///
/// The field macros, for example [`remote_struct_field!`](rdma_mem::remote_struct_field), also accept this type.
///
/// # Examples
/// ```
/// use rdma_channel::PeerRemoteMemoryRegion;
/// use rdma_mem::{RemoteMemoryRegion, remote_array_field};
///
/// let memory = PeerRemoteMemoryRegion::new(2, RemoteMemoryRegion::new(0x1000, 256, 0x42));
/// let third = remote_array_field!(memory, u64, 2).unwrap();
/// assert_eq!(third, memory.sub_region(16).unwrap());
/// assert_eq!((third.peer(), third.remote().address()), (2, 0x1010));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PeerRemoteMemoryRegion {
    peer: usize,
    #[cfg_attr(feature = "serde", serde(rename = "remote_mr"))]
    remote: RemoteMemoryRegion,
}

impl PeerRemoteMemoryRegion {
    /// Combines a memory region with the index of the peer that owns it.
    #[inline]
    #[must_use]
    pub fn new(peer: usize, remote: impl Into<RemoteMemoryRegion>) -> Self {
        Self { peer, remote: remote.into() }
    }

    /// The index of the peer that owns the memory.
    #[inline]
    #[must_use]
    pub const fn peer(&self) -> usize {
        self.peer
    }

    /// The memory.
    #[inline]
    #[must_use]
    pub const fn remote(&self) -> RemoteMemoryRegion {
        self.remote
    }

    /// The part that begins at byte `offset`, like [`RemoteMemoryRegion::sub_region`].
    #[inline]
    #[must_use]
    pub fn sub_region(&self, offset: usize) -> Option<Self> {
        Some(Self { remote: self.remote.sub_region(offset)?, ..*self })
    }

    /// Like [`RemoteMemoryRegion::sub_region_unchecked`].
    #[inline]
    #[must_use]
    pub const fn sub_region_unchecked(&self, offset: usize) -> Self {
        Self { remote: self.remote.sub_region_unchecked(offset), ..*self }
    }

    /// Used by the field macros, for example [`remote_array_field!`](rdma_mem::remote_array_field).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn __element(
        &self,
        index: usize,
        stride: usize,
        offset: usize,
        length: usize,
    ) -> Option<Self> {
        Some(Self { remote: self.remote.__element(index, stride, offset, length)?, ..*self })
    }

    /// Like [`__element`](Self::__element), but does not check the end.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub const fn __element_unchecked(&self, index: usize, stride: usize, offset: usize) -> Self {
        Self { remote: self.remote.__element_unchecked(index, stride, offset), ..*self }
    }
}

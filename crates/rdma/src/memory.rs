//! Protection domains, registered memory and its elements, and a peer's memory.
//!
//! ```
//! # if cfg!(feature = "soft") {
//! let pd = rdma::device::open_device("soft0")?.allocate_pd()?;
//! let mut region = pd.allocate_region(4096)?;
//! region[..5].copy_from_slice(b"hello");
//! # }
//! # Ok::<(), rdma::memory::Error>(())
//! ```

pub use rdma_mem::{
    BindError, BindableRegion, BorrowedRegion, Buffer, BufferPool, CommonMemory, CommonRegion,
    DmabufRegion, Error, GatherElement, GatherList, HugePageSize, InlineElement, LocalRegion,
    MemoryRegion, MemoryWindow, OwnedArray, OwnedRegion, Pod, PoolUsage, Prefetch, PreparedBind,
    ProtectionDomain, RangeError, RegionMemory, RemoteMemoryRegion, RemoteRef, RemoteSlice,
    ScatterElement, ScatterGatherElementError, ScatterList, SharedElement, SharedRegion, SliceMut,
    SliceRef, WindowType, remote_array_field, remote_array_field_unchecked, remote_ref,
    remote_struct_array_field, remote_struct_array_field_unchecked, remote_struct_field,
    remote_struct_field_unchecked,
};
pub use rdma_types::{AccessError, AccessFlags, Lkey, Rkey};

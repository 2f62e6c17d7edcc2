//! RDMA devices, contexts, protection domains and registered memory.
//!
//! This is the lowest layer whose types express ownership and lifetimes. Objects are destroyed in
//! the right order. Memory that a device may access is freed only after the device has released it.
//!
//! ```
//! use rdma_mem::AccessFlags;
//!
//! rdma_soft::install(); // adds the software devices to those of the machine
//! let context = rdma_mem::open_device("soft0")?;
//! let pd = context.allocate_pd()?;
//!
//! let mut buffer = pd.allocate_region(4096)?; // for this machine's own requests
//! buffer[..5].copy_from_slice(b"hello");
//!
//! let access = AccessFlags::new().with_local_write().with_remote_write();
//! let board = pd.allocate_shared_region(4096, access)?; // for peers
//! println!("write to {:?}", board.remote());
//! # Ok::<(), rdma_mem::Error>(())
//! ```
//!
//! # Which region
//!
//! | type | memory | accessible to | view of the bytes |
//! |---|---|---|---|
//! | [`OwnedRegion`] | its own | this machine's requests | derefs to `[u8]`; registered slices |
//! | [`OwnedArray`] | its own | this machine's requests | derefs to `[T]`, plain old data; registered slices |
//! | [`Buffer`] | of a [`BufferPool`] | this machine's requests | derefs to `[u8]`; registered slices |
//! | [`BorrowedRegion`] | borrowed | this machine's requests | derefs to `[u8]`; registered slices |
//! | [`SharedRegion`] | its own | this machine's requests; peers, as its access flags allow | copies in and out, 8-byte atomics |
//! | [`DmabufRegion`] | a dma-buf's | this machine's requests; peers if registered `unsafe`ly | none; elements by range |
//! | [`MemoryRegion`] | the caller's | this machine's requests; peers if registered `unsafe`ly | none |
//!
//! A [`MemoryWindow`] gives peers access to a part of a region for a limited time. [`CommonMemory`]
//! opens ranges of one memory to several peers, each with its own rights and key.
//!
//! # Closing
//!
//! `Drop` closes every object. If that fails, it emits one `tracing` event, and leaks memory that
//! the device might still access. To get the error, use `close`, which returns it together with the
//! object. An object stays alive while objects created from it exist.
//!
//! # C and other libraries
//!
//! Owners lend their C objects ([`Context::as_raw`] …). Those that do not manage memory can also be
//! created from one ([`Context::from_raw`] …); [`Ownership`] lists them, and determines which side
//! destroys the C object. The structs of C are in `rdma-sys`; types of other lower crates that
//! occur in signatures here are re-exported.
//!
//! # Forking
//!
//! A process with live objects can start programs ([`std::process::Command`]); [`fork_support`]
//! ensures this on old kernels. Objects record their process: in a forked child their functions
//! return [`Forked`], and dropping them frees nothing.
//!
//! # Features
//!
//! `serde` (off by default): serialisation of [`RemoteMemoryRegion`] and the types of `rdma-types`.

mod device;
mod element;
mod error;
mod event;
mod fork;
mod object;
mod region;
mod remote;
mod window;

pub use device::attributes::DeviceAttributes;
pub use device::context::Context;
pub use device::extended_attributes::ExtendedAttributes;
pub use device::gid::GidEntry;
pub use device::list::{DeviceList, list_devices, open_default_device, open_device};
pub use device::listed::Device;
pub use device::port::PortAttributes;
pub use device::protection_domain::ProtectionDomain;
pub use device::unknown::{ListError, UnknownDevice};
pub use element::inline::InlineElement;
pub use element::list::{GatherList, ScatterList};
pub use element::prefetch::Prefetch;
pub use element::shared::SharedElement;
pub use element::slice::{SliceMut, SliceRef};
pub use element::{GatherElement, ScatterElement, ScatterGatherElementError};
pub use error::Error;
pub use error::range::RangeError;
pub use error::recovery::Recovery;
pub use error::verb::VerbError;
pub use event::file::EventFile;
pub use event::taker::AsyncEvents;
pub use event::value::{AsyncEvent, AsyncEventSource};
pub use fork::{ForkMode, ForkStatus, fork_support};
pub use object::forked::Forked;
pub use object::handle::Handle;
pub use object::id::ObjectId;
pub use object::ownership::Ownership;
pub use region::array::OwnedArray;
pub use region::borrowed::BorrowedRegion;
pub use region::dmabuf::DmabufRegion;
pub use region::local::LocalRegion;
pub use region::mapping::HugePageSize;
pub use region::memory::RegionMemory;
pub use region::owned::OwnedRegion;
pub use region::pool::buffer::Buffer;
pub use region::pool::{BufferPool, PoolUsage};
pub use region::shared::SharedRegion;
pub use region::shared::common::{CommonMemory, CommonRegion};
pub use region::unowned::MemoryRegion;
pub use remote::RemoteMemoryRegion;
#[doc(hidden)]
pub use remote::fields::__size_of_field;
pub use remote::typed::{RemoteRef, RemoteSlice};
pub use window::bindable::BindableRegion;
pub use window::error::BindError;
pub use window::memory_window::{MemoryWindow, PreparedBind, WindowType};

pub use bytemuck::Pod;
pub use rdma_sys::{Errno, LoadError, UnknownProvider, Unsupported, Verbs};
pub use rdma_types::{
    AccessError, AccessFlags, AsyncEventKind, AtomicCapability, DeviceCapabilities, Gid, GidType,
    Guid, Lid, LinkLayer, LinkSpeed, LinkWidth, Lkey, Mtu, NodeType, OdpCapabilities,
    OdpOperations, PhysicalState, Pkey, PortState, Qpn, RawPacketCapabilities, Rkey, TransportType,
};

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

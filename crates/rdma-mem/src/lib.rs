//! RDMA devices, contexts, protection domains and registered memory.
//!
//! The first layer with owners and lifetimes: what is made here is destroyed in the right order, and
//! memory that a device may touch is freed after the device has let go of it, never before.
//!
//! ```
//! use rdma_mem::AccessFlags;
//!
//! rdma_soft::install(); // the software devices, beside those of the machine
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
//! | type | memory | who reaches it | view of the bytes |
//! |---|---|---|---|
//! | [`OwnedRegion`] | its own | this machine's requests | derefs to `[u8]`; registered slices |
//! | [`Buffer`] | of a [`BufferPool`] | this machine's requests | derefs to `[u8]`; registered slices |
//! | [`BorrowedRegion`] | borrowed | this machine's requests | derefs to `[u8]`; registered slices |
//! | [`SharedRegion`] | its own | peers, as its access flags say | copies in and out, 8-byte atomics |
//! | [`DmabufRegion`] | a dma-buf's | this machine's requests; peers if registered `unsafe`ly | none; elements by range |
//! | [`MemoryRegion`] | the caller's | this machine's requests; peers if registered `unsafe`ly | none |
//!
//! Peers reach a part of a region, for a time, through a [`MemoryWindow`].
//!
//! # Closing
//!
//! Everything is closed by `Drop`. A failure there is one `tracing` event, and memory that the device
//! might still touch is leaked. To see the error, use `close`, which gives the object back with it.
//! Whatever is made from an object keeps it alive.
//!
//! # C and other libraries
//!
//! Each owner lends its C object ([`Context::as_raw`] …) and is made of one ([`Context::from_raw`] …);
//! [`Ownership`] says who destroys it then.
//!
//! # Forking
//!
//! A process with live objects can start programs ([`std::process::Command`]); [`fork_support`] makes
//! sure of that on old kernels. Objects remember their process: in a forked child their functions
//! return [`Forked`], and dropping them frees nothing.
//!
//! # Features
//!
//! `serde` (off by default): [`RemoteMemoryRegion`] and the numbers of `rdma-types` can be serialised.

mod async_event;
mod async_events;
mod attributes;
mod bind_error;
mod bindable_region;
mod borrowed_region;
mod buffer;
mod buffer_pool;
mod context;
mod copy;
mod device;
mod device_attributes;
mod device_list;
mod dmabuf_region;
mod element;
mod error;
mod event_file;
mod extended_attributes;
mod fork;
mod gid_sysfs;
mod gid_table;
mod handle;
mod hint;
mod inline_element;
mod list;
mod mapping;
mod memory_region;
mod memory_window;
mod object_id;
mod owned_region;
mod ownership;
mod pool_region;
mod port_attributes;
mod protection_domain;
mod range_error;
mod region_memory;
mod registration;
mod remote_field;
mod remote_memory_region;
mod remote_ref;
mod shared_element;
mod shared_region;
mod slice;

pub use async_event::{AsyncEvent, AsyncEventSource};
pub use async_events::AsyncEvents;
pub use bind_error::BindError;
pub use bindable_region::BindableRegion;
pub use borrowed_region::BorrowedRegion;
pub use buffer::Buffer;
pub use buffer_pool::{BufferPool, PoolUsage};
pub use context::Context;
pub use device::Device;
pub use device_attributes::DeviceAttributes;
pub use device_list::{DeviceList, ListError, UnknownDevice, list_devices, open_device};
pub use dmabuf_region::DmabufRegion;
pub use element::{GatherElement, ScatterElement, ScatterGatherElementError};
pub use error::{Error, VerbError};
pub use event_file::EventFile;
pub use extended_attributes::ExtendedAttributes;
pub use fork::{ForkMode, ForkStatus, Forked, fork_support};
pub use gid_table::GidEntry;
pub use handle::Handle;
pub use inline_element::InlineElement;
pub use list::{GatherList, ScatterList};
pub use mapping::HugePageSize;
pub use memory_region::MemoryRegion;
pub use memory_window::{MemoryWindow, PreparedBind, WindowType};
pub use object_id::ObjectId;
pub use owned_region::OwnedRegion;
pub use ownership::Ownership;
pub use port_attributes::PortAttributes;
pub use protection_domain::ProtectionDomain;
pub use range_error::RangeError;
pub use region_memory::RegionMemory;
#[doc(hidden)]
pub use remote_field::__size_of_field;
pub use remote_memory_region::RemoteMemoryRegion;
pub use remote_ref::{RemoteRef, RemoteSlice};
pub use shared_element::SharedElement;
pub use shared_region::SharedRegion;
pub use slice::{SliceMut, SliceRef};

pub use rdma_sys::{Errno, Unsupported};
pub use rdma_types::{
    AccessError, AccessFlags, AsyncEventKind, AtomicCapability, DeviceCapabilities, Gid, GidType,
    Guid, Lid, LinkLayer, LinkSpeed, LinkWidth, Lkey, Mtu, NodeType, OdpCapabilities,
    OdpOperations, PhysicalState, PortState, Qpn, RawPacketCapabilities, Rkey, TransportType,
};

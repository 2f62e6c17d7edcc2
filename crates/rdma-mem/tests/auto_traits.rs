//! The types that may move to other threads, and be used from them.

use std::sync::Arc;

use rdma_mem::{
    AsyncEvent, AsyncEventSource, AsyncEvents, BindError, BorrowedRegion, Buffer, BufferPool,
    CommonMemory, CommonRegion, Context, Device, DeviceAttributes, DeviceList, DmabufRegion, Error,
    EventFile, ExtendedAttributes, ForkMode, ForkStatus, Forked, GatherElement, GatherList,
    GidEntry, Handle, HugePageSize, InlineElement, ListError, LocalRegion, MemoryRegion,
    MemoryWindow, ObjectId, OwnedArray, OwnedRegion, Ownership, PoolUsage, PortAttributes,
    Prefetch, PreparedBind, ProtectionDomain, RangeError, Recovery, RegionMemory,
    RemoteMemoryRegion, RemoteRef, RemoteSlice, ScatterElement, ScatterGatherElementError,
    ScatterList, SharedElement, SharedRegion, SliceMut, SliceRef, UnknownDevice, VerbError,
    WindowType,
};

fn send_sync<T: Send + Sync>() {}
fn unpin<T: Unpin>() {}
fn error<T: std::error::Error + Send + Sync + 'static>() {}

#[test]
fn objects_are_send_and_sync() {
    send_sync::<BorrowedRegion<'_>>();
    send_sync::<Buffer>();
    send_sync::<BufferPool>();
    send_sync::<AsyncEvents>();
    send_sync::<Context>();
    send_sync::<Device>();
    send_sync::<DmabufRegion>();
    send_sync::<DeviceList>();
    send_sync::<EventFile>();
    send_sync::<Handle<rdma_sys::ibv_pd, Context>>();
    send_sync::<LocalRegion<RegionMemory>>();
    send_sync::<MemoryRegion>();
    send_sync::<MemoryWindow<Arc<SharedRegion>>>();
    send_sync::<MemoryWindow<&MemoryRegion>>();
    send_sync::<MemoryWindow<OwnedRegion>>();
    send_sync::<MemoryWindow<Buffer>>();
    send_sync::<OwnedArray<u64>>();
    send_sync::<OwnedRegion>();
    send_sync::<ProtectionDomain>();
    send_sync::<RegionMemory>();
    send_sync::<SharedRegion>();
    send_sync::<CommonMemory>();
    send_sync::<CommonRegion>();
    unpin::<OwnedRegion>();
    unpin::<SharedRegion>();
}

#[test]
fn values_are_send_and_sync() {
    send_sync::<AsyncEvent>();
    send_sync::<AsyncEventSource>();
    send_sync::<DeviceAttributes>();
    send_sync::<ExtendedAttributes>();
    send_sync::<ObjectId>();
    send_sync::<Ownership>();
    send_sync::<PortAttributes>();
    send_sync::<GidEntry>();
    send_sync::<ForkMode>();
    send_sync::<ForkStatus>();
    send_sync::<HugePageSize>();
    send_sync::<WindowType>();
    send_sync::<PreparedBind>();
    send_sync::<PoolUsage>();
    send_sync::<Prefetch>();
    send_sync::<RemoteMemoryRegion>();
    send_sync::<RemoteRef<*const u8>>();
    send_sync::<RemoteSlice<*const u8>>();
    send_sync::<GatherElement<'_>>();
    send_sync::<InlineElement<'_>>();
    send_sync::<ScatterElement<'_>>();
    send_sync::<GatherList<'_, 2>>();
    send_sync::<ScatterList<'_, 2>>();
    send_sync::<SharedElement<'_>>();
    send_sync::<SliceRef<'_>>();
    send_sync::<SliceMut<'_>>();
}

#[test]
fn errors_are_errors_of_any_thread() {
    error::<Error>();
    error::<Forked>();
    error::<ListError>();
    error::<UnknownDevice>();
    error::<VerbError>();
    error::<BindError>();
    send_sync::<Recovery>();
    error::<RangeError>();
    error::<ScatterGatherElementError>();
}

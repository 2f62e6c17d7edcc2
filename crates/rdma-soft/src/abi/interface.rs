//! The interfaces of this host, of which the C library has the list.

pub(crate) use rdma_sys::{InterfaceAddress, interface_addresses};

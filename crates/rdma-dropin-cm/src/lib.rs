//! `librdmacm.so.1` over the engine of `rdma-cm`.
//!
//! `cargo xtask dropin` links this library into a file that unmodified programs load in place of the distribution's
//! librdmacm. It uses the `libibverbs.so.1` of `rdma-dropin` through its exported functions (`library`), so a process has
//! one set of devices. Connections use the protocol and the sockets of `rdma-cm` (its module `unmanaged`), so programs in
//! C and in Rust connect to each other.
//!
//! - `devices` opens a device when it is first used. A thread for each of them processes messages, like the kernel for the
//!   distribution's librdmacm. It passes events on to the channels of their IDs.
//! - `channel` has the event channels, which are eventfds, and `event` the events that a program receives and acknowledges.
//! - `id` has the state of an ID. `address`, `connecting`, `options` and `endpoint` have the functions that change it.
//! - `queue_pair` creates queue pairs and moves them between their states.
//! - `multicast` has the groups that an ID joins.
//! - `lacking` has the functions of rsockets, which fail.
//! - `abi` has the structs of `<rdma/rdma_cma.h>`.
//!
//! No panic unwinds into C: the library is compiled with `panic = "abort"`, and prints nothing before it aborts.

mod address;
mod channel;
mod connecting;
mod devices;
mod endpoint;
mod errors;
mod event;
mod id;
mod lacking;
mod library;
mod multicast;
mod options;
mod queue_pair;
mod semaphore;

/// The names that this library has for the structs of `<rdma/rdma_cma.h>`.
mod abi {
    pub(crate) use rdma_sys::cm::{
        DEVICE_MAXIMUM, ibv_sa_path_rec as Path, rdma_addrinfo as AddrInfo,
        rdma_cm_event as CmEvent, rdma_cm_event_param as Param, rdma_cm_event_type as EventType,
        rdma_cm_id as CmId, rdma_cm_join_mc_attr_ex as JoinAttributes,
        rdma_conn_param as ConnParam, rdma_event_channel as EventChannel,
        rdma_ib_addr as IbAddress, rdma_port_space as Space, rdma_ud_param as UdParam,
        read_address, storage,
    };
}

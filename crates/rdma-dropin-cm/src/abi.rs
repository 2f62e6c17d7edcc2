//! The names that this library has for the structs of `<rdma/rdma_cma.h>`.

pub(crate) use rdma_sys::cm::{
    DEVICE_MAXIMUM, ibv_sa_path_rec as Path, rdma_addrinfo as AddrInfo, rdma_cm_event as CmEvent,
    rdma_cm_event_param as Param, rdma_cm_event_type as EventType, rdma_cm_id as CmId,
    rdma_conn_param as ConnParam, rdma_event_channel as EventChannel, rdma_ib_addr as IbAddress,
    rdma_port_space as Space, rdma_ud_param as UdParam, read_address, storage,
};

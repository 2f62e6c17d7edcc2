//! RDMA devices, contexts, protection domains and registered memory.

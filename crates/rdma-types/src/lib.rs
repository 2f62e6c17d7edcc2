//! RDMA's numbers: GIDs, keys, sequence numbers, MTUs, timers, access flags, status codes.

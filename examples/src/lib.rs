//! Programs on the RDMA stack.

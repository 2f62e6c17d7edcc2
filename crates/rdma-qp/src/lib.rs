//! RDMA completion queues, queue pairs, work requests and completions.

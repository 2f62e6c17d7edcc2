//! Connected RDMA endpoints whose operations keep their memory alive and always end.

pub use rdma_qp::QueuePairEndpoint;

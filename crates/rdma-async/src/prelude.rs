//! Traits to import for their methods: `use rdma_async::prelude::*`.

pub use crate::buffer::view::BufferExt;

//! Traits that are imported for their methods: `use rdma_async::prelude::*`.

pub use crate::buffer::view::BufferExt;

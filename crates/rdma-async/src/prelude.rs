//! Traits whose methods are used without a name: `use rdma_async::prelude::*`.

pub use crate::buffer::view::BufferExt;

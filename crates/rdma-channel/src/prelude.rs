//! Extension methods for types of `rdma-mem`, from this crate and from `rdma-qp`.
//!
//! ```
//! use rdma_channel::prelude::*;
//! ```

use rdma_mem::ProtectionDomain;
pub use rdma_qp::prelude::*;

use crate::channel::Channel;
use crate::channel::builder::{ChannelBuilder, MultiChannelBuilder};
use crate::multi_channel::MultiChannel;
use crate::server::Server;
use crate::server::builder::ServerBuilder;

mod sealed {
    #[allow(unnameable_types)] // this seals the trait
    pub trait Sealed {}
    impl Sealed for rdma_mem::ProtectionDomain {}
}

/// Creates channels and servers in a protection domain.
pub trait CreateChannel: sealed::Sealed {
    /// Like [`Channel::builder`], with this domain.
    fn create_channel(&self) -> ChannelBuilder<'_>;

    /// Like [`MultiChannel::builder`], with this domain.
    fn create_multi_channel(&self) -> MultiChannelBuilder<'_>;

    /// Like [`Server::builder`], with this domain.
    fn create_server(&self) -> ServerBuilder<'_>;
}

impl CreateChannel for ProtectionDomain {
    fn create_channel(&self) -> ChannelBuilder<'_> {
        Channel::builder().pd(self)
    }

    fn create_multi_channel(&self) -> MultiChannelBuilder<'_> {
        MultiChannel::builder().pd(self)
    }

    fn create_server(&self) -> ServerBuilder<'_> {
        Server::builder(self)
    }
}

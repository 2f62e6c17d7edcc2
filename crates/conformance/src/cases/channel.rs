//! Channels of `rdma-channel`, and groups of `rdma-group`.

pub(super) mod channels_to_many;
pub(super) mod connected_channels;
pub(super) mod failing_destruction;
pub(super) mod failing_polls;
pub(super) mod groups;
pub(super) mod messages;
pub(super) mod servers;
pub(super) mod sleeping_channels;
pub(super) mod unpolled_channels;

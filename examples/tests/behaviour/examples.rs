//! The programs with functions that tests call.
#![allow(dead_code)] // their `main`

#[path = "../../examples/atomics.rs"]
pub(crate) mod atomics;
#[path = "../../examples/channel.rs"]
pub(crate) mod channel;
#[path = "../../examples/channel_blocking.rs"]
pub(crate) mod channel_blocking;
#[path = "../../examples/echo.rs"]
pub(crate) mod echo;
#[path = "../../examples/failover.rs"]
pub(crate) mod failover;
#[path = "../../examples/gradient_descent.rs"]
pub(crate) mod gradient_descent;
#[path = "../../examples/kv.rs"]
pub(crate) mod kv;
#[path = "../../examples/multi_channel.rs"]
pub(crate) mod multi_channel;
#[path = "../../examples/multi_channel_scatter_gather.rs"]
pub(crate) mod multi_channel_scatter_gather;
#[path = "../../examples/pingpong.rs"]
pub(crate) mod pingpong;
#[path = "../../examples/rc_pingpong.rs"]
pub(crate) mod rc_pingpong;
#[path = "../../examples/replication.rs"]
pub(crate) mod replication;
#[path = "../../examples/shared_memory.rs"]
pub(crate) mod shared_memory;
#[path = "../../examples/srq.rs"]
pub(crate) mod srq;
#[path = "../../examples/ud_pingpong.rs"]
pub(crate) mod ud_pingpong;
#[path = "../../examples/windows.rs"]
pub(crate) mod windows;

//! Streams and messages on connections.
//!
//! - A [`Stream`] carries bytes, as a [`TcpStream`](tokio::net::TcpStream) does.
//! - [`Messages`] carry messages of any length, requests and replies.
//!
//! The crate `rdma-message` defines the protocol of both. The [guide] helps to choose.
//!
//! No task belongs to a connection of this module. The task that calls it processes completions; while all tasks wait,
//! the [driver](crate::Driver) does. An idle connection uses no processor time, and [this
//! much](Options::registered_bytes) registered memory.

#[doc = include_str!("guide.md")]
pub mod guide {}
mod linger;
mod listener;
mod messages;
mod requests;
mod session;
mod stream;
mod turns;

pub use messages::incoming::Message;
pub use messages::{Messages, MessagesListener};
pub use rdma_connect::messaging::{MessageError, Options, losses, malformed_values, violations};
pub use rdma_message::{ConnectionError, OperationError, SendError};
pub use stream::chunk::Chunk;
pub use stream::read_half::ReadHalf;
pub use stream::write_half::WriteHalf;
pub use stream::{Stream, StreamListener};

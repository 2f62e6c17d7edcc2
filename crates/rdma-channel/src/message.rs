//! Blocking streams and messages on channels.
//!
//! - A [`Stream`] carries bytes, as a [`TcpStream`](std::net::TcpStream) does.
//! - [`Messages`] carry messages of any length, requests and replies.
//!
//! The peer may be a program of this crate or of `rdma-async`. The page `docs/messages-and-streams.md` helps to choose.
//!
//! No thread belongs to a connection of this module. It makes progress only while one of its functions is called.
//! Meanwhile, the peer's messages arrive, and the peer gets new credit.

mod listener;
mod messages;
mod owned;
mod requests;
mod session;
mod stream;
mod windows;

pub use messages::incoming::Message;
pub use messages::writing::Writing;
pub use messages::{Messages, MessagesListener};
#[cfg(feature = "serde")]
pub use rdma_connect::ValueError;
pub use rdma_connect::messaging::{MessageError, Options, losses, malformed_values, violations};
pub use rdma_message::{ConnectionError, OperationError, SendError};
pub use stream::chunk::Chunk;
pub use stream::halves::{ReadHalf, WriteHalf};
pub use stream::{Stream, StreamListener};

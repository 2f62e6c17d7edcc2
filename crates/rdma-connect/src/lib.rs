//! The errors of connections, and the messages by which two ends meet.
//!
//! Programs use `rdma-channel` or `rdma-async`, which re-export the errors.

#![forbid(unsafe_code)]

mod error;
mod message;

pub use error::close_reason::CloseReason;
pub use error::connect_error::ConnectError;
pub use error::lease_end::LeaseEnd;
pub use error::operation::Operation;
pub use error::peer::{PeerAddress, PeerId};
pub use error::rejected::Rejected;
pub use error::transport_error::{OperationError, TransportError};
pub use error::work::{FailedWork, RefusedWork, Reported, WorkId, cause_of};
pub use message::{LONGEST, Message, Parsed, Told, VERSION, Wrong, parse};

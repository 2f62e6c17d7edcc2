//! The messages of the communication manager (CM), byte by byte.
//!
//! A message is a [`Mad`]: 24 bytes of header, and 232 bytes that depend on the attribute ID (IBTA
//! volume 1, tables 106 to 120). Each message is a struct, and [`Message`] contains any of them.
//!
//! # Rules
//!
//! - Nothing panics, whatever the bytes. Nothing allocates.
//! - `parse` ignores reserved fields, and `emit` writes them as zeros. The fields of vendor options,
//!   of reliable datagrams and of extended transports count as reserved.
//! - Parsed private data always has the full size of its field: the sender's length is not on the
//!   wire. Shorter private data is written with zeros after it.
//! - A field that is narrower than its Rust type is written without the number's upper bits.
//!
//! # Examples
//!
//! ```
//! use rdma_proto::cm::CommId;
//! use rdma_proto::cm::wire::{Mad, Message, Rtu};
//!
//! let (local_id, remote_id) = (CommId::new(7), CommId::new(9));
//! let rtu = Rtu { local_id, remote_id, private_data: b"hello" };
//! let bytes = Mad { tid: 1, message: Message::Rtu(rtu) }.emit()?;
//! let Ok(Mad { message: Message::Rtu(parsed), .. }) = Mad::parse(&bytes) else { panic!() };
//! assert_eq!(parsed.local_id, local_id);
//! assert!(parsed.private_data.starts_with(b"hello\0"));
//! # Ok::<(), rdma_proto::cm::wire::TooLong>(())
//! ```

mod confirm;
mod disconnect;
mod error;
mod header;
mod mad;
mod mra;
mod reject;
mod reply;
mod request;
mod sidr;
mod timeout;

pub use confirm::{Drep, Rtu};
pub use disconnect::Dreq;
pub use error::{MadError, TooLong};
pub(crate) use header::{BAD_VERSION, UNSUPPORTED_METHOD, refusal};
pub use header::{CLASS_VERSION, Header, MAD_LEN};
pub use mad::{Mad, Message};
pub use mra::{Mra, Subject};
pub use reject::{Reason, Rej, Rejection};
pub use reply::{Answer, Rep};
pub use request::{Offer, Path, Req, Transport};
pub use sidr::{Query, Resolution, SidrRep, SidrReq, SidrStatus};
pub use timeout::Timeout;

//! Streams and messages.

mod blocking;
mod calls;
mod control_connection;
mod dying_lenders;
mod foreign_code;
mod idle;
mod messages;
mod offer_peers;
mod offers;
mod processes;
mod queues;
mod reports;
mod rig;
mod stream_ends;
mod streams;
mod unending;
#[cfg(feature = "serde")]
mod values;

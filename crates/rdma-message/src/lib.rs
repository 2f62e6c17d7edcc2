//! Messages, requests and streams over a reliable connection, without verbs, clock or threads.
//!
//! This crate decides which frames to post, and what the frames that arrive mean. The driver owns the
//! memory and the queue pair. It executes the [`Output`]s in their order, and reports frames and
//! completions.
//!
//! - [`Messages`] carries messages, requests and replies of any length up to a limit.
//! - [`Stream`] carries a stream of bytes in each direction.
//! - [`frame`] defines the frames, byte by byte.
//! - [`Options`] are the limits of an end.
//!
//! # The protocol
//!
//! **Frames.** Each frame is a SEND into a receive slot of the peer. Its completion there is solicited,
//! so that an end can sleep without being woken by its own completions. The first frame of each end is
//! a hello. [`frame`] has the table of all frames.
//!
//! **Credit.** A frame with data needs credit for one receive, and for all bytes of the frame. Every
//! frame carries the current limits, which count from the start of the connection.
//!
//! - A receive is granted again when its slot is posted again.
//! - The bytes of a stream are granted again when their chunk is released.
//! - The bytes of a message are granted again when the program takes the message. After it has taken
//!   all earlier messages, the bytes are granted as they arrive.
//! - A credit frame carries the limits if no other frame does. It is due after a quarter was released,
//!   or if the peer has too little credit for a frame.
//! - Hellos, credit frames, acknowledgements and close frames need no credit, because
//!   [`RESERVED_RECEIVES`] receives are posted for them. An end sends the next credit frame after the
//!   peer has acknowledged the last one. [`RESERVED_SENDS`] send slots are reserved likewise.
//!
//! A frame or a notice beyond credit ends the connection with an error that names the reason.
//!
//! **Short messages** are sent in parts, one after another. No other frame with data comes between
//! the parts of a message.
//!
//! **Long messages** are offered: the sender lends its memory and sends its address and key. The
//! receiver fetches the message with a READ, and counts it in the limits of its next frame. The
//! sender then frees its memory. Both ends bound the number and the bytes of messages that are
//! offered or fetched at a time. A message is sent in parts if the receiver does not fetch, or if the
//! sender cannot lend.
//!
//! **Order.** Messages and requests are delivered in the order of sending, whether they are offered
//! or not.
//!
//! **Calls.** A request and its reply have the same ID, which a connection never uses twice. A
//! request that the program drops is refused. An end that no longer wants a reply sends a cancel
//! frame, and discards the answer. Each request is answered once, by a reply or a refusal, even if it
//! was cancelled. Only the last frame of an end leaves requests without an answer. A call counts in
//! the peer's limit until its answer begins to arrive.
//!
//! **End.** Each direction finishes on its own. An end whose program no longer receives sets a flag in
//! its frames, so that the peer starts no further message. After both have, an end sends a close frame with the
//! reason [`FINISHED`](frame::CloseReason::FINISHED), once its own frames have completed and all
//! offers are over. The peer then knows that its last frames have arrived. It does not wait for their
//! completions, which may be lost because the first end disconnects. An end that aborts, or detects an
//! error, sends a close frame with another reason.
//!
//! # Rules
//!
//! - Input from a peer is untrusted. A frame is judged once, and everything that does not conform
//!   ends the connection. Nothing panics, and the peer cannot make anything grow beyond the options.
//! - Nothing allocates after the tables have grown to what the options allow.
//! - At most [`Options::send_queue`] requests are posted at a time.
//! - Memory that a device may still use is never released. When a connection ends, pending operations
//!   complete after the driver has drained the queue pair.
//! - Frames are reported in the order of their arrival. Completions of SENDs and READs may be
//!   reported late, in batches, and in any order.
//! - A SEND or a READ that fails breaks the queue pair. The driver drains it and reports the loss. It
//!   may do this at any time, such as when the close frame takes too long.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod counters;
mod credit;
mod error;
pub mod frame;
mod link;
mod messages;
mod options;
mod output;
mod stream;

pub use counters::Counters;
pub use error::{ConnectionError, OperationError, SendError};
pub use messages::Messages;
pub use options::{Options, OptionsError, RESERVED_RECEIVES, RESERVED_SENDS};
pub use output::{Chunk, Delivery, Incoming, Operation, Output, Payload, Transmit};
pub use stream::Stream;

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

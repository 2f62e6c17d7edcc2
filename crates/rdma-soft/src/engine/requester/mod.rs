//! The requester of a queue pair: its queue, its connection, the reason why it waits, and the completions of posted
//! requests, in order. The requester is driven under the send lock, either by the posting thread or by a thread that
//! finds that the requester can continue.

mod deferred;
pub(crate) mod direct;
pub(crate) mod drive;
pub(crate) mod finish;
mod local;
pub(crate) mod peer;
pub(crate) mod post;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod side;
pub(crate) mod single;
pub(crate) mod unreliable;
pub(crate) mod waiting;
pub(crate) mod wire;

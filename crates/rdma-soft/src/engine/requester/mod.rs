//! The requester of a queue pair: its queue, its connection, why it waits, and the completions of posted requests, in
//! order. The posting thread drives it, or a thread that finds that it can continue, under the send lock.

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

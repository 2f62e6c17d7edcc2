//! The requester of a queue pair: its queue, its connection, why it waits, and the completions of what was
//! posted, in order. It is driven by the thread that posts, or by whoever finds that it can go on, under
//! the send lock.

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

//! The common parts of a provider's objects: a handle, an owner, and an id for events.

pub(crate) mod forked;
pub(crate) mod handle;
pub(crate) mod id;
pub(crate) mod ownership;

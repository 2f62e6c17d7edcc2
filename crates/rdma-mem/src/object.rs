//! What every object of a provider has: a handle, an owner, and, where events name it, an id.

pub(crate) mod forked;
pub(crate) mod handle;
pub(crate) mod id;
pub(crate) mod ownership;

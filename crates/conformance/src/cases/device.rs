//! Devices, and the objects that they have.

pub(super) mod async_events;
pub(super) mod objects;
pub(super) mod queries;
pub(super) mod sizes;

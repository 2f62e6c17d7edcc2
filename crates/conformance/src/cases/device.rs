//! Devices and their objects.

pub(super) mod async_events;
pub(super) mod objects;
pub(super) mod queries;
pub(super) mod sizes;

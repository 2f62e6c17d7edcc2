//! Queue pairs: creating, connecting and querying them.

pub(crate) mod attributes;
pub(crate) mod builder;
pub(crate) mod capabilities;
mod create;
pub(crate) mod data_order;
pub(crate) mod datagrams;
mod drain;
pub(crate) mod modify;
mod object;
mod own_end;
mod own_gids;
pub(crate) mod prepared;
pub(crate) mod queue_pair;
mod raw;
mod settings;

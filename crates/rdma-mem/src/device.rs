//! Devices (listed and opened), their attributes, and protection domains.

pub(crate) mod attributes;
pub(crate) mod context;
mod counters;
pub(crate) mod extended_attributes;
pub(crate) mod fields;
pub(crate) mod gid;
pub(crate) mod gid_sysfs;
pub(crate) mod gid_table;
pub(crate) mod interface;
pub(crate) mod list;
pub(crate) mod listed;
pub(crate) mod pkey;
pub(crate) mod port;
pub(crate) mod protection_domain;
pub(crate) mod unknown;

//! Addresses and names of devices and ports.

pub(crate) mod gid;
pub(crate) mod guid;
pub(crate) mod lid;
pub(crate) mod pkey;

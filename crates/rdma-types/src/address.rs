//! Addresses and names: of devices, and of ports within a subnet, within a fabric, and globally.

pub(crate) mod gid;
pub(crate) mod guid;
pub(crate) mod lid;
pub(crate) mod pkey;

//! What names devices and ports: in a fabric, in a subnet, anywhere.

pub(crate) mod gid;
pub(crate) mod guid;
pub(crate) mod lid;
pub(crate) mod pkey;

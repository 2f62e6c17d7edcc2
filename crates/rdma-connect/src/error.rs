//! Errors from connecting, and from operations on a connection.

pub(crate) mod close_reason;
pub(crate) mod connect_error;
pub(crate) mod lease_end;
pub(crate) mod operation;
pub(crate) mod peer;
pub(crate) mod rejected;
pub(crate) mod transport_error;
pub(crate) mod work;

//! The completion table: what a device says of requests that are not in flight releases nothing,
//! and what it does not say of unsignaled ones is found out.

mod lies;
mod unsignaled;

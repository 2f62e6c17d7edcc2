//! The C ABI: shims that turn the calls of a libibverbs program into calls of the engine.
//!
//! Every pointer here is a program's. The shims trust it as libibverbs does (SAFETY.md F1): it is of
//! the stated type, was made by this provider, and is not destroyed during the call.
//!
//! - `table` has the verbs as libibverbs names them, and `device/context` the functions that a context points to.
//! - `block` has the objects behind a program's pointers. `errno` and `convert` turn results and values into C's.
//! - The verbs are in a folder for each kind of object: `device`, `memory` (domains, regions, windows), `completion`
//!   (completion queues and events), `queue_pair` (with shared receive queues and address handles).
//! - `work` posts: `post` reads lists of work requests, `wr` builds requests by function calls.
#![allow(unsafe_code)]

mod absent;
mod block;
mod completion;
mod convert;
mod device;
mod errno;
pub(crate) mod fork;
#[cfg(not(loom))]
pub(crate) mod interface {
    pub(crate) use rdma_sys::{InterfaceAddress, interface_addresses};
}
mod memory;
mod queue_pair;
mod table;
#[cfg(test)]
mod tests;
mod work;

pub use rdma_sys::Verbs;
pub(crate) use table::register;
pub use table::verbs;

//! The C ABI: shims that turn the calls of a libibverbs program into calls of the engine.
//!
//! Every pointer here comes from a program. Like libibverbs, the shims rely on three facts (SAFETY.md F1). It is of the
//! stated type, it was made by this provider, and it is not destroyed during the call.
//!
//! - `table` has the verbs under libibverbs's names, and `device/context` the functions that a context points to.
//! - `block` has the objects that a program's pointers refer to. `errno` and `convert` turn results and values into
//!   their C forms.
//! - Each kind of object has a folder for its verbs: `device`, `memory` (domains, regions, windows), `completion`, and
//!   `queue_pair` (with shared receive queues and address handles).
//! - `work` posts: `post` reads lists of work requests, and `wr` builds requests by function calls.
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

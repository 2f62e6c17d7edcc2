//! The C ABI: functions that turn the calls of a libibverbs program into calls to the engine.
//!
//! Every pointer here comes from a program. Like libibverbs, these functions rely on three facts about each pointer
//! (SAFETY.md F1). It has the stated type. If it is a handle, this provider made it. Its object is not destroyed during
//! the call.
//!
//! - `table` contains the verbs under the names of libibverbs, and `device/context` the functions that a context points
//!   to.
//! - `block` contains the objects that a program's pointers refer to. `errno` and `convert` turn results and values
//!   into their C forms.
//! - Each kind of object has a folder for its verbs: `device`, `memory` (domains, regions, windows), `completion`, and
//!   `queue_pair` (with shared receive queues and address handles).
//! - `work` posts requests: `post` reads lists of work requests, and `wr` builds requests from function calls.
#![allow(unsafe_code)]

mod absent;
mod block;
mod completion;
mod convert;
mod device;
pub(crate) mod environment {
    pub(crate) use rdma_sys::path_variable;
}
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

//! `libibverbs.so.1` over the software device.
//!
//! `cargo xtask dropin` links this library into a file that unmodified programs load in place of the distribution's
//! libibverbs. Every function either forwards to a table of verbs, or implements a function of libibverbs that the table
//! lacks. The table is that of `rdma-soft`, or that of the distribution's libibverbs if its devices are listed too:
//!
//! - `provider` finds the table of an object, `list` has the device list, and `system` loads the distribution's library.
//! - `device`, `memory`, `completion`, `queue_pair` and `text` forward (`forward`). A function that the table lacks
//!   fails as in libibverbs with a provider that lacks it.
//! - `buffer` and `newer` have functions that are newer than the headers of `rdma-sys`.
//! - `gid`, `rate` and `marshal` convert values, and `sysfs` reads files.
//! - `driver` has the symbols that libraries of providers import, such as `libmlx5.so.1`. These functions jump to those
//!   of the distribution's library. If it is not loaded, no device belongs to a provider's library, and they do nothing.
//! - `stats` records the counters of the process, for `rdma-soft-run`.
//!
//! The file `libibverbs.map` has the symbol versions. A function with a type in `rdma_sys::functions` is compared with
//! that type (`const _`), because C would not notice a difference.
//!
//! `no_mangle` is unsafe because two functions of one name would clash. tidy allows C symbols only in this crate, on
//! which no Rust program depends.
//!
//! No panic unwinds into C: the library is compiled with `panic = "abort"`, and prints nothing before it aborts.

mod buffer;
mod completion;
mod device;
mod driver;
mod forward;
mod gid;
mod list;
mod marshal;
mod memory;
mod newer;
mod provider;
mod queue_pair;
mod rate;
mod refusal;
mod stats;
mod sysfs;
mod system;
mod text;

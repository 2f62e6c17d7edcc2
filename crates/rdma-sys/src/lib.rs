//! The raw interface of libibverbs: its types, its functions as a table, its inline functions, its
//! errors.
//!
//! This is the lowest layer, for crates that build safe ones. Everything is spelled as in C,
//! including raw pointers; the manual pages of rdma-core (`man ibv_post_send` …) are its
//! documentation.
//!
//! # Finding a provider
//!
//! The crate links no library: a program that uses it builds with a Rust toolchain alone, and
//! starts on a machine without RDMA. Functions are called through a table, [`Verbs`]. A table comes
//! from [`system`], the installed libibverbs, or from [`register`], which adds the table of a
//! software device. [`providers`] lists them in the order of `RDMA_PROVIDERS`.
//!
//! | variable | meaning |
//! |---|---|
//! | `RDMA_PROVIDERS` | which providers, in which order: `soft,system` |
//! | `RDMA_LIBIBVERBS` | the path of the library to load instead of `libibverbs.so.1` |
//! | `RDMA_LIBRDMACM` | the path of the library to load instead of `librdmacm.so.1` ([`cm`]) |
//!
//! ```
//! use rdma_sys::{Errno, providers};
//!
//! for provider in providers()? {
//!     let Ok(verbs) = provider.verbs else { continue };
//!     let mut count = 0;
//!     // SAFETY: `count` is alive, and the list is freed once.
//!     match Errno::check_null(unsafe { (verbs.get_device_list)(&raw mut count) }) {
//!         Ok(list) => {
//!             println!("{}: {count} devices", provider.name);
//!             // SAFETY: the list is the one above, and nothing of it is used after this.
//!             unsafe { (verbs.free_device_list)(list.as_ptr()) };
//!         }
//!         Err(errno) => println!("{}: {errno}", provider.name),
//!     }
//! }
//! # Ok::<(), rdma_sys::UnknownProvider>(())
//! ```
//!
//! The feature `linked` adds another table, `linked()`, for the libibverbs with which the program
//! is linked. It needs cmake, libclang and the development packages of libibverbs to build.
//!
//! # The types
//!
//! The types are generated from the headers of rdma-core 55 (`cargo xtask bindgen`) and checked
//! against the headers at compile time. C's enums are open integers with constants
//! ([`ibv_wc_status`]): a value that a newer kernel introduces is data, not an error. `Default` is
//! all zeros, as `memset` makes it.
//!
//! The structs are meant to be accessed through pointers. A provider creates the structs of objects
//! (`ibv_context`, `ibv_qp`, `verbs_context` …). Such a struct grows at one end, where the
//! provider's version may have more or fewer fields than this crate's. Bindings of newer headers
//! may also add fields to any struct. Therefore this crate's semver promise does not cover fields.
//! Create values with `..Default::default()`, and expect to adapt code that lists all fields of a
//! struct.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("rdma-sys needs 64-bit Linux: the verbs are an interface of its kernel");

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("rdma-sys knows the layout of the C structs on x86-64 and aarch64 alone");

pub mod cm;
mod elf;
mod environment;
mod errno;
mod generated;
mod inline;
mod interface;
#[cfg(feature = "linked")]
mod linked;
mod load;
mod load_error;
mod mads;
mod os;
mod process;
mod registry;
mod table;
mod unimplemented;

pub use environment::path_variable;
pub use errno::Errno;
/// The signatures of libibverbs' functions, as the headers declare them.
pub use generated::functions;
pub use generated::verbs::*;
pub use inline::*;
pub use interface::{InterfaceAddress, interface_addresses};
#[cfg(feature = "linked")]
pub use linked::linked;
pub use load::{is_installed, system, system_at};
pub use load_error::LoadError;
pub use mads::{AddressedMad, MadClock, Mads};
pub use process::{PerProcess, Process, SignalsBlocked};
pub use registry::{Provider, UnknownProvider, providers, register};
pub use table::{NoteFile, NoteMapped, Unsupported, Verbs, WakeEarly, WantsFile};

/// Runs the README's example as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

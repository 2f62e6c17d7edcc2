//! The bindings: what `cargo xtask bindgen` writes, and the lints that do not suit it.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnameable_types,
    missing_debug_implementations
)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]
#![allow(clippy::borrow_as_ptr, clippy::ptr_as_ptr, clippy::exhaustive_enums)]

pub mod functions;
#[cfg(target_arch = "aarch64")]
mod layout_aarch64;
#[cfg(target_arch = "x86_64")]
mod layout_x86_64;
// All that libibverbs exports, of which the table takes what is used.
#[cfg(feature = "linked")]
#[allow(dead_code, unreachable_pub)]
pub(crate) mod symbols;
pub(crate) mod verbs;

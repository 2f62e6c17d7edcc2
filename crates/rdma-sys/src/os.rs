//! Definitions from the C library and the kernel's headers that the generated bindings use.

#![allow(non_camel_case_types)]

pub(crate) use libc::{pthread_cond_t, pthread_mutex_t, timespec};

/// A number in big-endian byte order.
pub(crate) type __be16 = u16;
/// A number in big-endian byte order.
pub(crate) type __be32 = u32;
/// A number in big-endian byte order.
pub(crate) type __be64 = u64;
pub(crate) type __u8 = u8;
pub(crate) type __u16 = u16;
pub(crate) type __u32 = u32;
pub(crate) type __u64 = u64;

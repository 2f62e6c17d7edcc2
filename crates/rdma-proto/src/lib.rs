//! RoCEv2 without sockets, clock or threads.
//!
//! What a packet means is decided here; who carries it, and when, is decided by the caller. So far there
//! is the lowest part, [`wire`]: the packets, byte by byte.
//!
//! "IBTA" stands for the InfiniBand Architecture Specification, volume 1. RoCEv2 is its annex A17.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

#[cfg(test)]
extern crate std;

pub mod wire;

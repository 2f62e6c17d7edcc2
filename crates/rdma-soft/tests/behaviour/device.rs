//! The device through its C ABI: its functions, its refusals, and the ends of requests.
#![allow(clippy::disallowed_types)] // Programs may have maps in any order.
#![allow(clippy::cast_possible_truncation)] // Small numbers, and the device is 64-bit only.

mod abi;
mod address_handles;
mod atomics;
mod captures;
mod closing;
mod counters;
mod datagrams;
mod dmabuf;
mod drained;
mod environment;
mod events;
mod extended_polls;
mod extended_posts;
mod faults;
mod flush;
mod groups;
mod half_copied;
mod held;
mod invalidation;
mod keys;
mod likeness;
mod mapped;
mod networks;
mod not_ready;
mod numbers;
mod overflow;
mod profiles;
mod queries;
mod queues;
mod raised_limits;
mod registration;
mod rig;
mod schedules;
mod sends;
mod shared_receives;
mod single_posts;
mod states;
mod turns;
mod unmapped;
mod unreachable;
mod unreliable;
mod windows;
mod wire;
mod wire_counters;

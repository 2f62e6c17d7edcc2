//! The device through its C ABI: what it does, what it refuses, and how requests end.

mod operations;
mod rig;

//! What the tests and benches of this workspace share. Never published.
//!
//! - [`alloc_counter`]: proof that a piece of code does not allocate, on any thread.
//! - [`beside_c`]: benches of instructions, beside C.
//! - [`c_loops`]: C programs that post and poll, to compare with.
//! - [`callgrind`]: how many instructions a piece of code takes.
//! - [`crowd`]: clients of TCP that hold on.
//! - [`events`]: events of `tracing`, as a test hears them.
//! - [`fault`]: faults that a test plants on purpose, as plain data.
//! - [`features`]: whether a device has what a test needs.
//! - [`flag`]: a flag for threads that go on until others have ended.
//! - [`fuzz`]: what the inputs of fuzz targets are made of.
//! - [`program`]: starting programs of the target, in an emulator where there is one.
//! - [`quiet_device`]: a device that does nothing, beside which the caller's own code is counted.
//! - [`rig`]: the verbs as C calls them, for tests of devices.
//! - [`system_calls`]: proof that a piece of code makes no system call.
//! - [`mod@twins`]: what must not compile, beside what does.
//!
//! Of the workspace it uses only the two lowest crates, so that every other one can use it.

pub mod alloc_counter;
pub mod beside_c;
pub mod c_loops;
pub mod callgrind;
pub mod crowd;
pub mod events;
pub mod fault;
pub mod features;
pub mod flag;
pub mod fuzz;
pub mod program;
pub mod quiet_device;
pub mod rig;
pub mod system_calls;
pub mod twins;
pub mod usage;

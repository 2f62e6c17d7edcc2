//! Code that the tests and benches of this workspace share. Never published.
//!
//! - [`alloc_counter`]: proof that a piece of code does not allocate, on any thread.
//! - [`beside_c`]: benches that compare instruction counts with C.
//! - [`c_loops`]: C programs that post and poll, for comparison.
//! - [`callgrind`]: counts of the instructions of a piece of code.
//! - [`crowd`]: TCP clients that stay connected.
//! - [`events`]: events of `tracing`, collected by a test.
//! - [`fault`]: faults that a test plants on purpose, as plain data.
//! - [`features`]: checks whether a device has the features that a test needs.
//! - [`flag`]: a flag for threads that continue until others have ended.
//! - [`fuzz`]: the format of the inputs of fuzz targets.
//! - [`program`]: starting programs of the target, in an emulator if necessary.
//! - [`quiet_device`]: a device that does nothing, for counting the caller's own code.
//! - [`rig`]: the verbs as C calls them, for tests of devices.
//! - [`system_calls`]: proof that a piece of code makes no system call.
//! - [`mod@twins`]: code that must not compile, next to code that does.
//!
//! It only uses the two lowest crates of the workspace, so that every other crate can use it.

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

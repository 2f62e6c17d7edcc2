//! Code that the tests and benches of this workspace share. Never published.
//!
//! - [`alloc_counter`]: an allocator with which a test proves that code does not allocate, on any
//!   thread.
//! - [`beside_c`]: benches that compare instruction counts with C.
//! - [`c_loops`]: loops in C that post and poll, to compare with.
//! - [`callgrind`]: counts the instructions of a piece of code.
//! - [`crowd`]: TCP clients that connect and stay connected.
//! - [`events`]: collects the events of `tracing` in a test.
//! - [`fault`]: deliberate faults, as plain data.
//! - [`features`]: checks whether a device has the features that a test needs.
//! - [`flag`]: a flag for a thread that runs until other threads have ended.
//! - [`fuzz`]: the input format of fuzz targets.
//! - [`loopback`]: addresses that no other test uses.
//! - [`namespaces`]: runs programs in namespaces of their own.
//! - [`packages`]: programs and headers of the distribution.
//! - [`program`]: starts programs that are built for the tests' target, in an emulator if
//!   necessary.
//! - [`quiet_device`]: a device that does nothing, used to count the caller's own instructions.
//! - [`rig`]: the verbs as C calls them, for tests of devices.
//! - [`system_calls`]: a test that a piece of code makes no system call.
//! - [`mod@twins`]: tests of code that must not compile, each next to code that does.
//! - [`usage`]: measures the resources that a process uses, for benches.
//!
//! This crate uses only the two lowest crates of the workspace, so that every other crate can use
//! it.

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
pub mod loopback;
pub mod namespaces;
pub mod packages;
pub mod program;
pub mod quiet_device;
pub mod rig;
pub mod system_calls;
pub mod twins;
pub mod usage;

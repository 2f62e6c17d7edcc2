//! What the fuzz target `work_request` runs: any bytes become what a program may hand to the device, and what comes
//! of it has to be what the contract says. It panics if not. What strangers hand to it is in [`links`].
//!
//! Tests run the same on the seeds and on random bytes (`tests/fuzz`), the fuzzer of `crates/fuzz`
//! on what it makes up. An input is records of numbers, see [`input`]; behind its end are zeros.
//! Nothing waits: on the device that sends packets time is virtual, and on the others requests wait
//! without a limit or not at all.

mod calls;
mod end;
mod input;
pub(crate) mod links;
mod request;
mod run;
mod world;

pub(crate) use input::{Element, Send, Setting, Tag};
pub(crate) use links::{local_link, udp_link};
pub(crate) use run::run as work_request;

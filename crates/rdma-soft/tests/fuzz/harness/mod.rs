//! The code of the fuzz target `work_request`. Any bytes become calls that a program may make to the device, and the
//! results must satisfy the contract: it panics if they do not. Data from strangers is in [`links`].
//!
//! Tests run the same code on the seeds and on random bytes (`tests/fuzz`), and the fuzzer of `crates/fuzz` on
//! generated inputs. An input is records of numbers, see [`input`]; it is extended with zeros. Nothing blocks: on the
//! device that sends packets time is virtual. On the others requests wait without a limit or not at all.

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

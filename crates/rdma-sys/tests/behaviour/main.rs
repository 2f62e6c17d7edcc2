//! The behaviour of the crate, in one program with a module for each subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failing helper fails its test.

mod cm_layout;
mod cm_library;
mod inline;
mod inline_extended;
mod inline_mw;
mod layout;
mod system;

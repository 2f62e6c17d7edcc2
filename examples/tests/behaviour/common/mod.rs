//! What tests of several programs share.

pub(crate) mod process;

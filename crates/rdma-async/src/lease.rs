//! Memory that one end of a connection lends to the other for a limited time. This module contains the state of both
//! ends, and their frames on the control connection.

pub(crate) mod borrower;
pub(crate) mod connection;
pub(crate) mod error;
pub(crate) mod frame;
pub(crate) mod lender;
pub(crate) mod limits;
pub(crate) mod outbox;
pub(crate) mod own;
pub(crate) mod remote;
pub(crate) mod table;

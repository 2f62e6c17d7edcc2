//! The result of an event for a connection.

use crate::error::Error;
use crate::event::Event;

/// The state of a connection after an event: a later state `N`, or the same state `S`.
#[derive(Debug)]
#[must_use = "it contains the connection, which ends when it is dropped"]
#[non_exhaustive]
pub enum Step<S, N> {
    /// The event moved the connection to its next state.
    Next(N),
    /// The event belongs to another connection. Both are unchanged.
    Same(S, Event),
    /// The connection was not established. Its queue pair was destroyed.
    Failed(Error),
}

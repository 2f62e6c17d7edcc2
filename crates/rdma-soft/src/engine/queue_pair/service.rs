//! The transport services.

/// The transport service of a queue pair (IBTA volume 1, section 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// RC.
    ReliableConnection,
    /// UC.
    UnreliableConnection,
    /// UD.
    UnreliableDatagram,
}

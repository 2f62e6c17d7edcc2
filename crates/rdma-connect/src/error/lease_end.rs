//! Reasons why a lease ended.

/// The reason why a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// The borrower returned the memory.
    #[error("it was returned")]
    Returned,
    /// The borrower returned the memory after one of its operations on the memory failed. If the device refused that
    /// operation, the connection ends too, and the lender may get [`Disconnected`](Self::Disconnected) instead.
    #[error("it was returned after one of the borrower's operations on it failed")]
    BorrowerFailed,
    /// The time of the lease is up, or nearly so.
    #[error("its time is up")]
    TimeOver,
    /// The lender revoked the lease before its time was up.
    #[error("the lender has revoked it")]
    Revoked,
    /// The queue pair to which the memory was lent has ended.
    #[error("the queue pair that it was lent to has ended")]
    Disconnected,
}

rdma_types::debug_messages!(
    enum LeaseEnd {
        Returned,
        BorrowerFailed,
        TimeOver,
        Revoked,
        Disconnected,
    }
);

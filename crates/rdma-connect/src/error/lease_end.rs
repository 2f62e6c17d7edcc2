//! The reason for the end of a lease.

/// The reason for the end of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// The borrower has returned it.
    #[error("it was returned")]
    Returned,
    /// The borrower has returned it after one of its operations on the memory failed. If the device refused that
    /// operation, the connection ends too, and the lender may see [`Disconnected`](Self::Disconnected) instead.
    #[error("it was returned after an operation of the borrower on it failed")]
    BorrowerFailed,
    /// Its time has expired, or nearly so.
    #[error("its time is over")]
    TimeOver,
    /// The lender has revoked it before its time.
    #[error("the lender has taken it back")]
    Revoked,
    /// The queue pair that it was lent to has ended.
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

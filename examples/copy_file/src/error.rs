//! Why a copy failed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdma::channel::{CloseReason, TransportError};
use rdma::qp::WorkErrorClass;

/// Why a copy failed, in words for the person who started it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Sizes that are not allowed.
    #[error("{0}")]
    Settings(String),
    /// A file could not be read or written.
    #[error("cannot {action} `{}`: {source}", .path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Source and destination are one file.
    #[error("source and destination are the same file, `{}`", .path.display())]
    SameFile {
        /// The destination, as it was given.
        path: PathBuf,
    },
    /// The stream that is copied could not be read.
    #[error("cannot read the source: {0}")]
    Read(#[source] io::Error),
    /// The stream that is made could not be written.
    #[error("cannot write the destination: {0}")]
    Write(#[source] io::Error),
    /// Device, domain or memory.
    #[error(transparent)]
    Memory(#[from] rdma::device::Error),
    /// Memory could not be registered.
    #[error("cannot register {bytes} bytes: {source}. Or use a smaller --chunk or --depth")]
    Registration {
        /// How much was to be registered, on this side.
        bytes: usize,
        /// What the device said.
        source: rdma::device::Error,
    },
    /// Queues.
    #[error(transparent)]
    Queue(#[from] rdma::qp::Error),
    /// A request was not posted.
    #[error("a request was refused: {0}")]
    Post(#[from] rdma::qp::PostError),
    /// A request failed.
    #[error("a request failed: {0}")]
    Completion(#[from] rdma::qp::WorkError),
    /// The connection.
    #[error(transparent)]
    Channel(TransportError),
    /// What arrived is not what was sent.
    #[error(
        "the data was damaged on its way: {expected_bytes} bytes with checksum {expected:08x} were \
         sent, {bytes} bytes with checksum {found:08x} arrived; nothing was written"
    )]
    Corrupt {
        /// The sender's CRC-32.
        expected: u32,
        /// The receiver's.
        found: u32,
        /// How many bytes were sent.
        expected_bytes: u64,
        /// How many arrived.
        bytes: u64,
    },
    /// The other side said what it must not say.
    #[error("the other side does not follow the protocol: {0}")]
    Protocol(String),
    /// A message was longer than its slot.
    #[error("a message of {length} bytes does not fit into its slot")]
    TooLong {
        /// How long it was.
        length: usize,
    },
    /// Nothing happened for too long.
    #[error("nothing came from the other side for {patience:?}; given up")]
    Stalled {
        /// How long it was waited for.
        patience: Duration,
    },
    /// Somebody wanted it to end.
    #[error("interrupted; nothing was written")]
    Cancelled,
    /// The processes did not meet.
    #[error(transparent)]
    Meeting(#[from] rdma_examples_common::out_of_band::OutOfBandError),
    /// The connection between the processes.
    #[error("the TCP connection to the other process failed: {0}")]
    Line(#[source] io::Error),
    /// Their devices do not fit.
    #[error("{0}")]
    Unreachable(String),
    /// The other process has said why it ends.
    #[error("the other process has given up: {0}")]
    Told(String),
    /// The other process did not say why.
    #[error("the other process ended before it said that the copy was complete")]
    Ended,
    /// Nothing comes from the other process, not even that it runs.
    #[error("nothing was heard of the other process for {patience:?}: is it stopped, or its host?")]
    Silent {
        /// For how long.
        patience: Duration,
    },
    /// The other side ended first; its error is the cause.
    #[error("the other side of the transfer ended too early")]
    OtherSide,
}

impl Error {
    pub(crate) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    /// Of a request that was flushed, what had failed before it.
    pub(crate) fn or_cause(self, closed: Option<CloseReason>) -> Self {
        match closed {
            Some(CloseReason::Work { error, .. }) if self.is_flush() => Self::Completion(error),
            _ => self,
        }
    }

    fn is_flush(&self) -> bool {
        matches!(self, Self::Completion(error) if error.class() == WorkErrorClass::Flushed)
    }

    /// Whether it only tells that something else went wrong before.
    pub(crate) fn is_consequence(&self) -> bool {
        matches!(self, Self::OtherSide) || self.is_flush()
    }

    /// Whether the end of the other process may be why.
    pub(crate) fn may_be_consequence(&self) -> bool {
        matches!(
            self,
            Self::OtherSide
                | Self::Completion(_)
                | Self::Channel(_)
                | Self::Post(_)
                | Self::Queue(_)
        )
    }

    /// Says which file the stream was that could not be read.
    pub(crate) fn of_source(self, path: &Path) -> Self {
        match self {
            Self::Read(error) => Self::file("read", path, error),
            other => other,
        }
    }

    /// Says which file the stream was that could not be written.
    pub(crate) fn of_destination(self, path: &Path) -> Self {
        match self {
            Self::Write(error) => Self::file("write", path, error),
            other => other,
        }
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::WorkError(work) => Self::Completion(work.error),
            TransportError::Closed { reason: CloseReason::Work { error, .. }, .. } => {
                Self::Completion(error)
            }
            TransportError::PostError(refused) => Self::Post(refused.error),
            TransportError::IbvError(error) => Self::Queue(*error),
            other => Self::Channel(other),
        }
    }
}

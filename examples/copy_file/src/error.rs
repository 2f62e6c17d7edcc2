//! The errors of a copy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdma::channel::{CloseReason, TransportError};
use rdma::qp::WorkErrorClass;

/// The reason why a copy failed, with a message for the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The chunk size or the depth is outside the allowed range.
    #[error("{0}")]
    Settings(String),
    /// A file could not be read or written.
    #[error("cannot {action} `{}`: {source}", .path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The source and the destination are the same file.
    #[error("source and destination are the same file, `{}`", .path.display())]
    SameFile {
        /// The destination, as the user has given it.
        path: PathBuf,
    },
    /// The source stream could not be read.
    #[error("cannot read the source: {0}")]
    Read(#[source] io::Error),
    /// The destination stream could not be written.
    #[error("cannot write the destination: {0}")]
    Write(#[source] io::Error),
    /// An error of the device, domain or memory.
    #[error(transparent)]
    Memory(#[from] rdma::device::Error),
    /// The memory could not be registered.
    #[error("cannot register {bytes} bytes: {source}. Or use a smaller --chunk or --depth")]
    Registration {
        /// The number of bytes that this side tried to register.
        bytes: usize,
        /// The device's error.
        source: rdma::device::Error,
    },
    /// An error of the queues.
    #[error(transparent)]
    Queue(#[from] rdma::qp::Error),
    /// A request was not posted.
    #[error("a request was refused: {0}")]
    Post(#[from] rdma::qp::PostError),
    /// A request failed.
    #[error("a request failed: {0}")]
    Completion(#[from] rdma::qp::WorkError),
    /// An error of the connection.
    #[error(transparent)]
    Channel(TransportError),
    /// The data that arrived differs from what was sent.
    #[error(
        "the data was damaged in transit: {expected_bytes} bytes with checksum {expected:08x} were \
         sent, {bytes} bytes with checksum {found:08x} arrived; nothing was written"
    )]
    Corrupt {
        /// The CRC-32 that the sender computed.
        expected: u32,
        /// The CRC-32 that the receiver computed.
        found: u32,
        /// The number of bytes that were sent.
        expected_bytes: u64,
        /// The number of bytes that arrived.
        bytes: u64,
    },
    /// The other side did not follow the protocol.
    #[error("the other side does not follow the protocol: {0}")]
    Protocol(String),
    /// A message was longer than its slot.
    #[error("a message of {length} bytes does not fit into its slot")]
    TooLong {
        /// The length of the message.
        length: usize,
    },
    /// Nothing arrived from the other side within the time limit.
    #[error("nothing arrived from the other side for {patience:?}: check whether it is stopped")]
    Stalled {
        /// The time limit.
        patience: Duration,
    },
    /// The caller cancelled the copy.
    #[error("interrupted; nothing was written")]
    Cancelled,
    /// The two processes could not connect to each other.
    #[error(transparent)]
    Meeting(#[from] rdma_examples_common::out_of_band::OutOfBandError),
    /// The TCP connection between the processes failed.
    #[error("the TCP connection to the other process failed: {0}")]
    Line(#[source] io::Error),
    /// The devices of the two processes cannot reach each other.
    #[error("{0}")]
    Unreachable(String),
    /// The other process reported why it has given up.
    #[error("the other process has given up: {0}")]
    Reported(String),
    /// The other process ended without reporting why.
    #[error("the other process ended before it confirmed the copy: read its output")]
    Ended,
    /// The other process has sent nothing for too long, not even a sign of life.
    #[error(
        "no sign of life from the other process for {patience:?}: check whether it or its host is \
         stopped"
    )]
    Silent {
        /// The time that this process has waited for a sign of life.
        patience: Duration,
    },
    /// The other side ended first. Its error is the cause.
    #[error("the other side of the transfer ended too early")]
    OtherSide,
}

impl Error {
    pub(crate) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.to_owned(), source }
    }

    /// If this is the error of a flushed request, returns the error that caused the flush instead.
    pub(crate) fn or_cause(self, closed: Option<CloseReason>) -> Self {
        match closed {
            Some(CloseReason::Work { error, .. }) if self.is_flush() => Self::Completion(error),
            _ => self,
        }
    }

    fn is_flush(&self) -> bool {
        matches!(self, Self::Completion(error) if error.class() == WorkErrorClass::Flushed)
    }

    /// Returns true if this error is only a consequence of an earlier failure.
    pub(crate) fn is_consequence(&self) -> bool {
        matches!(self, Self::OtherSide) || self.is_flush()
    }

    /// Returns true if this error may be a consequence of the other process having ended.
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

    /// Adds the path of the source file to an error of reading it.
    pub(crate) fn of_source(self, path: &Path) -> Self {
        match self {
            Self::Read(error) => Self::file("read", path, error),
            other => other,
        }
    }

    /// Adds the path of the destination file to an error of writing it.
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

//! Standard output and standard error, which may be closed.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct NotWritten(pub(crate) io::Error);

/// Prints a line to standard output, and flushes it.
///
/// # Errors
/// The reader has closed the pipe, or the disk is full.
pub(crate) fn print(line: impl Display) -> Result<(), NotWritten> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(NotWritten)
}

/// Prints a line to standard error. A failure is ignored: there is nowhere to report it.
pub(crate) fn warn(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

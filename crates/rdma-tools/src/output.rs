//! Output to files, and to standard output and standard error, which may be closed.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The error of writing to standard output.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct NotWritten(io::Error);

/// Prints a line to standard output, and flushes it. A closed pipe is no error: `rdmatool devices | head -1` has printed
/// the lines that its reader wanted, and the exit status stays that of the command.
///
/// # Errors
/// The disk is full.
pub(crate) fn print(line: impl Display) -> Result<(), NotWritten> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(NotWritten(error)),
        _ => Ok(()),
    }
}

/// Prints a line to standard error. A failure is ignored, because there is nowhere else to report it.
///
/// The line may quote a peer or a file, so control characters are replaced.
pub(crate) fn warn(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", printable(&line.to_string()));
}

/// Replaces the control characters in a text with `?`, except line feeds and tabs.
pub(crate) fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c };
    text.chars().map(plain).collect()
}

/// A file for the result of a long operation, opened before the operation starts.
#[derive(Debug)]
pub(crate) struct Destination {
    file: File,
    path: PathBuf,
    /// Whether [`open`](Self::open) created the file and nothing has been written to it.
    is_new: bool,
}

impl Destination {
    /// Opens the file, and creates it if it does not exist. The old contents stay until [`write`](Self::write).
    ///
    /// # Errors
    /// The file cannot be opened for writing.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let (file, is_new) = match created {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).create(true).truncate(false).open(path), false)
            }
            created => (created, true),
        };
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, path: path.to_owned(), is_new })
    }

    /// Replaces the contents.
    ///
    /// # Errors
    /// The disk is full, or the reader of a pipe has closed it.
    pub(crate) fn write(mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.is_new = false;
        // A pipe has no length to set.
        let is_regular = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        let emptied = if is_regular { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(bytes));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for Destination {
    /// Removes a file that was created for a result if no result was written.
    fn drop(&mut self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path);
        }
    }
}

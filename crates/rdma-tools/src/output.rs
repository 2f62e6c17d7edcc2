//! Output to files, and to standard output and standard error, which may be closed.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The error when standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct NotWritten(io::Error);

/// Prints a line to standard output, and flushes it. A closed pipe is not an error. After `rdmatool
/// devices | head -1`, the pipe's reader has all the lines it wanted, and the exit status stays
/// that of the command.
///
/// # Errors
/// Returns an error if the line cannot be written for another reason, for example because the disk
/// is full.
pub(crate) fn print(line: impl Display) -> Result<(), NotWritten> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(NotWritten(error)),
        _ => Ok(()),
    }
}

/// Prints a line to standard error. A failure is ignored, because there is nowhere else to report it.
///
/// The line may quote text from a peer or a file, so control characters are replaced.
pub(crate) fn warn(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", printable(&line.to_string()));
}

/// Replaces all control characters in a text except line feeds and tabs with `?`.
pub(crate) fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() && c != '\n' && c != '\t' { '?' } else { c };
    text.chars().map(plain).collect()
}

/// A file for the result of a long operation, checked before the operation starts.
#[derive(Debug)]
pub(crate) struct Destination {
    /// The file, if it existed before. Otherwise [`write`](Self::write) creates it, so that a killed program leaves no
    /// empty file.
    file: Option<File>,
    path: PathBuf,
}

impl Destination {
    /// Checks that the file can be written. The contents of an existing file stay until [`write`](Self::write).
    ///
    /// # Errors
    /// Returns an error if the file can neither be opened for writing nor created.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let created = OpenOptions::new().write(true).create_new(true).open(path);
        let file = match created {
            Ok(_) => fs::remove_file(path).map(|()| None),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => open(path).map(Some),
            Err(error) => Err(error),
        };
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Replaces the contents of the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, for example because the disk is full or a
    /// pipe has no reader.
    pub(crate) fn write(self, bytes: &[u8]) -> anyhow::Result<()> {
        let Self { file, path } = self;
        let written = file.map_or_else(|| open(&path), Ok).and_then(|mut file| {
            // A pipe has no length to set.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(bytes)
        });
        written.with_context(|| format!("cannot write {}", path.display()))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

//! The source file.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::Error;

/// A regular file whose length must not change while it is open. A copy of a file that changes
/// could mix several of its states.
#[derive(Debug)]
pub(crate) struct SourceFile {
    file: File,
    metadata: Metadata,
    read: u64,
}

impl SourceFile {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::try_open(path).map_err(|source| Error::file("read", path, source))
    }

    fn try_open(path: &Path) -> io::Result<Self> {
        // This is checked before opening the file, because opening a FIFO would wait for its other
        // end.
        regular(&fs::metadata(path)?)?;
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Self { file, metadata, read: 0 })
    }

    /// Returns the metadata that the file had when it was opened.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Read for SourceFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.metadata.len();
        let read = self.file.read(buffer)?;
        self.read = self.read.saturating_add(read as u64);
        if self.read > length {
            return Err(io::Error::other(format!(
                "it grew while it was read: it had {length} bytes at first; try again when no program \
                 writes to it"
            )));
        }
        if read == 0 && !buffer.is_empty() && self.read < length {
            return Err(io::Error::other(format!(
                "it shrank while it was read: it had {length} bytes at first and ended after {}",
                self.read
            )));
        }
        Ok(read)
    }
}

/// Refuses a file that has no fixed length.
fn regular(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn all(length: usize) -> (tempfile::NamedTempFile, SourceFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; length]).unwrap();
        let source = SourceFile::open(file.path()).unwrap();
        (file, source)
    }

    #[test]
    fn an_unchanged_file_is_read_to_its_end() {
        for length in [0, 1, 4096] {
            let (_file, mut source) = all(length);
            let mut bytes = Vec::new();
            assert_eq!(source.read_to_end(&mut bytes).unwrap(), length);
        }
    }

    #[test]
    fn a_file_whose_length_changes_is_refused() {
        let mut buffer = [0; 64];
        let (file, mut source) = all(100);
        assert_eq!(source.read(&mut buffer).unwrap(), 64);
        file.as_file().set_len(64).unwrap();
        let error = source.read(&mut buffer).unwrap_err().to_string();
        assert!(error.contains("shrank") && error.contains("100 bytes"), "{error}");

        let (file, mut source) = all(64);
        assert_eq!(source.read(&mut buffer).unwrap(), 64);
        file.as_file().set_len(65).unwrap();
        assert!(source.read(&mut buffer).unwrap_err().to_string().contains("grew"));
    }

    #[test]
    fn a_source_that_is_not_a_regular_file_is_refused() {
        let error = SourceFile::open(Path::new("/")).unwrap_err().to_string();
        assert_eq!(error, "cannot read `/`: it is a directory");
        let error = SourceFile::open(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}

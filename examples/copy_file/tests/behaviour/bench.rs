//! A folder to copy in, and the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use copy_file::{Control, Error, Job, Settings, Summary, copy};
use tempfile::TempDir;

/// A folder with a file `source`.
pub(crate) struct Bench {
    folder: TempDir,
}

impl Bench {
    pub(crate) fn with_source(bytes: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("source"), bytes).unwrap();
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Returns the names in the folder, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> =
            fs::read_dir(self.folder()).unwrap().map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    /// Runs `copy_file source copy` with more arguments.
    pub(crate) fn program(&self, more: &[&str]) -> Output {
        self.command().args(["source", "copy"]).args(more).output().unwrap()
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(program());
        command.current_dir(self.folder());
        command
    }

    /// Copies within this process.
    pub(crate) fn copy(
        &self,
        device: &str,
        settings: Settings,
        control: Control<'_>,
    ) -> Result<Summary, Error> {
        let (source, destination) = (self.at("source"), self.at("copy"));
        copy(&Job { source, destination, device: device.to_owned(), settings }, control)
    }

    /// Checks that the copy failed without a trace, and returns its error message.
    pub(crate) fn failed(&self, result: Result<Summary, Error>) -> String {
        let error = result.unwrap_err().to_string();
        assert_eq!(self.names(), ["source"], "{error}");
        error
    }
}

/// Waits until this process has written some of the copy, whether that has a name or not.
pub(crate) fn wait_until_written(program: u32, bench: &Bench) {
    assert!(is_seen_writing(program, bench), "it has ended: {:?}", bench.names());
}

/// Like [`wait_until_written`], but returns false if the process ended before this one saw that.
pub(crate) fn is_seen_writing(program: u32, bench: &Bench) -> bool {
    let source = fs::canonicalize(bench.at("source")).unwrap();
    let folder = fs::canonicalize(bench.folder()).unwrap();
    let begun = |open: fs::DirEntry| {
        let Ok(place) = fs::read_link(open.path()) else { return false };
        let ours = place.starts_with(&folder) && place != source;
        ours && fs::metadata(open.path()).is_ok_and(|file| file.len() > 0)
    };
    let started = Instant::now();
    let descriptors = PathBuf::from(format!("/proc/{program}/fd"));
    loop {
        // A process that has ended has no descriptors.
        let open: Vec<_> = fs::read_dir(&descriptors).into_iter().flatten().flatten().collect();
        let has_ended = open.is_empty();
        if has_ended || open.into_iter().any(begun) {
            break !has_ended;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", bench.names());
        thread::yield_now();
    }
}

pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_copy_file"))
}

/// Checks that the program ended with this status, and returns its standard error.
pub(crate) fn said(output: &Output, status: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{said}");
    said
}

/// Returns bytes without a pattern, so that every error in order or position is found.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

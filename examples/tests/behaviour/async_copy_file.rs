//! `async_copy_file`: whole files, or none.

use std::fs;
use std::path::Path;

use crate::common::process::Process;

/// Creates a file of this length, and returns its path and that of its copy.
fn files(folder: &Path, length: usize) -> (String, String) {
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::write(&from, (0..length).map(|n| (n / 251 % 256).to_le_bytes()[0]).collect::<Vec<_>>())
        .unwrap();
    (from.to_str().unwrap().to_owned(), to.to_str().unwrap().to_owned())
}

#[test]
fn files_of_all_lengths_are_copied_between_tasks() {
    let folder = tempfile::tempdir().unwrap();
    for device in ["soft0", "softib0"] {
        // Empty, shorter than a message, around a whole number of messages, and many messages.
        for length in [0, 1, 65536, 3 * 65536 + 1, 5_000_000] {
            let (from, to) = files(folder.path(), length);
            let said =
                Process::example("async_copy_file", &["--device", device, &from, &to]).succeed();
            assert!(said.contains(&format!("{device}: {length} bytes")), "{said}");
            assert_eq!(fs::read(from).unwrap(), fs::read(to).unwrap());
        }
    }
}

#[test]
fn a_file_is_copied_between_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = files(folder.path(), 1_000_000);
    let mut listens = Process::example("async_copy_file", &["--listen", "127.0.0.1:0", &to]);
    let address = listens.address();
    Process::example("async_copy_file", &["--connect", &address, &from]).succeed();
    listens.succeed();
    assert_eq!(fs::read(from).unwrap(), fs::read(to).unwrap());
}

/// A sender without data ends, and so does the receiver, immediately and without a file.
#[test]
fn an_incomplete_transfer_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = files(folder.path(), 1);
    let mut listens = Process::example("async_copy_file", &["--listen", "127.0.0.1:0", &to]);
    let address = listens.address();
    let nothing = format!("{from}-not");
    let said = Process::example("async_copy_file", &["--connect", &address, &nothing]).fail();
    assert!(said.contains("No such file"), "{said}");
    let said = listens.fail();
    assert!(said.contains("the peer has disconnected"), "{said}");
    assert!(!fs::exists(to).unwrap());
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "only the source");
}

#[test]
fn errors_name_their_cause() {
    for (options, said) in [
        (&["one"][..], "give SOURCE and DESTINATION"),
        (&["--listen", "127.0.0.1:0", "one", "two"], "give one file"),
        (&["--connect", "127.0.0.1:9", "Cargo.toml"], "no process is listening on 127.0.0.1:9"),
        (&["no such file", "/tmp/copy"], "no such file: No such file"),
    ] {
        let error = Process::example("async_copy_file", options).fail();
        assert!(error.contains(said), "{error}");
    }
}

//! Cases that must not compile, each with a twin that differs in one line and does.
//!
//! Without the twin a case could fail for any reason, such as a name that has changed since.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Checks that `fail` and `pass` in this folder have the same cases, and that each differs in one line.
///
/// # Panics
/// If not, with the case; and if there is no such folder or no case.
pub fn assert_one_line_apart(folder: &Path) {
    let names = |kind: &str| -> BTreeSet<_> {
        let entries = fs::read_dir(folder.join(kind)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter(|name| name.ends_with(".rs")).collect()
    };
    let cases = names("fail");
    assert!(!cases.is_empty(), "no case in {folder:?}");
    assert_eq!(cases, names("pass"), "each case has its twin");
    for case in cases {
        let read = |kind| fs::read_to_string(folder.join(kind).join(&case)).unwrap_or_default();
        let (fail, pass) = (read("fail"), read("pass"));
        assert_eq!(fail.lines().count(), pass.lines().count(), "{case}");
        let different = fail.lines().zip(pass.lines()).filter(|(fail, pass)| fail != pass);
        assert_eq!(different.count(), 1, "{case}");
    }
}

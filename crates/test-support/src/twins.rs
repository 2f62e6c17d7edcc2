//! Cases that must not compile. Each has a twin that differs in one line and compiles.
//!
//! Without the twin, a case could fail for any other reason, such as a changed name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Declares the tests in a folder `tests/compile`. The compiler must reject each case in `fail`.
/// Its twin in `pass` must compile and run, as a test with the same name. The calling crate depends
/// on `trybuild`.
#[macro_export]
macro_rules! twins {
    ($($name:ident)+) => {
        mod pass {
            $(pub mod $name;)+
        }
        mod twin {
            $(
                #[test]
                fn $name() -> impl std::process::Termination {
                    super::pass::$name::main()
                }
            )+
        }
        #[test]
        fn each_case_has_a_twin_that_differs_in_one_line() {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile");
            $crate::twins::assert_one_line_apart(&folder, &[$(stringify!($name)),+]);
        }
        #[test]
        fn no_case_compiles() {
            if std::env::var_os("RUSTC_BOOTSTRAP").is_some() {
                return println!("skipped: a sanitizer cannot find anything here");
            }
            trybuild::TestCases::new().compile_fail("tests/compile/fail/*.rs");
        }
    };
}

/// Checks that `fail` and `pass` in this folder contain these cases, and that each pair differs in
/// one line.
///
/// # Panics
/// A case is missing, or a pair differs in another number of lines; the message names it.
pub fn assert_one_line_apart(folder: &Path, cases: &[&str]) {
    let cases: BTreeSet<_> = cases.iter().map(|case| format!("{case}.rs")).collect();
    for kind in ["fail", "pass"] {
        let entries = fs::read_dir(folder.join(kind)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let names: BTreeSet<_> = names.filter(|name| name.ends_with(".rs")).collect();
        assert_eq!(names, cases, "each case has its twin");
    }
    for case in cases {
        let read = |kind| fs::read_to_string(folder.join(kind).join(&case)).unwrap_or_default();
        let (fail, pass) = (read("fail"), read("pass"));
        assert_eq!(fail.lines().count(), pass.lines().count(), "{case}");
        let different = fail.lines().zip(pass.lines()).filter(|(fail, pass)| fail != pass);
        assert_eq!(different.count(), 1, "{case}");
    }
}

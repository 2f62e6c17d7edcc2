//! Tests with code that must not compile. Each has a twin that differs from it in one line and
//! compiles.
//!
//! The twin shows that the code is not rejected for another reason, such as a changed name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Declares the tests in a folder `tests/compile`. The compiler must reject each case in `fail`.
/// The twin in `pass` must compile, and runs as a test with the same name. The calling crate must
/// depend on `trybuild`.
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

/// Checks that the folders `fail` and `pass` contain exactly these cases, and that the two files of
/// each case differ in one line.
///
/// # Panics
/// Panics if a case is missing or superfluous in a folder, or if its two files do not differ in
/// exactly one line. The message names the case.
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

//! Programs and headers of the distribution that some tests need. Without them, these tests are skipped, unless
//! `RDMA_TEST_PACKAGES=required`.

use crate::program::is_emulated;

/// If this variable is `required`, tests fail on machines without the packages that they need.
const WISH: &str = "RDMA_TEST_PACKAGES";

/// Prints that the calling test is skipped without `what`, and Debian's packages that contain it.
///
/// # Panics
/// Panics with the same message if the variable `RDMA_TEST_PACKAGES` is `required`. Does not panic in an emulator,
/// whose machine has other packages.
pub fn skip_without(what: &str, packages: &str) {
    let required = std::env::var(WISH).is_ok_and(|wish| wish == "required") && !is_emulated();
    let remedy = format!("apt-get install {packages}");
    assert!(!required, "{WISH}=required, but {what} is not installed: {remedy}");
    println!("skipped: {what} is not installed (Debian: {remedy})");
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::process::Command;

    use super::*;
    use crate::program::in_own_process_with;

    /// Checks whether a test without its package fails, with this value of the variable.
    fn check(wish: &str, test: &str, expected: bool) {
        let test = format!("packages::tests::{test}");
        let set = |program: &mut Command| _ = program.env(WISH, wish);
        in_own_process_with(&test, set, || {
            let result = catch_unwind(|| skip_without("the program", "its-package"));
            assert_eq!(result.is_err(), expected && !is_emulated());
        });
    }

    #[test]
    fn a_test_without_its_package_is_skipped() {
        check("", "a_test_without_its_package_is_skipped", false);
    }

    #[test]
    fn a_test_without_a_required_package_fails() {
        check("required", "a_test_without_a_required_package_fails", true);
    }
}

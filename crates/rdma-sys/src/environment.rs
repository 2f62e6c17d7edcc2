//! Environment variables that name files.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;

/// Returns the value of an environment variable that names a file or a folder, unless it is empty.
///
/// Returns `None` if the program has rights that its user does not have (setuid, setgid, file
/// capabilities). Otherwise, the user could make the program load or write any file.
///
/// ```
/// assert_eq!(rdma_sys::path_variable("NO_SUCH_VARIABLE"), None);
/// ```
#[must_use]
pub fn path_variable(name: &str) -> Option<OsString> {
    followed(env::var_os(name), has_more_rights())
}

/// Returns true if the program has rights that its user does not have.
fn has_more_rights() -> bool {
    // SAFETY: the call takes a number and returns one (getauxval(3), SAFETY.md F15).
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn followed(value: Option<OsString>, has_more_rights: bool) -> Option<OsString> {
    value.filter(|path| !path.is_empty() && !has_more_rights)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests of `rdma-dropin` run a setuid program.
    #[test]
    fn empty_variables_and_those_of_setuid_programs_are_ignored() {
        let value = |path: &str| Some(OsString::from(path));
        assert!(!has_more_rights());
        assert_eq!(followed(value("a"), false), value("a"));
        assert_eq!(followed(value("a"), true), None);
        assert_eq!(followed(value(""), false), None);
        assert_eq!(followed(None, false), None);
    }
}

//! The file that the environment names.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable that names a file for all devices.
const VARIABLE: &str = "RDMA_SOFT_PCAP";

/// The file that the environment names, if it names one. A program that has rights which its user has not (setuid)
/// does not let its user say which file to write.
pub(crate) fn of_environment() -> Option<PathBuf> {
    named(std::env::var_os(VARIABLE), is_secure())
}

/// Whether the kernel has given the process rights that who started it has not.
fn is_secure() -> bool {
    // SAFETY: takes a number and returns one (getauxval(3), SAFETY.md F15).
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

fn named(variable: Option<OsString>, secure: bool) -> Option<PathBuf> {
    variable.filter(|path| !path.is_empty() && !secure).map(PathBuf::from)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A user who starts a setuid program chooses its environment.
    #[test]
    fn a_program_with_more_rights_than_its_user_is_not_told_of_a_file() {
        let variable = |path: &str| Some(OsString::from(path));
        assert!(!is_secure());
        assert_eq!(named(variable("a"), false), Some(PathBuf::from("a")));
        assert_eq!(named(variable("a"), true), None);
        assert_eq!(named(variable(""), false), None);
        assert_eq!(named(None, false), None);
    }
}

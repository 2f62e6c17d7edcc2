//! The file that the environment names.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable that names a file for all devices.
const VARIABLE: &str = "RDMA_SOFT_PCAP";

/// Returns the file named in the environment, if there is one. A setuid program, which has privileges that its user
/// lacks, ignores the variable: otherwise its user could choose a file to write.
pub(crate) fn of_environment() -> Option<PathBuf> {
    named(std::env::var_os(VARIABLE), is_secure())
}

/// Returns true if the process has privileges that the user who started it lacks.
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
    fn a_setuid_program_ignores_the_variable() {
        let variable = |path: &str| Some(OsString::from(path));
        assert!(!is_secure());
        assert_eq!(named(variable("a"), false), Some(PathBuf::from("a")));
        assert_eq!(named(variable("a"), true), None);
        assert_eq!(named(variable(""), false), None);
        assert_eq!(named(None, false), None);
    }
}

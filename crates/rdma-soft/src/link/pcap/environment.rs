//! The capture file that the environment names.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable that names a capture file for all devices.
const VARIABLE: &str = "RDMA_SOFT_PCAP";

/// Returns the capture file that the environment names, if any. A setuid program ignores the variable: otherwise its
/// user could make it write a file that only the program may write.
pub(crate) fn of_environment() -> Option<PathBuf> {
    named(std::env::var_os(VARIABLE), is_secure())
}

/// Returns true if the process runs with privileges that its user lacks.
fn is_secure() -> bool {
    // SAFETY: the call takes a number and returns one (getauxval(3), SAFETY.md F15).
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

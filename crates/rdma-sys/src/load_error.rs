//! Errors from loading libibverbs, with their remedies.

use std::{ffi::OsStr, ffi::OsString, path::Path};

use crate::elf;
use crate::load::SONAME;

/// The text with which each message ends.
macro_rules! without {
    () => {
        "; software devices do not need libibverbs: call rdma_soft::install()"
    };
}

/// The reason that [`system`](crate::system) failed.
///
/// The software device works in each of these cases.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file does not exist, or the loader does not search its folder.
    #[error("{}{}", not_found(.file), without!())]
    NotFound {
        /// The requested file.
        file: OsString,
    },
    /// The library lacks a function that every rdma-core since version 20 has
    /// ([`Verbs::REQUIRED`](crate::Verbs::REQUIRED)).
    #[error(
        "{} has no function {symbol}: it is too old, or not libibverbs; install rdma-core 20 or \
         newer, or correct RDMA_LIBIBVERBS{}",
        .file.display(), without!()
    )]
    TooOld {
        /// The library.
        file: OsString,
        /// The first missing function.
        symbol: &'static str,
    },
    /// The library is built for another kind of machine than this program.
    #[error(
        "{} is for {found}, this program for {expected}: install the libibverbs package of \
         {expected}, or set RDMA_LIBIBVERBS to such a file{}",
        .file.display(), without!()
    )]
    WrongArchitecture {
        /// The library.
        file: OsString,
        /// The machine of the library, such as `32-bit x86`.
        found: String,
        /// The machine of this program.
        expected: String,
    },
    /// This program is statically linked, so it cannot load a library.
    #[error(
        "a statically linked program cannot load libibverbs: build it with dynamic linking (for a \
         musl target: RUSTFLAGS=-Ctarget-feature=-crt-static){}",
        without!()
    )]
    StaticBinary,
    /// The library exists, but the loader refused it, for example because a library that it needs
    /// is missing.
    #[error(
        "{} could not be loaded: {reason}; `ldd` shows which library it lacks{}",
        .file.display(), without!()
    )]
    Refused {
        /// The library.
        file: OsString,
        /// The loader's message.
        reason: String,
    },
}

rdma_types::debug_messages!(enum LoadError {
    NotFound { file }, TooOld { file, symbol }, WrongArchitecture { file, found, expected },
    StaticBinary, Refused { file, reason },
});

/// Returns the message for a missing file. Only `RDMA_LIBIBVERBS` can name a file other than the
/// default one, so the message for any other file is about that variable.
fn not_found(file: &OsStr) -> String {
    let shown = file.display();
    if file == SONAME {
        format!(
            "{shown} is not installed: install rdma-core (Debian, Ubuntu: libibverbs1 and \
             ibverbs-providers; Fedora, RHEL: libibverbs), or set RDMA_LIBIBVERBS to its path"
        )
    } else {
        format!(
            "RDMA_LIBIBVERBS is {shown}, which does not exist: correct the variable, or unset it \
             to load {SONAME}"
        )
    }
}

impl LoadError {
    /// Determines the reason for a failed `dlopen` from the file on disk and the loader's message.
    ///
    /// The message alone is not enough, because glibc's loader reports a library for another
    /// machine as "not found".
    pub(crate) fn of_dlopen(file: &OsStr, reason: &str) -> Self {
        let file = file.to_owned();
        let path = Path::new(&file);
        let is_path = path.components().count() > 1;
        if is_path && let Some((found, expected)) = elf::other_machine(path) {
            return Self::WrongArchitecture { file, found, expected };
        }
        let missing = if is_path { !path.exists() } else { is_missing(&file, reason) };
        if missing {
            Self::NotFound { file }
        } else {
            Self::Refused { file, reason: reason.to_owned() }
        }
    }
}

/// Returns true if the loader did not find `file` itself. A missing dependency of `file` does not count.
fn is_missing(file: &OsStr, reason: &str) -> bool {
    let file = file.to_string_lossy();
    let glibc = format!("{file}: cannot open shared object file");
    let musl = format!("Error loading shared library {file}: No such file or directory");
    reason.starts_with(&glibc) || (reason.starts_with(&musl) && !reason.contains("needed by"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_soname(reason: &str) -> LoadError {
        LoadError::of_dlopen(OsStr::new("libibverbs.so.1"), reason)
    }

    #[test]
    fn the_library_itself_is_missing() {
        let file = OsString::from("libibverbs.so.1");
        for reason in [
            "libibverbs.so.1: cannot open shared object file: No such file or directory",
            "Error loading shared library libibverbs.so.1: No such file or directory",
        ] {
            assert_eq!(of_soname(reason), LoadError::NotFound { file: file.clone() });
        }
    }

    #[test]
    fn a_library_that_it_needs_is_missing() {
        for reason in [
            "libnl-3.so.200: cannot open shared object file: No such file or directory",
            "Error loading shared library libnl-3.so.200: No such file or directory (needed by \
             /usr/lib/libibverbs.so.1)",
        ] {
            let LoadError::Refused { reason: kept, .. } = of_soname(reason) else {
                panic!("{reason}");
            };
            assert_eq!(kept, reason);
        }
    }

    #[test]
    fn every_message_has_a_remedy() {
        let file = OsString::from("libibverbs.so.1");
        for error in [
            LoadError::NotFound { file: file.clone() },
            LoadError::TooOld { file: file.clone(), symbol: "ibv_open_device" },
            LoadError::WrongArchitecture {
                file: file.clone(),
                found: "32-bit x86".to_owned(),
                expected: "64-bit x86".to_owned(),
            },
            LoadError::StaticBinary,
            LoadError::Refused { file, reason: "no memory".to_owned() },
        ] {
            assert!(error.to_string().contains("rdma_soft::install()"), "{error}");
        }
    }
}

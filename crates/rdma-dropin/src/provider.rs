//! The provider of all devices of this library.

use std::env;
use std::io::{self, Write};
use std::panic;
use std::sync::OnceLock;

use rdma_sys::{Errno, Verbs};

use crate::stats;

/// The environment variable that chooses providers in programs of this workspace.
const CHOICE_VARIABLE: &str = "RDMA_PROVIDERS";

/// Returns the table of the software devices.
pub(crate) fn verbs() -> &'static Verbs {
    rdma_soft::verbs()
}

/// Installs the software devices, in the first call.
///
/// # Errors
/// Returns `EOPNOTSUPP` if the environment chooses a provider that this library does not have. The first call prints its
/// name.
pub(crate) fn install() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // The hook belongs to this library's copy of the standard library, not to the program.
        panic::set_hook(Box::new(|_| {}));
        let choice = env::var_os(CHOICE_VARIABLE).unwrap_or_default();
        if let Some(other) = unknown(&choice.to_string_lossy(), verbs().name) {
            report(other);
            return Err(Errno::EOPNOTSUPP);
        }
        rdma_soft::install();
        stats::begin();
        Ok(())
    })
}

/// Prints the name of an unknown provider. Standard error is the only way to report it to a C program.
fn report(other: &str) {
    let known = verbs().name;
    // A write error is ignored.
    let _ = writeln!(
        io::stderr(),
        "libibverbs: {CHOICE_VARIABLE} names {other:?}, but this libibverbs has only {known:?}; unset the variable, \
         or run the program with the system's libibverbs",
    );
}

/// Returns the first name in the list `choice` that is not `known`.
fn unknown<'a>(choice: &'a str, known: &str) -> Option<&'a str> {
    choice.split(',').map(str::trim).find(|name| !name.is_empty() && *name != known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_known_provider_can_be_chosen() {
        assert_eq!(unknown("", "soft"), None);
        assert_eq!(unknown(" soft,", "soft"), None);
        assert_eq!(unknown("soft, system", "soft"), Some("system"));
    }
}

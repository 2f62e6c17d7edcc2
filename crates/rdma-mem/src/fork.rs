//! Fork support.
#![allow(unsafe_code)]

use std::fmt;

use rdma_sys::{Errno, Verbs, ibv_fork_status, providers};

use crate::error::Error;
use crate::error::verb::VerbError;

/// Selects whether [`fork_support`] only queries the status or also protects registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkMode {
    /// Only query the status.
    Query,
    /// Make libibverbs hide registered memory from forked children, unless the kernel copies it for
    /// them, as Linux 5.13 and later does. In that case, this costs nothing. Use this mode before
    /// the first registration.
    Protect,
}

/// The effect of a fork on registered memory (`enum ibv_fork_status`).
///
/// ```
/// use rdma_mem::ForkStatus;
///
/// assert!(ForkStatus::UNNEEDED.is_safe() && !ForkStatus::DISABLED.is_safe());
/// assert_eq!(ForkStatus::ENABLED.to_string(), "enabled");
/// ```
#[doc(alias = "ibv_fork_status")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForkStatus(u32);

impl ForkStatus {
    /// After a fork, the device and the parent may use different pages for registered memory, and
    /// then neither sees what the other writes.
    pub const DISABLED: Self = Self(ibv_fork_status::IBV_FORK_DISABLED.0);
    /// Forked children do not get the registered pages, and crash if they touch them.
    pub const ENABLED: Self = Self(ibv_fork_status::IBV_FORK_ENABLED.0);
    /// The kernel copies registered pages for forked children, so no action is needed.
    pub const UNNEEDED: Self = Self(ibv_fork_status::IBV_FORK_UNNEEDED.0);

    /// Returns true if registered memory still works in a process that has forked.
    #[must_use]
    pub fn is_safe(self) -> bool {
        matches!(self, Self::ENABLED | Self::UNNEEDED)
    }

    /// Returns C's value.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for ForkStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DISABLED => f.write_str("disabled"),
            Self::ENABLED => f.write_str("enabled"),
            Self::UNNEEDED => f.write_str("unneeded"),
            Self(other) => write!(f, "fork status {other}"),
        }
    }
}

/// Queries what a fork does to registered memory, or protects the memory; see `man ibv_fork_init`.
///
/// With several providers, this returns the least safe status. A libibverbs that cannot be loaded
/// is ignored, because it registers nothing.
///
/// This protects the parent's memory, both in programs that call `fork` and in programs that start
/// others (`std::process::Command`). A forked child cannot use its parent's objects: their
/// functions return [`Forked`](crate::Forked), and dropping them frees nothing. It can open its own
/// devices only after `exec`.
///
/// # Errors
/// [`Error::Unsupported`] for [`ForkMode::Query`] with a libibverbs that cannot be queried (before
/// rdma-core 35); [`Error::Verb`] for [`ForkMode::Protect`] if memory is registered already, or the
/// kernel cannot protect it; [`Error::UnknownProvider`] for an invalid `RDMA_PROVIDERS`.
///
/// # Examples
/// ```
/// use rdma_mem::{ForkMode, fork_support};
///
/// rdma_soft::install();
/// match fork_support(ForkMode::Query) {
///     Ok(status) if status.is_safe() => println!("this program may start others"),
///     Ok(status) => println!("registered memory and fork: {status}"),
///     Err(error) => println!("unknown status: {error}"),
/// }
/// ```
#[doc(alias = "ibv_fork_init")]
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_support(mode: ForkMode) -> Result<ForkStatus, Error> {
    let mut least = ForkStatus::UNNEEDED;
    for provider in providers()? {
        if let Ok(verbs) = provider.verbs {
            least = least.min(of_provider(verbs, mode)?);
        }
    }
    Ok(least)
}

fn of_provider(verbs: &'static Verbs, mode: ForkMode) -> Result<ForkStatus, Error> {
    if mode == ForkMode::Protect {
        // SAFETY: SAFETY.md F2: the function has no preconditions.
        Errno::check(unsafe { (verbs.fork_init)() }).map_err(refused)?;
    }
    match verbs.is_fork_initialized() {
        // SAFETY: SAFETY.md F2: the function has no preconditions.
        Ok(ask) => Ok(ForkStatus(unsafe { ask() }.0)),
        // The memory is protected, but the status cannot be queried: protection may have been
        // unnecessary.
        Err(_) if mode == ForkMode::Protect => Ok(ForkStatus::ENABLED),
        Err(unsupported) => Err(unsupported.into()),
    }
}

fn refused(errno: Errno) -> VerbError {
    let hint = match errno {
        Errno::EINVAL => Some("it has to be called before any memory is registered".into()),
        Errno::ENOSYS => Some("the kernel cannot hide pages from children".into()),
        _ => None,
    };
    VerbError::new("ibv_fork_init", errno).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::sync::OnceLock;

    use super::*;

    extern "C" fn done() -> c_int {
        0
    }

    extern "C" fn too_late() -> c_int {
        Errno::EINVAL.raw()
    }

    extern "C" fn new_kind() -> ibv_fork_status {
        ibv_fork_status(9)
    }

    #[test]
    fn without_a_query_function_protection_works_and_a_query_is_unsupported() {
        static OLD: OnceLock<Verbs> = OnceLock::new();
        let old = OLD.get_or_init(|| {
            let mut verbs = *rdma_soft::verbs();
            verbs.fork_init = done;
            verbs.is_fork_initialized = None;
            verbs
        });
        assert!(matches!(of_provider(old, ForkMode::Query), Err(Error::Unsupported(_))));
        assert_eq!(of_provider(old, ForkMode::Protect).unwrap(), ForkStatus::ENABLED);
    }

    #[test]
    fn a_refusal_has_a_remedy() {
        static LATE: OnceLock<Verbs> = OnceLock::new();
        let late = LATE.get_or_init(|| {
            let mut verbs = *rdma_soft::verbs();
            verbs.fork_init = too_late;
            verbs.is_fork_initialized = Some(new_kind);
            verbs
        });
        let error = of_provider(late, ForkMode::Protect).unwrap_err().to_string();
        assert!(error.contains("before any memory is registered"), "{error}");
        let status = of_provider(late, ForkMode::Query).unwrap();
        assert_eq!((status.to_string().as_str(), status.get()), ("fork status 9", 9));
        assert!(!status.is_safe());
    }

    #[test]
    fn the_software_device_needs_nothing() {
        for mode in [ForkMode::Query, ForkMode::Protect] {
            assert_eq!(of_provider(rdma_soft::verbs(), mode).unwrap(), ForkStatus::UNNEEDED);
        }
    }
}

//! The libibverbs against which the program is linked.

use crate::table::Verbs;

// Needed only for its linker flag, `-l ibverbs`. Its types are not used, because its enums are
// closed.
extern crate ibverbs_sys as _;

/// Returns the verbs of the libibverbs against which this program is linked.
///
/// This is for programs that must not load libraries at run time, or that want a missing function
/// to be a link error. They do not start where `libibverbs.so.1` is not installed. [`system`], in
/// contrast, reports an error in that case, and needs nothing to build.
///
/// The feature does not change `system`, and [`providers`] does not list this table. To use the
/// table's devices together with others, [`register`] it and leave `system` out of
/// `RDMA_PROVIDERS`; otherwise each of these devices is listed twice. The provider is called
/// `linked`.
///
/// The table has all functions up to `IBVERBS_1.14`, which rdma-core 36 and later provide (Debian
/// 12 has 44, Ubuntu 22.04 has 39). Linking against an older library fails, and the linker names
/// the missing functions.
///
/// `ibverbs-sys`, which finds the library, first builds all of rdma-core, in about a minute. It
/// needs, on Debian: `gcc libc6-dev cmake make pkg-config python3-minimal libnl-3-dev
/// libnl-route-3-dev libclang-dev libibverbs-dev`.
///
/// ```
/// let verbs = rdma_sys::linked();
/// assert_eq!(verbs.name, "linked");
/// assert!(verbs.is_fork_initialized().is_ok());
/// ```
///
/// [`system`]: crate::system
/// [`providers`]: crate::providers
/// [`register`]: crate::register
#[must_use]
pub fn linked() -> &'static Verbs {
    static LINKED: Verbs = Verbs::of_symbols("linked");
    &LINKED
}

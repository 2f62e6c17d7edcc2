//! libibverbs, linked when the program is built.

use crate::table::Verbs;

// For the link alone, `-l ibverbs`: its own types are closed enums, and none is used here.
extern crate ibverbs_sys as _;

/// The verbs of the libibverbs that this program is linked with.
///
/// For programs that must not load libraries at run time, or want the linker to say that a
/// function is missing. They do not start where `libibverbs.so.1` is not installed; [`system`]
/// says so in an error instead, and needs nothing to build. What that function does is the same
/// with this feature and without it, and [`providers`] does not list this table: to see its devices
/// beside others, [`register`] it and leave `system` out of `RDMA_PROVIDERS`, else each of them is
/// there twice. The provider is called `linked`.
///
/// It has all functions of the table, which are those up to `IBVERBS_1.14`, as rdma-core 36 and later
/// have them (Debian 12 has 44, Ubuntu 22.04 has 39). Against an older one the link fails and names
/// what it lacks.
///
/// `ibverbs-sys`, which finds the library, builds all of rdma-core first, for about a minute. It
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

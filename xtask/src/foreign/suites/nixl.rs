//! NIXL in two processes, with the files of the devices. Its wheel bundles UCX, and libibverbs under another name.

use anyhow::Result;

use crate::foreign::installation::Installation;
use crate::foreign::output::both_finished;
use crate::foreign::packages::Needs;
use crate::foreign::pair::{connect, outcome};
use crate::foreign::report::Row;

pub(super) const WHEEL: &str = "nixl-cu12==1.5.1";

/// The package that NIXL's module imports.
const NUMPY: &str = "numpy==2.4.6";

pub(super) const NEEDS: Needs = Needs { packages: &[], wheels: &[WHEEL, NUMPY] };

/// The transports of UCX and the devices. UCX has no other transports then.
const SETS: &[(&str, &str)] = &[("rc_v", "soft0"), ("ud_v", "soft0"), ("rc_v", "softib0")];

/// Makes the wheel's UCX use addresses to which the kernel has no route.
const REACHABLE: (&str, &str) = ("UCX_IB_ROCE_REACHABILITY_MODE", "all");

/// Runs the program over each transport. Both processes must count requests over RDMA.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(installation: &Installation, row: &mut Row) -> Result<()> {
    let words = installation.counted(&installation.script("nixl_pair.py"));
    for (transport, device) in SETS {
        let set = installation.with_ucx(transport, device);
        let environment = set.with_variable(REACHABLE.0, REACHABLE.1).environment();
        row.case(&format!("{transport} {device}"), || {
            outcome(connect(&words, [&environment, &environment]), both_finished)
        });
    }
    Ok(())
}

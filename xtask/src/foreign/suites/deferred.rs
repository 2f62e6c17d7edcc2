//! The tests of pyverbs, and the quick option sets of the pingpong programs and perftest. The devices execute requests
//! later, in an order that depends on a seed.

use anyhow::Result;

use super::{perftest, pingpong, pyverbs};
use crate::foreign::installation::Installation;
use crate::foreign::pair;
use crate::foreign::report::Row;

/// The usual devices, with another schedule.
const DEVICES: &str = "soft0,schedule=deferred:7;softib0,port=ib,schedule=deferred:7";

/// Runs the tests and the programs.
///
/// # Errors
/// Returns an error if the tests cannot be copied, or this process cannot start programs.
pub(super) fn run(installation: &Installation, row: &mut Row) -> Result<()> {
    let installation = installation.with_variable("RDMA_SOFT_DEVICES", DEVICES);
    pyverbs::run(&installation, &[("test_resize_cq", pyverbs::AT_ONCE)], row)?;
    for (device, sets) in [(pingpong::DEVICE, pingpong::SETS), (perftest::DEVICE, perftest::SETS)] {
        pair::run(&installation, device, sets, false, row)?;
    }
    Ok(())
}

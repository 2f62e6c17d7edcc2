//! `ucx_perftest`, UCX's own benchmark, in two processes with the files of the devices.

use anyhow::Result;

use crate::foreign::installation::Installation;
use crate::foreign::output::{both_counts, ucx};
use crate::foreign::pair::{connect, outcome, words};
use crate::foreign::process::Ended;
use crate::foreign::report::Row;

const TRANSPORTS: &[&str] = &["rc_v", "ud_v"];

/// Each test with its options, and whether the quick run contains it.
const TESTS: &[(&str, bool)] = &[
    ("tag_lat", true),
    ("tag_bw", true),
    ("tag_bw -s 3000000", false),
    ("tag_sync_lat", false),
    ("ucp_put_lat", true),
    ("ucp_put_bw -s 65536", false),
    ("ucp_get", true),
    ("ucp_get -s 65536", false),
    ("ucp_add", false),
    ("ucp_fadd", false),
    ("ucp_swap", false),
    ("ucp_cswap", false),
    ("ucp_am_lat", true),
    ("ucp_am_bw -s 65536", false),
    ("stream_lat", false),
    ("stream_bw -s 65536", false),
];

/// The number of measured iterations, and of those before the measurement.
const COUNTS: &str = "-n 300 -w 30";

/// Runs the tests over each transport. Both processes must count requests over RDMA, because UCX uses other transports
/// if it cannot use the device.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(installation: &Installation, full: bool, row: &mut Row) -> Result<()> {
    for transport in TRANSPORTS {
        let environment = installation.with_ucx(transport, "soft0").environment();
        for (test, _) in TESTS.iter().filter(|(_, quick)| full || *quick) {
            let program = installation.counted(&installation.program("ucx_perftest"));
            let words = [program, words("-t"), words(test), words(COUNTS)];
            row.case(&format!("{transport} {test}"), || {
                outcome(connect(&words.concat(), [&environment, &environment]), check)
            });
        }
    }
    Ok(())
}

fn check(server: &Ended, client: &Ended) -> Result<String> {
    let iterations = ucx(&client.output)?;
    Ok(format!("{iterations} iterations, {}", both_counts(server, client)?))
}

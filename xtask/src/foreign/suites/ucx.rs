//! `ucx_perftest`, UCX's own benchmark, in two processes with the files of the devices.

use anyhow::{Context as _, Result, ensure};

use crate::foreign::installation::Installation;
use crate::foreign::output::{both_counts, counts, ucx};
use crate::foreign::pair::{connect, outcome, words};
use crate::foreign::process::{Ended, Process};
use crate::foreign::report::{Outcome, Row};

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

/// The tests in which UCX chooses the transports itself. The first flag states whether each process has its own
/// container, and the second one whether the quick run contains the test. In one container, UCX sends small messages through shared memory, and only
/// large ones over RDMA.
const OWN_CHOICE: &[(&str, bool, bool)] = &[
    ("tag_bw -s 3000000", false, false),
    ("tag_lat", true, true),
    ("tag_bw -s 3000000", true, false),
    ("ucp_put_lat", true, true),
    ("ucp_get", true, false),
    ("ucp_fadd", true, false),
    ("ucp_am_lat", true, false),
    ("stream_lat", true, false),
];

/// Runs a program in a container: its processes and shared memory are not visible outside, as on another host. The
/// network is that of the host.
const CONTAINER: &str = "unshare --user --map-root-user --ipc --pid --fork";

const NO_CONTAINER: &str = "this machine refuses namespaces to users without rights";

/// Makes UCX print the transports that it has chosen.
const LOG: (&str, &str) = ("UCX_LOG_LEVEL", "info");

/// The text before the chosen transports.
const CHOSEN: &str = "ep_cfg[0]: ";

/// Runs the tests over each transport, and over those that UCX chooses. Both processes must count requests over RDMA,
/// because UCX uses other transports if it cannot use the device.
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
    let container = words(CONTAINER);
    let environment = installation.with_variable(LOG.0, LOG.1).environment();
    let begin = [&container[..], &["true".to_owned()]].concat();
    let has_containers = Process::start(&begin, &environment)?.end()?.succeeded();
    for (test, apart, _) in OWN_CHOICE.iter().filter(|(.., quick)| full || *quick) {
        let program = installation.counted(&installation.program("ucx_perftest"));
        let outside = if *apart { &container[..] } else { &[] };
        let words = [outside, &program, &words("-t"), &words(test), &words(COUNTS)].concat();
        let place = if *apart { "two containers" } else { "one container" };
        row.case(&format!("by its own choice in {place}, {test}"), || match has_containers {
            false if *apart => Ok(Outcome::Skipped(NO_CONTAINER)),
            _ => outcome(connect(&words, [&environment, &environment]), check_choice),
        });
    }
    Ok(())
}

fn check(server: &Ended, client: &Ended) -> Result<String> {
    let iterations = ucx(&client.output)?;
    Ok(format!("{iterations} iterations, {}", both_counts(server, client)?))
}

/// Checks that the messages went over RDMA, and not only those by which the processes connect.
fn check_choice(server: &Ended, client: &Ended) -> Result<String> {
    let checked = check(server, client)?;
    let chosen = client.output.lines().find_map(|line| line.split_once(CHOSEN));
    let (_, chosen) = chosen.context("UCX has not printed the transports that it has chosen")?;
    let (own, peers) = counts(&client.output)?;
    let (iterations, requests) = (ucx(&client.output)?, own + peers);
    ensure!(requests >= iterations, "{requests} requests over RDMA, UCX has chosen {chosen}");
    Ok(format!("{checked}, {chosen}"))
}

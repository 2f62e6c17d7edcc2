//! Open MPI over UCX, with the files of the devices.

use anyhow::{Context as _, Result, ensure};

use crate::foreign::installation::Installation;
use crate::foreign::output::{counts, finished};
use crate::foreign::packages::Needs;
use crate::foreign::pair::words;
use crate::foreign::process::Process;
use crate::foreign::report::{Outcome, Row};

pub(super) const NEEDS: Needs = Needs {
    packages: &[
        ("openmpi-bin", "usr/bin/mpirun.openmpi"),
        ("libopenmpi-dev", "usr/bin/mpicc.openmpi"),
    ],
    wheels: &[],
};

const TRANSPORTS: &[&str] = &["rc_v", "ud_v"];

/// The tests of our program, and the number of processes.
const TESTS: &[(&str, &str)] = &[
    ("ring", "2"),
    ("ring", "3"),
    ("allreduce", "2"),
    ("allreduce", "3"),
    ("latency", "2"),
    ("bandwidth", "2"),
];

/// All processes run on this machine, and send with UCX alone. They yield the processor while they wait.
const OPTIONS: &str = "--oversubscribe --bind-to none --mca plm isolated --mca pml ucx --mca btl self --mca osc ^ucx \
    --mca mca_base_component_show_load_errors 0";

/// `mpirun` refuses to run as root without these variables. The last one prevents a warning about missing files.
const VARIABLES: &[(&str, &str)] = &[
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("PMIX_MCA_pcompress_base_silence_warning", "1"),
];

/// Runs the tests over each transport. All processes must use the device, because UCX has no other transport.
///
/// # Errors
/// Returns an error if our program cannot be compiled.
pub(super) fn run(installation: &Installation, row: &mut Row) -> Result<()> {
    let program = installation.compile("mpi.c", ["openmpi/include", "openmpi/lib", "mpi"])?;
    let runner = installation.program("mpirun.openmpi");
    let prefix = installation.file("usr/bin/mpirun.openmpi");
    let prefix = prefix.ancestors().nth(2).context("mpirun has no folder")?.to_string_lossy();
    for transport in TRANSPORTS {
        let mut environment = installation.with_ucx(transport, "soft0").environment();
        environment.extend(VARIABLES.iter().map(|(name, value)| (*name, (*value).to_owned())));
        environment.push(("OPAL_PREFIX", prefix.clone().into_owned()));
        for (test, processes) in TESTS {
            let program = [program.to_string_lossy().into_owned(), (*test).to_owned()];
            let count = ["-np".to_owned(), (*processes).to_owned()];
            let words = [&runner[..], &words(OPTIONS), &count, &program].concat();
            let ran = || -> Result<String> {
                let ended = Process::start(&installation.counted(&words), &environment)?.end()?;
                ensure!(ended.succeeded(), "mpirun failed\n{ended}");
                check(&ended.output, processes).with_context(|| ended.to_string())
            };
            let name = format!("{transport} {test} in {processes} processes");
            row.case(&name, || ran().map(Outcome::Passed));
        }
    }
    Ok(())
}

fn check(output: &str, processes: &str) -> Result<String> {
    let (own, peers) = counts(output)?;
    let all = format!("in {processes} process(es)");
    ensure!(output.lines().any(|line| line.ends_with(&all)), "some processes have no counts");
    Ok(format!("{}, {own} requests, {peers} of peers", finished(output)?))
}

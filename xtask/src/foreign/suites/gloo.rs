//! Gloo's transport for ibverbs, in processes that each count their requests.

use std::fs;

use anyhow::{Result, ensure};

use crate::foreign::installation::Installation;
use crate::foreign::output::{counts, finished};
use crate::foreign::packages::Needs;
use crate::foreign::process::Process;
use crate::foreign::report::{Outcome, Row};

pub(super) const NEEDS: Needs = Needs {
    packages: &[
        ("libgloo0", "usr/share/doc/libgloo0/copyright"),
        ("libgloo-dev", "usr/include/gloo/config.h"),
        ("libibverbs-dev", "usr/include/infiniband/verbs.h"),
    ],
    wheels: &[],
};

/// The numbers of processes.
const RANKS: &[usize] = &[2, 3];

/// Runs our program in several processes. Gloo's program interface has no other transport then.
///
/// # Errors
/// Returns an error if our program cannot be compiled.
pub(super) fn run(installation: &Installation, row: &mut Row) -> Result<()> {
    let program = installation.compile("gloo.cc", ["../include", ".", "gloo"])?;
    for &ranks in RANKS {
        row.case(&format!("allreduce and broadcast in {ranks} processes"), || {
            together(installation, &program.to_string_lossy(), ranks).map(Outcome::Passed)
        });
    }
    Ok(())
}

/// Runs the processes, which find each other in an empty folder.
fn together(installation: &Installation, program: &str, ranks: usize) -> Result<String> {
    let meeting = installation.home.join("meeting");
    let _ = fs::remove_dir_all(&meeting); // does not exist before the first run
    fs::create_dir(&meeting)?;
    let environment = installation.environment();
    let start = |rank: usize| {
        let words = [program, &meeting.to_string_lossy(), &rank.to_string(), &ranks.to_string()];
        Process::start(&installation.counted(&words.map(str::to_owned)), &environment)
    };
    let processes = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
    let ended = processes.into_iter().map(Process::end).collect::<Result<Vec<_>>>()?;
    let all = || ended.iter().map(|one| format!("\n{one}")).collect::<String>();
    let mut requests = 0;
    for one in &ended {
        ensure!(one.succeeded(), "a process failed{}", all());
        finished(&one.output)?;
        requests += counts(&one.output)?.0;
    }
    Ok(format!("{requests} requests"))
}

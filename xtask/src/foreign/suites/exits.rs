//! Pairs of perftest's programs in which one process ends or stops while the other sends.
//!
//! A process that only waits for requests does not notice that its peer was killed. NICs do not report this either. With
//! `-b`, the server of `ib_send_bw` only waits until it has received the first request.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::perftest::DEVICE;
use crate::foreign::installation::Installation;
use crate::foreign::output::result;
use crate::foreign::pair::{connect, outcome, start, words};
use crate::foreign::process::Ended;
use crate::foreign::report::{Outcome, Row};

const BOTH: &[Victim] = &[Victim::Server, Victim::Client];
const ALL: &[End] = &[End::Killed, End::Exits, End::Stopped];

/// Programs with options, the processes that end or stop, and the ways in which they do. Only a process that sends can
/// exit after a failed request.
const PROGRAMS: &[(&str, &str, &[Victim], &[End])] = &[
    ("ib_send_bw", "-s 1024", &[Victim::Server], &[End::Killed, End::Stopped]),
    ("ib_send_bw", "-b -s 1024", BOTH, &[End::Exits, End::Stopped]),
    ("ib_write_bw", "-b -s 1024", BOTH, ALL),
    ("ib_read_bw", "-b -s 1024", BOTH, ALL),
    ("ib_atomic_bw", "-b", BOTH, ALL),
];

/// Text that a program prints just before it posts the first request.
const STARTED: &str = "#iterations";

/// The duration of a stop.
const PAUSE: Duration = Duration::from_secs(1);

/// A fault that makes a request of a process fail soon. The process reports it and exits.
const FAULT: &str = "seed=1;fail=1%:RNR_RETRY_EXC";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server,
    Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// SIGKILL ends the process.
    Killed,
    /// The process exits because one of its requests failed.
    Exits,
    /// SIGSTOP stops the process for a time.
    Stopped,
}

impl End {
    /// Returns the options with which the program runs until it is ended, or for longer than it is stopped.
    fn options(self) -> &'static str {
        match self {
            Self::Killed | Self::Exits => "-N -n 100000000",
            Self::Stopped => "-D 3",
        }
    }
}

/// Runs each program, and ends or stops a process in each listed way. After each case, runs a pair of new processes.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(installation: &Installation, row: &mut Row) -> Result<()> {
    for (program, options, victims, ends) in PROGRAMS {
        for &victim in *victims {
            for &end in *ends {
                let words = [
                    words("stdbuf --output=L"),
                    installation.program(program),
                    words(DEVICE),
                    words(options),
                ];
                row.case(&format!("{program} {options}, {victim:?} {end:?}"), || {
                    broken(installation, &words.concat(), victim, end)?;
                    afterwards(installation)
                });
            }
        }
    }
    Ok(())
}

/// Runs a pair in which one process ends or stops.
fn broken(installation: &Installation, program: &[String], victim: Victim, end: End) -> Result<()> {
    let words = [program, &words(end.options())].concat();
    let environments = [Victim::Server, Victim::Client].map(|process| {
        let mut environment = installation.environment();
        if process == victim && end == End::Exits {
            environment.push(("RDMA_SOFT_FAULTS", FAULT.to_owned()));
        }
        environment
    });
    let (server, client) = start([&words, &words], [&environments[0], &environments[1]])?;
    let both = server.prints(&[STARTED]) && client.prints(&[STARTED]);
    let process = if victim == Victim::Server { &server } else { &client };
    match end {
        _ if !both => {} // reported below, because a process has failed
        End::Killed => process.signal(Signal::KILL)?,
        End::Exits => {}
        End::Stopped => {
            process.signal(Signal::STOP)?;
            thread::sleep(PAUSE);
            process.signal(Signal::CONT)?;
        }
    }
    let (client, server) = (client.end()?, server.end()?);
    ensure!(both, "a process ended before it sent\nclient {client}\nserver {server}");
    let (process, peer) =
        if victim == Victim::Server { (&server, &client) } else { (&client, &server) };
    ensure!(
        as_expected(end, process, peer),
        "the processes did not end as expected\nclient {client}\nserver {server}"
    );
    Ok(())
}

fn as_expected(end: End, process: &Ended, peer: &Ended) -> bool {
    match end {
        End::Killed => peer.exited_with_error(),
        End::Exits => process.exited_with_error() && peer.exited_with_error(),
        End::Stopped => process.succeeded() && peer.succeeded(),
    }
}

/// Runs a pair of new processes.
fn afterwards(installation: &Installation) -> Result<Outcome> {
    let words = [installation.program("ib_send_lat"), words(DEVICE), words("-n 100")].concat();
    let environment = installation.environment();
    outcome(connect(&words, [&environment, &environment]), |_, client| result(&client.output))
}

//! Programs that run as a server and a client, with sets of options.

use anyhow::{Context as _, Result, anyhow, bail};

use super::installation::Installation;
use super::output;
use super::process::{Ended, Environment, Process, free_port};
use super::report::{Outcome, Row};

/// A program, and the options of both processes.
#[derive(Debug)]
pub(super) struct Set {
    program: &'static str,
    options: &'static str,
    tier: Tier,
}

/// The runs to which a set belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// Every run.
    Quick,
    /// Only runs with `--full`.
    Full,
    /// No run, for this reason.
    Never(&'static str),
}

impl Set {
    pub(super) const fn quick(program: &'static str, options: &'static str) -> Self {
        Self { program, options, tier: Tier::Quick }
    }

    pub(super) const fn full(program: &'static str, options: &'static str) -> Self {
        Self { program, options, tier: Tier::Full }
    }

    pub(super) const fn never(
        program: &'static str,
        options: &'static str,
        reason: &'static str,
    ) -> Self {
        Self { program, options, tier: Tier::Never(reason) }
    }
}

/// Runs the sets of the quick run, or all of them. `device` has the options that select the device and its GID.
///
/// # Errors
/// Returns an error if this process cannot start programs.
pub(super) fn run(
    installation: &Installation,
    device: &str,
    sets: &[Set],
    full: bool,
    row: &mut Row,
) -> Result<()> {
    let mut environment = installation.environment();
    // perftest also links with libraries of two vendors, whose symbols would otherwise be looked up at their first use.
    environment.push(("LD_BIND_NOW", "1".to_owned()));
    for Set { program, options, tier } in sets.iter().filter(|set| full || set.tier != Tier::Full) {
        let words = [installation.program(program), words(device), words(options)].concat();
        row.case(&format!("{program} {device} {options}"), || match tier {
            Tier::Never(reason) => Ok(Outcome::Skipped(reason)),
            _ => outcome(connect(&words, [&environment, &environment]), |server, client| {
                // A server of perftest may print no result.
                if program.starts_with("ibv_") {
                    output::result(&server.output).context("the server")?;
                }
                output::result(&client.output)
            }),
        });
    }
    Ok(())
}

/// Splits a line into words.
pub(super) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Runs the two processes, and waits until both have ended. Returns the server and the client.
///
/// # Errors
/// Returns an error with the output of the server if it ends before a client can connect.
pub(super) fn connect(words: &[String], environments: [&Environment; 2]) -> Result<(Ended, Ended)> {
    let (server, client) = start([words, words], environments)?;
    let client = client.end()?;
    Ok((server.end()?, client))
}

/// Starts a server, and a client as soon as the server listens.
///
/// # Errors
/// Returns an error with the output of the server if it ends before a client can connect.
pub(super) fn start(
    [server, client]: [&[String]; 2],
    [server_environment, client_environment]: [&Environment; 2],
) -> Result<(Process, Process)> {
    let port = free_port()?;
    let option = ["-p".to_owned(), port.to_string()];
    let server = Process::start(&[server, &option].concat(), server_environment)?;
    if !server.listens(port) {
        bail!("the server does not listen\n{}", server.end()?);
    }
    let address = ["127.0.0.1".to_owned()];
    let client = Process::start(&[client, &option, &address].concat(), client_environment)?;
    Ok((server, client))
}

/// Returns the outcome of a pair: passed if both processes succeeded and `check` accepts their output.
///
/// # Errors
/// Returns an error in the other cases, with the output of both processes if they have ended.
pub(super) fn outcome(
    pair: Result<(Ended, Ended)>,
    check: impl FnOnce(&Ended, &Ended) -> Result<String>,
) -> Result<Outcome> {
    let (server, client) = pair?;
    let checked = match server.succeeded() && client.succeeded() {
        true => check(&server, &client),
        false => Err(anyhow!("a process failed")),
    };
    let passed = checked.map(Outcome::Passed);
    passed.map_err(|error| anyhow!("{error:#}\nclient {client}\nserver {server}"))
}

//! `rdmatool run`: starts the ranks of a group on this host.

use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use rustix::rand::{GetRandomFlags, getrandom};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::output::warn;

/// The exit status if the program is not found, as in a shell.
const NOT_FOUND: u8 = 127;

/// Starts a program several times on this host, as the ranks of a group
///
/// Each process gets RDMA_RANK, RDMA_WORLD_SIZE, RDMA_LOCAL_WORLD_SIZE, RDMA_MASTER and RDMA_GROUP_SECRET, with which
/// it joins a group of the crate rdma-group. Rank 0 reads this program's standard input, and the others read none. If
/// a rank fails, the others are ended. The exit status is 0, or that of the rank that failed first (128 plus the
/// number of the signal that killed it).
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The number of processes
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// The time that the other ranks have to end after SIGTERM, before they are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u32,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    program: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    // Before a child exists, so that no signal is missed.
    let signals = signals()
        .context("signals cannot be received; raise the limit of open files (`ulimit -n`)")?;
    let group = Group { size: arguments.ranks.to_string(), master: master(), secret: secret()? };
    let mut ranks = Ranks {
        running: Vec::new(),
        failed: None,
        killed_at: None,
        grace: Duration::from_secs(arguments.grace.into()),
    };
    for rank in 0..arguments.ranks {
        match command(arguments, rank, &group).spawn() {
            Ok(child) => ranks.running.push((rank, child)),
            Err(error) => {
                ranks.end();
                ranks.wait(&signals)?;
                return not_started(error, arguments, rank);
            }
        }
    }
    ranks.wait(&signals)?;
    Ok(ranks.failed.map_or(ExitCode::SUCCESS, |status| ExitCode::from(code(status))))
}

/// The values of the variables that all ranks share.
struct Group {
    size: String,
    master: OsString,
    secret: OsString,
}

/// Returns the command of a rank.
fn command(arguments: &Arguments, rank: u32, group: &Group) -> Command {
    let mut words = arguments.program.iter();
    let mut command = Command::new(words.next().map(OsString::as_os_str).unwrap_or_default());
    command.args(words).env("RDMA_RANK", rank.to_string()).env("RDMA_WORLD_SIZE", &group.size);
    command.env("RDMA_LOCAL_WORLD_SIZE", &group.size);
    command.env("RDMA_MASTER", &group.master).env("RDMA_GROUP_SECRET", &group.secret);
    if rank > 0 {
        command.stdin(Stdio::null());
    }
    command
}

/// Returns the address of rank 0. Unless it is set, this is a loopback address that depends on this process. So several
/// groups do not need different ports.
fn master() -> OsString {
    env::var_os("RDMA_MASTER").unwrap_or_else(|| {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        format!("127.{}.{middle}.{low}:7471", high | 64).into()
    })
}

/// Returns the secret of the group, which is random unless it is set. Only processes of this user can read it.
fn secret() -> Result<OsString> {
    if let Some(secret) = env::var_os("RDMA_GROUP_SECRET") {
        return Ok(secret);
    }
    let mut bytes = [0; 32];
    rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))
        .context("getting random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
}

fn not_started(error: io::Error, arguments: &Arguments, rank: u32) -> Result<ExitCode> {
    let program = arguments.program.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    if error.kind() == ErrorKind::NotFound {
        warn(format_args!("error: {program} was not found; check its name, or PATH"));
        return Ok(ExitCode::from(NOT_FOUND));
    }
    Err(error).with_context(|| format!("rank {rank}, {program}, cannot be started"))
}

/// Receives signals on a thread of their own. Signals of the terminal are left out: the ranks receive them directly.
fn signals() -> io::Result<Receiver<i32>> {
    let mut signals = SignalsInfo::<WithOrigin>::new([SIGCHLD, SIGINT, SIGTERM])?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut received = signals.forever();
        received.all(|origin| {
            let is_forwarded = origin.signal == SIGCHLD || origin.process.is_some();
            !is_forwarded || sender.send(origin.signal).is_ok()
        })
    });
    Ok(receiver)
}

/// The processes of a group.
struct Ranks {
    /// The ranks that have not ended.
    running: Vec<(u32, Child)>,
    /// The status of the first rank that failed.
    failed: Option<ExitStatus>,
    /// When the ranks that are still running are killed.
    killed_at: Option<Instant>,
    grace: Duration,
}

impl Ranks {
    /// Waits until all ranks have ended.
    fn wait(&mut self, signals: &Receiver<i32>) -> Result<()> {
        loop {
            self.collect()?;
            if self.running.is_empty() {
                return Ok(());
            }
            match self.next(signals) {
                Ok(SIGCHLD) => {}
                Ok(number) => self.send(Signal::from_named_raw(number).unwrap_or(Signal::TERM)),
                Err(RecvTimeoutError::Timeout) => {
                    self.killed_at = None;
                    self.send(Signal::KILL);
                }
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("no signals are received"),
            }
        }
    }

    fn next(&self, signals: &Receiver<i32>) -> Result<i32, RecvTimeoutError> {
        match self.killed_at {
            Some(at) => signals.recv_timeout(at.saturating_duration_since(Instant::now())),
            None => signals.recv().map_err(RecvTimeoutError::from),
        }
    }

    /// Removes the ranks that have ended. If one has failed, ends the others.
    fn collect(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some((rank, child)) = self.running.get_mut(at) {
            let Some(status) = child.try_wait().context("a rank cannot be waited for")? else {
                at += 1;
                continue;
            };
            let rank = *rank;
            self.running.swap_remove(at);
            if !status.success() && self.failed.is_none() {
                self.failed = Some(status);
                warn(format_args!("rank {rank} failed ({status}); the other ranks are ended"));
                self.end();
            }
        }
        Ok(())
    }

    /// Ends all ranks.
    fn end(&mut self) {
        self.killed_at = Instant::now().checked_add(self.grace);
        self.send(Signal::TERM);
    }

    /// Sends a signal to the ranks that are still running. They have not been waited for, so their IDs are theirs.
    fn send(&self, signal: Signal) {
        for (_, child) in &self.running {
            if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
                // An error means that the rank has ended.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Returns the exit status that represents the end of a process, as in a shell.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

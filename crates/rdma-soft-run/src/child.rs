//! A child process in whose place this process receives signals.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

/// Runs the command, and returns its exit status, or 128 plus the number of the signal that killed it.
///
/// # Errors
/// Returns an error if no child can be started or waited for. The error states what needs the child (`purpose`), and
/// what needs none (`instead`).
pub(crate) fn run(command: &mut Command, purpose: &str, instead: &str) -> Result<u8> {
    let ignored = ignored();
    let handled = [SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    let handled = handled.iter().filter(|signal| !is_in(**signal, ignored));
    let mut signals = SignalsInfo::<WithOrigin>::new(handled).with_context(|| {
        format!("{purpose} cannot receive signals; raise the limit of open files (`ulimit -n`), or {instead}")
    })?;
    let mut child = command.spawn().with_context(|| {
        format!("{purpose} cannot start a child process; raise the limit of processes (`ulimit -u`), or {instead}")
    })?;
    let status = wait(&mut child, &mut signals).context("the program cannot be waited for")?;
    Ok(code(status))
}

/// Returns the set of signals that this process ignores. The program must ignore them too, as under `nohup`, but a signal
/// with a handler would get its default action in the program.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Returns true if a set of `/proc/self/status` contains the signal, except SIGCHLD, which a wait needs.
fn is_in(signal: i32, set: u64) -> bool {
    signal != SIGCHLD && set >> (signal - 1) & 1 != 0
}

/// Waits for the child, and forwards to it the signals that other processes send to this process. The terminal sends its
/// signals to both processes.
fn wait(child: &mut Child, signals: &mut SignalsInfo<WithOrigin>) -> io::Result<ExitStatus> {
    loop {
        for origin in signals.wait() {
            let by_process = origin.process.is_some();
            if by_process && origin.signal != SIGCHLD {
                let signal = Signal::from_named_raw(origin.signal);
                if let Some((signal, pid)) = signal.zip(Pid::from_raw(child.id().cast_signed())) {
                    kill_process(pid, signal)?;
                }
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_becomes_a_status_above_128() {
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(15)), 143);
    }

    #[test]
    fn signals_are_found_in_a_set() {
        let set = 1 << (SIGHUP - 1) | 1 << (SIGCHLD - 1);
        let found = [SIGHUP, SIGINT, SIGUSR2, SIGCHLD].map(|signal| is_in(signal, set));
        assert_eq!(found, [true, false, false, false]);
    }
}
